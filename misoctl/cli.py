"""The verbs. stdout is data, stderr is talk."""

import json
import os
import signal
import sys
import time
from dataclasses import asdict

import click

import misoctl
from misoctl.client import Client, NoDaemon
from misoctl.failure import Failure
from misoctl.start import connect
from protocol import errors
from protocol import messages as m
from protocol.paths import find_paths

STOP_S = 25.0  # misod's drain and a little

EXIT_HELP = "\b\nExit codes:\n" + "\n".join(f"  {code:>3}  {text}" for code, text in errors.EXIT_CODES.items())


def tell(line: str) -> None:
    click.echo(f"misoctl: {line}", err=True)


def hush(line: str) -> None:
    """tell, under -q."""


def _version(ctx: click.Context, _param, wanted: bool) -> None:
    if not wanted:
        return
    click.echo(f"misoctl {misoctl.__version__} (protocol {m.VERSION[0]}.{m.VERSION[1]})")
    try:
        with Client(find_paths()) as client:
            w = client.welcome
            click.echo(f"misod   {w.version} (protocol {w.major}.{w.minor}, pid {w.pid})")
    except NoDaemon:
        click.echo("misod   not running")
    ctx.exit()


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_HELP)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Both sides' versions."
)
def cli() -> None:
    """Speak with a voice that is always warm.

    \b
      misoctl say "Hello from Miso."
      misoctl say -o hello.wav "Hello from Miso."
      cat article.txt | misoctl say
    """


@cli.command()
@click.argument("text", nargs=-1)
@click.option("-f", "--file", "source", metavar="FILE", help="Read the text from FILE; - is standard input.")
@click.option("-o", "--output", metavar="FILE", help="Write a WAV; - streams it to standard output.")
@click.option("--raw", is_flag=True, help="Write bare samples (s16le, mono) to standard output, or to -o.")
@click.option("--seed", type=click.IntRange(0, m.UINT32), help="Same text, same seed: the same samples.")
@click.option("--temperature", type=click.FloatRange(0, 2), help="How freely it speaks; 0 always takes the likeliest.")
@click.option("--top-k", type=click.IntRange(1, 4096), help="Draw from the k likeliest codes.")
@click.option("--max-seconds", type=click.FloatRange(0.08, 7200), help="Stop after this much speech.")
@click.option(
    "--speaker", type=click.IntRange(0, 99), default=0, show_default=True, help="Which of the model's voices."
)
@click.option("--no-start", is_flag=True, help="Do not start misod; exit 69 where none runs.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the receipt on standard output.")
def say(text, source, output, raw, no_start, quiet, as_json, **options) -> None:
    """Speak TEXT, or what is piped in.

    \b
      misoctl say "It is done."
      make && misoctl say built || misoctl say broken
      misoctl say -o - "A stream." | ffmpeg -i - hello.mp3
      misoctl say -f letter.txt --seed 7 -o letter.wav
    """
    from misoctl.speech import open_sink, read_text, report, speak

    talk = hush if quiet else tell
    words = read_text(text, source)
    if words is None:
        talk("nothing to say")
        return
    options = {name: value for name, value in options.items() if value is not None}
    with open_sink(output, raw, as_json) as sink, connect(find_paths(), not no_start, talk) as client:
        done = speak(client, words, options, sink, talk)
    report(done, sink, quiet, as_json)


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def status(as_json) -> None:
    """What the daemon is doing. Exit 69 where none runs."""
    with Client(find_paths()) as client:
        now = client.status()
    if as_json:
        click.echo(json.dumps(asdict(now)))
        return
    speed = f"loaded in {now.load_s:.2f} s" if now.load_s else "not loaded"
    click.echo(f"misod {now.version}, pid {now.pid}, up {now.uptime_s:.0f} s: {now.state}")
    if now.detail:
        click.echo(f"  why       {now.detail}")
    click.echo(f"  model     {now.model} {now.digest[:12]} on {now.backend or '-'}, {speed}")
    click.echo(f"  rows      {now.speaking} speaking, {now.parked} parked, {now.queued} queued, at most {now.max_rows}")
    click.echo(f"  served    {now.requests} requests, {now.frames * 0.08:.1f} s of speech")
    click.echo(f"  memory    {now.rss_bytes / 1e6:.0f} MB resident, {now.active_bytes / 1e6:.0f} MB held by MLX")
    click.echo(f"  socket    {now.socket}")
    click.echo(f"  log       {now.log}")


@cli.command()
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
def start(quiet) -> None:
    """Start the daemon, if none runs, and wait until it can speak."""
    with connect(find_paths(), True, hush if quiet else tell) as client:
        while (now := client.status()).state == "loading":
            time.sleep(0.05)
    if now.state == "failed":
        raise Failure.of_code("model", now.detail)
    if not quiet:
        tell(f"misod is ready, pid {now.pid}: {now.model} on {now.backend}")


@cli.command()
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
def stop(quiet) -> None:
    """Stop the daemon once what it speaks is finished."""
    paths = find_paths()
    try:
        with Client(paths) as client:
            pid = client.drain().pid
    except NoDaemon:
        (hush if quiet else tell)("misod is not running")
        return
    deadline_s = time.monotonic() + STOP_S
    while time.monotonic() < deadline_s:
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            (hush if quiet else tell)(f"misod stopped, pid {pid}")
            return
        time.sleep(0.02)
    raise Failure(errors.SOFTWARE, f"misod, pid {pid}, is still running", f"`kill {pid}`, or see {paths.log}")


def main() -> None:
    """Every way out: one line where something is wrong, and the documented exit code."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    try:
        cli.main(prog_name="misoctl", standalone_mode=False)
    except click.exceptions.Abort:  # click makes this of KeyboardInterrupt
        sys.exit(errors.INTERRUPTED)
    except click.exceptions.Exit as done:
        sys.exit(done.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except Failure as failure:
        if failure.message:
            tell(str(failure))
        sys.exit(failure.exit_code)
    except errors.UnsafePath as error:
        tell(str(error))
        sys.exit(errors.NO_PERMISSION)


def _interrupt(number: int, _frame) -> None:
    raise KeyboardInterrupt
