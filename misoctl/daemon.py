"""The verbs for the daemon itself: start, stop, status, load, unload, bench."""

import json
import time
from dataclasses import asdict

import click

from misoctl.options import keep_alive_option, number, quiet_option, whole
from misoctl.quick import beside_option
from misoctl.talk import hush, tell
from protocol.errors import Failure


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def status(as_json) -> None:
    """What the daemon is doing. Exit 69 where none runs.

    \b
      misoctl status
      misoctl status --json | jq .state
    """
    from misoctl.client import Client
    from misoctl.floor import lines_of
    from protocol.paths import find_paths

    with Client(find_paths()) as client:
        now, (speakers, floor) = client.status(), lines_of(client)
    if as_json:
        click.echo(json.dumps(asdict(now) | {"floor": speakers}))
        return
    speed = f"loaded in {now.load_s:.2f} s" if now.load_s else "not loaded"
    click.echo(f"misod {now.version}, pid {now.pid}, up {now.uptime_s:.0f} s: {now.state}")
    if now.detail:
        click.echo(f"  why       {now.detail}")
    click.echo(f"  model     {now.model} {now.digest[:12]} on {now.backend or '-'}, {speed}")
    if now.quick_digest:
        click.echo(f"  beside    kitten {now.quick_digest[:12]}, for --quick-start")
    click.echo(f"  rows      {now.speaking} speaking, {now.parked} parked, {now.queued} queued, at most {now.max_rows}")
    click.echo(f"  floor     {floor}")
    click.echo(f"  served    {now.requests} requests, {now.spoken_s:.1f} s of speech")
    click.echo(f"  memory    {now.rss_bytes / 1e6:.0f} MB resident, {now.active_bytes / 1e6:.0f} MB held by MLX")
    click.echo(f"  voices    {now.voices} learned, {now.sessions} sessions")
    kept = f"{now.prefix_bytes / 1e6:.0f} of {now.prefix_limit_bytes / 1e6:.0f} MB"
    used = f"{now.prefix_hits} hits, {now.prefix_misses} misses, {now.prefix_evictions} evictions"
    click.echo(f"  prefixes  {kept}, {used}")
    click.echo(f"  socket    {now.socket}")
    click.echo(f"  log       {now.log}")


@click.command()
@click.argument("model", required=False)
@keep_alive_option
@beside_option
@quiet_option
def load(model, keep_alive_s, quick, quiet) -> None:
    """Have MODEL ready, so that the next `say` starts at once; what speaks is finished first.

    \b
      misoctl load                     whichever is loaded, else the default
      misoctl load miso --keep-alive 600
      misoctl load --quick-start       kitten beside it
    """
    from misoctl.speech import telling
    from misoctl.start import connect
    from protocol.paths import find_paths

    talk = hush if quiet else tell
    with connect(find_paths(), True, talk) as client:
        *_, now = telling(client.load(model, keep_alive_s, quick or None), talk)
    talk(f"{now.model} is ready{', kitten beside it' * quick}, loaded in {now.load_s:.2f} s")


@click.command()
@quiet_option
def unload(quiet) -> None:
    """Free the model's memory. The daemon stays, and the next `say` loads again.

    \b
      misoctl unload
    """
    from misoctl.speech import telling
    from misoctl.start import connect
    from protocol.paths import find_paths

    talk = hush if quiet else tell
    with connect(find_paths(), False, talk) as client:
        if client.welcome.state != "draining":  # that one frees it by ending
            for _ in telling(client.unload(), talk):
                pass
    talk("no model is loaded")


@click.command()
@quiet_option
def start(quiet) -> None:
    """Start the daemon, if none runs, and wait until it can speak.

    \b
      misoctl start
      MISO_MAX_ROWS=2 misoctl start
    """
    from misoctl.start import connect
    from protocol.paths import find_paths

    talk = hush if quiet else tell
    with connect(find_paths(), True, talk) as client:
        while (now := client.status()).state == "loading":
            time.sleep(0.05)
    if now.state == "failed":
        raise Failure.of_code("model", now.detail)
    talk(f"misod is ready, pid {now.pid}: {now.model} on {now.backend}")


@click.command()
@quiet_option
def stop(quiet) -> None:
    """Stop the daemon once what it speaks is finished.

    \b
      misoctl stop
    """
    from misoctl.start import stop_daemon
    from protocol.paths import find_paths

    stop_daemon(find_paths(), hush if quiet else tell)


@click.command()
@click.option("--model", metavar="NAME", help="Measure this model; `misoctl list` shows which are here.")
@number("--seconds", "seconds", 0.5, 60, "How long each row speaks.", "SECONDS", default=3.0, show_default=True)
@whole("--rounds", "rounds", 1, 100, "First sounds to time.", default=5, show_default=True)
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def bench(model, seconds, rounds, quiet, as_json) -> None:
    """Measure this machine: first sound, speed of 1 to 8 rows at once, memory.

    \b
      misoctl bench
      misoctl bench --model miso --seconds 10
      misoctl bench --json | jq '.speeds[] | {rows, rtf}'

    Half a minute with the bundled voice; nothing is played. What else is spoken meanwhile makes it slower. A
    real-time factor below 1 is faster than speech. On a Mac, what its bandwidth promises is shown beside it.
    """
    from misoctl.bench import lines, measure, to_json
    from misoctl.start import connect
    from protocol.paths import find_paths

    talk = hush if quiet else tell
    with connect(find_paths(), True, talk) as client:
        found = measure(client, model, seconds, rounds, talk)
    click.echo(to_json(found) if as_json else "\n".join(lines(found)))
