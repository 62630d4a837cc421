"""The verbs. stdout is data, stderr is talk. Each verb imports what it needs: --help is to be there at once."""

import json
import os
import signal
import sys
import textwrap
import time
from dataclasses import asdict

import click

import misoctl
from misoctl import handed, kitten, service, voices
from misoctl.floor import floor_options, hush_verb, lines_of
from misoctl.handed import finite
from misoctl.http.verb import http
from misoctl.options import no_rate, output_options
from misoctl.playing.devices import devices
from misoctl.playing.options import play_options
from misoctl.quick import BESIDE_HELP, FLAG, quick_options
from misoctl.talk import hush, tell
from protocol import errors
from protocol.errors import Failure
from protocol.exits import Program

SECONDS = click.FloatRange(0.1, 1e8)
LONG = "How long each row speaks."
KEEP_HELP = "Seconds without a request after which the model is freed, from now on."
EXIT_HELP = "\b\nExit codes:\n" + "\n".join(
    textwrap.fill(f"{code:>5}  {text}", 76, subsequent_indent=" " * 7) for code, text in errors.EXIT_CODES.items()
)


def number(flag: str, low: float, high: float, text: str):
    return click.option(flag, type=click.FloatRange(low, high), callback=finite, help=text)


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


for verb in (*handed.VERBS, *voices.VERBS, service.service, devices, http, hush_verb):
    cli.add_command(verb)


@cli.command(cls=kitten.Say)
@click.argument("text", nargs=-1)
@click.option("-f", "--file", "source", metavar="FILE", help="Read the text from FILE; - is standard input.")
@click.option("--script", metavar="FILE", help="Speak a script, a turn a line: `[0] words` or `anna: words`.")
@click.option("--stems", metavar="DIR", help="With --script: a file of each turn, too.")
@output_options
@click.option("--split-sentences", "sentences", metavar="DIR", help="A file of each sentence, too: 0001.wav, 0002.wav.")
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
@click.option("--depth", type=click.IntRange(1, 32), help="Experimental: make only the first codebooks of each frame.")
@click.option("--max-seconds", type=click.FloatRange(0.08, 7200), callback=finite, help="Stop after this much speech.")
@click.option(
    "-v", "--voice", metavar="NAME", callback=voices.chosen, help="One that was learned, or the model's; ? lists them."
)
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
@click.option("--keep-alive", "keep_alive_s", type=SECONDS, callback=finite, help=KEEP_HELP)
@quick_options
@floor_options
@click.option("--no-start", is_flag=True, help="Do not start misod; exit 69 where none runs.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
@click.option("--json", "as_json", is_flag=True, help="Print the receipt on standard output.")
@click.option(
    "--strict", is_flag=True, help="Exit 1 where the speech did not end of itself, at its longest length too."
)
@click.option("--follow", is_flag=True, help="Speak each line of standard input as soon as it has come.")
@click.option("--highlight", is_flag=True, help="Show the text on the terminal, the word that is heard in reverse.")
@click.option("--events", is_flag=True, help="Print what happens on standard output, as JSON lines: docs/say.md.")
@click.option("-r", "--rate", hidden=True, expose_value=False, callback=no_rate, help="Refused: docs/say.md.")
@click.option("--wait/--no-wait", default=True, help="--no-wait: return once the request is accepted, and speak on.")
@play_options
@kitten.options
def say(**given) -> None:
    """Speak TEXT, or what is piped in.

    \b
      misoctl say "It is done."
      make && misoctl say built || misoctl say broken
      misoctl say -o hello.mp3 "A file."
      tail -f build.log | misoctl say --follow
      misoctl say -f letter.txt --seed 7 -o letter.wav
      misoctl say --script talk.txt -o talk.wav --stems turns/
      misoctl say -v anna "In a voice that was learned."
      misoctl say --like clip.wav --text "What is said in it." "Once."
      misoctl say --when interrupt --resume "The kettle boils."
      misoctl say -- "-5 degrees."
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # a player or a reader that goes away has its own line
    from misoctl.saying import run

    run(**given)


@cli.command()
@click.argument("receipt")
@output_options
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
@play_options
def replay(receipt, quiet, where, play) -> None:
    """Render the same samples again from the RECEIPT that `say --json` printed.

    \b
      misoctl say --json -o a.wav "Once." > a.json
      misoctl replay a.json -o b.wav
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    from misoctl.client import Client
    from misoctl.floor import Floor
    from misoctl.outputs import Outputs
    from misoctl.receipt import read
    from misoctl.speech import report, speak
    from misoctl.start import connect
    from protocol.paths import find_paths

    outputs = Outputs(**where)
    talk, wanted = hush if quiet else tell, read(receipt)
    floor = Floor({}, outputs.target is None, wanted.text, resumes=False)
    with floor, outputs.open(play.telling(talk)) as sink, connect(find_paths(), True, talk) as client:
        *_, now = client.load(wanted.model, quick_start=wanted.quick_digest and True)
        if now.digest != wanted.digest:
            raise Failure(errors.BAD_DATA, f"{receipt} was spoken by other weights than {now.model} has", "pull those")
        if wanted.quick_digest and client.status().quick_digest != wanted.quick_digest:
            raise Failure(errors.BAD_DATA, f"{receipt} was begun by other weights than kitten has", "pull those")
        voices.check_digest(client, receipt, wanted.options.get("voice"), wanted.voice_digest, wanted.model)
        words = floor.take(client, lambda: Client(find_paths()), talk, sink)
        done = speak(client, words, wanted.options | {"model": wanted.model}, sink, talk, came=floor.came)
    if floor.end:
        floor.report(talk)
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


@cli.command()
@click.argument("model", required=False)
@click.option("--keep-alive", "keep_alive_s", type=SECONDS, callback=finite, help=KEEP_HELP)
@click.option(FLAG, "quick", is_flag=True, help=BESIDE_HELP)
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
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
@click.option("--model", metavar="NAME", help="Measure this model; `misoctl list` shows which are here.")
@click.option("--seconds", type=click.FloatRange(0.5, 60), callback=finite, default=3.0, show_default=True, help=LONG)
@click.option("--rounds", type=click.IntRange(1, 100), default=5, show_default=True, help="First sounds to time.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
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
    """Raise Stopped once; a second Ctrl-C must not cut the cleaning up in half, nor may the floor's word, which would
    also be taken for the end. What nohup ignores stays ignored.
    """
    watched = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]

    def stop(number: int, _frame) -> None:
        for each in (*watched, signal.SIGUSR1):
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for each in watched:
        signal.signal(each, stop)
