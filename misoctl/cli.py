"""The verbs. stdout is data, stderr is talk. Each verb imports what it needs: --help is to be there at once."""

import json
import math
import os
import signal
import sys
import textwrap
import time
from dataclasses import asdict

import click

import misoctl
from misoctl import handed, service, voices
from misoctl.floor import Floor, floor_options, hush_verb, lines_of
from misoctl.talk import hush, tell
from protocol import errors
from protocol.errors import Failure
from protocol.exits import Program

SECONDS = click.FloatRange(0.1, 1e8)
KEEP_HELP = "Seconds without a request after which the model is freed, from now on."
EXIT_HELP = "\b\nExit codes:\n" + "\n".join(
    textwrap.fill(f"{code:>5}  {text}", 76, subsequent_indent=" " * 7) for code, text in errors.EXIT_CODES.items()
)


def _finite(_ctx, param: click.Parameter, value: float | None) -> float | None:
    """NaN is neither below nor above a range, so click lets it through."""
    if value is not None and math.isnan(value):
        raise click.BadParameter(f"nan is not in the range {param.type.min:g}<=x<={param.type.max:g}.")
    return value


def number(flag: str, low: float, high: float, text: str):
    return click.option(flag, type=click.FloatRange(low, high), callback=_finite, help=text)


def _version(ctx: click.Context, _param, wanted: bool) -> None:
    if not wanted:
        return
    from misoctl.client import Client, NoDaemon
    from protocol import messages as m
    from protocol.paths import find_paths

    click.echo(f"misoctl {misoctl.__version__} (protocol {m.VERSION[0]}.{m.VERSION[1]})")
    try:
        with Client(find_paths()) as client:
            w = client.welcome
            click.echo(f"misod   {w.version} (protocol {w.major}.{w.minor}, pid {w.pid})")
    except NoDaemon:
        click.echo("misod   not running")
    ctx.exit()


@click.group("misoctl", cls=Program, context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_HELP)
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


for verb in (*handed.VERBS, *voices.VERBS, service.service, hush_verb):
    cli.add_command(verb)


