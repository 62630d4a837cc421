"""The verbs that speak, `say` and `replay`: what may be asked of them. What they do is loaded when they do it."""

import signal
from typing import ClassVar

import click

from misoctl import kitten, voice
from misoctl.floor import Floor, floor_options
from misoctl.options import Sectioned, keep_alive_option, no_rate, number, output_options, quiet_option, whole
from misoctl.playing.options import play_options
from misoctl.quick import quick_options
from misoctl.talk import hush, tell
from protocol import errors
from protocol.errors import Failure
from protocol.words import KITTENS


class Say(Sectioned):
    sections: ClassVar = {
        "The text": ("source", "script", "follow", "normalize", "emoji", "max_seconds"),
        "The voice": ("model", "voice", "speaker", "like", "clip_text", "session", "quick", "quick_voice"),
        "Where it goes": ("output", "kind", "raw", "stems", "sentences"),
        "How it is played": ("player", "device", "volume", "lead_in_ms", "prebuffer_s", "level"),
        "Where others speak": ("when", "priority", "app", "resume"),
        "What is told": ("quiet", "as_json", "events", "highlight", "strict", "wait"),
        "How freely it speaks": (
            "seed", "preset", "temperature", "min_temperature", "decay_frames", "top_k", "top_p", "min_p", "guidance",
            "depth",
        ),
        kitten.TITLE: KITTENS,
    }  # fmt: skip


@click.command(cls=Say)
@click.argument("text", nargs=-1)
@click.option("-f", "--file", "source", metavar="FILE", help="Read the text from FILE; - is standard input.")
@click.option("--script", metavar="FILE", help="Speak a script, a turn a line: `[0] words` or `anna: words`.")
@click.option("--follow", is_flag=True, help="Speak each line of standard input as soon as it has come.")
@click.option("--no-normalize", "normalize", flag_value=False, default=None, help="Read the text as it is written.")
@click.option(
    "--emoji", type=click.Choice(["drop", "name"]), help="Say the names of emoji; they are dropped otherwise."
)
@number("--max-seconds", "max_seconds", 0.08, 7200, "Stop after this much speech.", "SECONDS")
@click.option("--model", metavar="NAME", help="Speak with this model; `misoctl list` shows which are here.")
@click.option(
    "-v", "--voice", metavar="NAME", callback=voice.chosen, help="One that was learned, or the model's; ? lists them."
)
@whole("--speaker", "speaker", 0, 99, "Which of the model's voices; by default NAME's own, or 0.")
@click.option("--like", metavar="CLIP", help="Speak like this recording, this once; `learn` keeps it.")
@click.option("--text", "clip_text", metavar="WORDS", help="With --like: what is said in CLIP.")
@click.option("--session", metavar="NAME", callback=voice.slug, help="Go on with this dialogue, or begin it.")
@quick_options
@output_options
@click.option("--stems", metavar="DIR", help="With --script: a file of each turn, too.")
@click.option("--split-sentences", "sentences", metavar="DIR", help="A file of each sentence, too: 0001.wav, 0002.wav.")
@play_options
@click.option("--no-normalize-loudness", "level", flag_value=False, default=None, help="As loud as the model makes it.")
@floor_options
@quiet_option
@click.option("--json", "as_json", is_flag=True, help="Print the receipt on standard output.")
@click.option("--events", is_flag=True, help="Print what happens on standard output, as JSON lines: docs/say.md.")
@click.option("--highlight", is_flag=True, help="Show the text on the terminal, the word that is heard in reverse.")
@click.option(
    "--strict", is_flag=True, help="Exit 1 where the speech did not end of itself, at its longest length too."
)
@click.option("--wait/--no-wait", default=True, help="--no-wait: return once the request is accepted, and speak on.")
@whole("--seed", "seed", 0, 2**32 - 1, "Same text, same seed: the same samples.")
@click.option("--preset", type=click.Choice(["stable", "natural", "expressive"]), help="How freely it speaks, by name.")
@number("--temperature", "temperature", 0, 2, "How freely it speaks; 0 always takes the likeliest.")
@number("--min-temperature", "min_temperature", 0, 2, "What the temperature nears as the speech goes on.")
@whole("--decay-frames", "decay_frames", 1, 10_000, "Frames of 80 ms in which it comes 63 % of the way.")
@whole("--top-k", "top_k", 1, 4096, "Draw from the k likeliest codes.")
@number("--top-p", "top_p", 0.01, 1, "Draw from the likeliest codes that together have this share.")
@number("--min-p", "min_p", 0, 1, "Draw from codes at least this likely, as a share of the likeliest.")
@number("--guidance", "guidance", 0, 10, "Over 1: away from what would be said with no text, at twice the work.")
@whole("--depth", "depth", 1, 32, "Experimental: make only the first codebooks of each frame.")
@kitten.options
@keep_alive_option
@click.option("--no-start", is_flag=True, help="Do not start misod; exit 69 where none runs.")
@click.option("-r", "--rate", hidden=True, expose_value=False, callback=no_rate, help="Refused: docs/say.md.")
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


@click.command()
@click.argument("receipt")
@output_options
@quiet_option
@play_options
def replay(receipt, quiet, where, play) -> None:
    """Render the same samples again from the RECEIPT that `say --json` printed.

    \b
      misoctl say --json -o a.wav "Once." > a.json
      misoctl replay a.json -o b.wav
    """
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    from misoctl.client import Client
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
        voice.check_digest(client, receipt, wanted.options.get("voice"), wanted.voice_digest, wanted.model)
        words = floor.take(client, lambda: Client(find_paths()), talk, sink)
        done = speak(client, words, wanted.options | {"model": wanted.model}, sink, talk, came=floor.came)
    if floor.end:
        floor.report(talk)
        return
    report(done, quiet, strict=False)
    if sink.sha256 != wanted.sha256:
        raise Failure(errors.FAILED, f"these are not the samples of {receipt}", "another machine or version made those")
