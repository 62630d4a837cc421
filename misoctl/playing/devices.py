"""`misoctl devices`."""

import json

import click

from protocol import errors
from protocol.errors import Failure


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As a JSON list of {number, name, channels, rate_hz, default}.")
def devices(as_json) -> None:
    """The output devices that `say --device` takes, as sounddevice has them; * is the default.

    \b
      misoctl devices
      misoctl say --device "USB Audio" "Hello."
      misoctl config set device "USB Audio"

    Other players have names of their own: `aplay -L`, `pactl list short sinks`, `wpctl status`.
    """
    try:
        import sounddevice
    except (ImportError, OSError) as error:
        cure = (
            "`pip install sounddevice`; aplay, paplay and pw-play have their own: `aplay -L`, `pactl list short sinks`"
        )
        raise Failure(errors.NO_PROGRAM, f"sounddevice is not here ({error})", cure) from None
    from misoctl.playing.device import outputs

    rows = [
        {
            "number": device["index"],
            "name": device["name"],
            "channels": device["max_output_channels"],
            "rate_hz": round(device["default_samplerate"]),
            "default": device["index"] == sounddevice.default.device[1],
        }
        for device in outputs(sounddevice)
    ]
    if as_json:
        click.echo(json.dumps(rows, ensure_ascii=False))
        return
    if not rows:
        raise Failure(errors.NO_PROGRAM, "sounddevice has no output device", "switch one on, or write a file with -o")
    for row in rows:
        mark = "*" if row["default"] else " "
        click.echo(f"{mark} {row['number']:>2}  {row['name']}  ({row['channels']} channels, {row['rate_hz']} Hz)")