@cli.command()
@click.argument("text", nargs=-1)
@click.option("-f", "--file", "source", metavar="FILE", help="Read the text from FILE; - is standard input.")
@click.option("--script", metavar="FILE", help="Speak a script, a turn a line: `[0] words` or `anna: words`.")
@click.option("--stems", metavar="DIR", help="With --script: a WAV of each turn, too.")
@click.option("-o", "--output", metavar="FILE", help="Write a WAV; - streams it to standard output.")
@click.option("--raw", is_flag=True, help="Write bare samples (s16le, mono) to standard output.")
@click.option("--seed", type=click.IntRange(0, 2**32 - 1), help="Same text, same seed: the same samples.")
@click.option("--preset", type=click.Choice(["stable", "natural", "expressive"]), help="How freely it speaks, by name.")
@number("--temperature", 0, 2, "How freely it speaks; 0 always takes the likeliest.")
@number("--min-temperature", 0, 2, "What the temperature nears as the speech goes on.")
@click.option(
    "--decay-frames", type=click.IntRange(1, 10_000), help="Frames of 80 ms in which it comes 63 % of the way."
)
@click.option("--top-k", type=click.IntRange(1, 4096), help="Draw from the k likeliest codes.")
@number("--top-p", 0.01, 1, "Draw from the likeliest codes that together have this share.")
@number("--min-p", 0, 1, "Draw from codes at least this likely, as a share of the likeliest.")
@number("--guidance", 0, 10, "Over 1: away from what would be said with no text, at twice the work.")
@click.option("--max-seconds", type=click.FloatRange(0.08, 7200), callback=_finite, help="Stop after this much speech.")
@click.option("-v", "--voice", metavar="NAME", callback=voices.chosen, help="A voice that was learned; ? lists them.")
@click.option("--like", metavar="CLIP", help="Speak like this recording, this once; `learn` keeps it.")
@click.option("--text", "clip_text", metavar="WORDS", help="With --like: what is said in CLIP.")
@click.option("--session", metavar="NAME", callback=voices.slug, help="Go on with this dialogue, or begin it.")
@click.option("--speaker", type=click.IntRange(0, 99), help="Which of the model's voices; by default NAME's own, or 0.")
@click.option("--no-normalize", "normalize", flag_value=False, default=None, help="Read the text as it is written.")
@click.option(
    "--emoji", type=click.Choice(["drop", "name"]), help="Say the names of emoji; they are dropped otherwise."
)
@click.option("--no-normalize-loudness", "level", flag_value=False, default=None, help="As loud as the model makes it.")
@click.option("--model", metavar="NAME", help="Speak with this model; `misoctl list` shows which are here.")
@click.option("--keep-alive", "keep_alive_s", type=SECONDS, callback=_finite, help=KEEP_HELP)
@floor_options
@click.option("--no-start", is_flag=True, help="Do not start misod; exit 69 where none runs.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the receipt on standard output.")
@click.option(
    "--strict", is_flag=True, help="Exit 1 where the speech did not end of itself, at its longest length too."
)
def say(
    text, source, script, stems, output, raw, like, clip_text, no_start, wish, quiet, as_json, strict, **options
) -> None:
    """Speak TEXT, or what is piped in.

    \b
      misoctl say "It is done."
      make && misoctl say built || misoctl say broken
      misoctl say -o - "A stream." | ffmpeg -i - hello.mp3
      misoctl say -f letter.txt --seed 7 -o letter.wav
      misoctl say --script talk.txt -o talk.wav --stems turns/
      misoctl say -v anna "In a voice that was learned."
      misoctl say --like clip.wav --text "What is said in it." "Once."
      misoctl say --when interrupt --resume "The kettle boils."
      misoctl say -- "-5 degrees."
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a player or a reader that goes away has its own line
    from misoctl.client import Client, preflight
    from misoctl.receipt import to_json
    from misoctl.script import Stems
    from misoctl.speech import open_sink, read_script, read_text, report, speak
    from misoctl.start import connect
    from protocol.paths import find_paths

    if stems is not None and script is None:
        raise click.UsageError("--stems is for --script")
    talk = hush if quiet else tell
    dialogue = None if script is None else read_script(text, source, script)
    words = dialogue.text if dialogue else read_text(text, source)
    if words is None:
        talk("nothing to say")
        return
    options = {name: value for name, value in options.items() if value is not None} | {"script": bool(script) or None}
    floor = Floor(wish, output is None and not raw, words, bool(script))
    options |= {"pieces": floor.wants_pieces or None} | voices.one_off(like, clip_text, options, talk)
    if no_start:
        preflight(find_paths())  # before a file is made or a player looked for
    turns = Stems(stems, dialogue.names) if stems else None
    while floor.rest:
        with (
            floor,
            open_sink(output, raw, as_json, turns) as sink,
            connect(find_paths(), not no_start, talk) as client,
            voices.suggesting(client, options.get("voice")),
        ):
            words = floor.take(client, lambda: Client(find_paths()), talk)
            done = speak(client, words, options, sink, talk, floor.came)
    if floor.end:
        floor.report(talk, as_json)
        return
    if as_json:
        click.echo(to_json(done, words, options, sink.sha256))
    report(done, quiet, strict)


@cli.command()
@click.argument("receipt")
@click.option("-o", "--output", metavar="FILE", help="Write a WAV; - streams it to standard output.")
@click.option("--raw", is_flag=True, help="Write bare samples (s16le, mono) to standard output.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
def replay(receipt, output, raw, quiet) -> None:
    """Render the same samples again from the RECEIPT that `say --json` printed.

    \b
      misoctl say --json -o a.wav "Once." > a.json
      misoctl replay a.json -o b.wav
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    from misoctl.client import Client
    from misoctl.receipt import read
    from misoctl.speech import open_sink, report, speak
    from misoctl.start import connect
    from protocol.paths import find_paths

    talk, wanted = hush if quiet else tell, read(receipt)
    floor = Floor({}, output is None and not raw, wanted.text)
    while floor.rest:
        with floor, open_sink(output, raw, False) as sink, connect(find_paths(), True, talk) as client:
            *_, now = client.load(wanted.model)
            if now.digest != wanted.digest:
                line = f"{receipt} was spoken by other weights than {now.model} has"
                raise Failure(errors.BAD_DATA, line, "pull those")
            voices.check_digest(client, receipt, wanted.options.get("voice"), wanted.voice_digest)
            words = floor.take(client, lambda: Client(find_paths()), talk)
            done = speak(client, words, wanted.options | {"model": wanted.model}, sink, talk, floor.came)
    if floor.end:
        floor.report(talk, False)
        return
    report(done, quiet, strict=False)
    if sink.sha256 != wanted.sha256:
        raise Failure(errors.FAILED, f"these are not the samples of {receipt}", "another machine or version made those")


@cli.command()
@click.option("--json", "as_json", is_flag=True, help="As one JSON object.")
def status(as_json) -> None:
    """What the daemon is doing. Exit 69 where none runs.

    \b
      misoctl status
      misoctl status --json | jq .state
    """
    from misoctl.client import Client
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


@cli.command()
@click.argument("model", required=False)
@click.option("--keep-alive", "keep_alive_s", type=SECONDS, callback=_finite, help=KEEP_HELP)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
def load(model, keep_alive_s, quiet) -> None:
    """Have MODEL ready, so that the next `say` starts at once; what speaks is finished first.

    \b
      misoctl load                     whichever is loaded, else the default
      misoctl load miso --keep-alive 600
    """
    from misoctl.speech import telling
    from misoctl.start import connect
    from protocol.paths import find_paths

    talk = hush if quiet else tell
    with connect(find_paths(), True, talk) as client:
        *_, now = telling(client.load(model, keep_alive_s), talk)
    talk(f"{now.model} is ready, loaded in {now.load_s:.2f} s")


@cli.command()
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
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


@cli.command()
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
def start(quiet) -> None:
    """Start the daemon, if none runs, and wait until it can speak.

    \b
      misoctl start
      MISO_MAX_ROWS=2 misoctl start
    """
    from misoctl.start import connect
    from protocol.paths import find_paths

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
    """Stop the daemon once what it speaks is finished.

    \b
      misoctl stop
    """
    from misoctl.start import stop_daemon
    from protocol.paths import find_paths

    stop_daemon(find_paths(), hush if quiet else tell)


@cli.command()
@click.argument("shell", type=click.Choice(["bash", "fish", "zsh"]))
def completion(shell) -> None:
    """Print what SHELL must read to complete verbs, options, voices, models and files.

    \b
      eval "$(misoctl completion bash)"       # in ~/.bashrc; bash 4.4 or newer
      eval "$(misoctl completion zsh)"        # in ~/.zshrc, after compinit
      misoctl completion fish | source        # in ~/.config/fish/config.fish
    """
    from misoctl.completion import script

    click.echo(script(shell, cli))


def main() -> None:
    """The program, stopped by signals on its way."""
    if "_MISOCTL_COMPLETE" in os.environ:
        from misoctl.completion import attach

        attach(cli)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `misoctl status | head -1` ends as any program does
    _stop_on_signals()
    try:
        cli.main()
    except Stopped as stopped:
        sys.exit(stopped.exit_code)


class Stopped(BaseException):
    """A signal asks us to end; raised wherever we are, so that every sink and request is closed on the way out."""

    def __init__(self, number: int):
        super().__init__(number)
        self.exit_code = errors.SIGNALLED + number


def _stop_on_signals() -> None:
    """Raise Stopped once; a second Ctrl-C must not cut the cleaning up in half. What nohup ignores stays ignored."""
    watched = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]

    def stop(number: int, _frame) -> None:
        for each in watched:
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for each in watched:
        signal.signal(each, stop)
