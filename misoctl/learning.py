"""From a recording to what `learn` and `say --like` send of it: sound, words, and the speaker's permission."""

import sys
from collections.abc import Callable

import click

from misoctl.speech import read_text
from misoctl.transcriber import transcribe
from misoctl.voicefile import Clip, read_clip
from protocol import errors
from protocol import messages as m
from protocol.errors import Failure

PACE = (4, 30)  # characters of text a second of speech, in any language and at any speed
NO_WORDS = "a voice is followed better with what is said in it: give it --text"


def check_asks(given: bool) -> None:
    """Raises Failure where there is neither the speaker's permission nor anybody to ask for it."""
    if given:
        return
    if sys.stdin is None or not sys.stdin.isatty() or not sys.stderr.isatty():
        raise Failure(errors.USAGE, "a voice is its speaker's", "--i-have-permission says that you may use it")


def ask_permission(given: bool) -> None:
    """Ask once, on a terminal. Raises Failure without a yes."""
    if given:
        return
    try:
        agreed = click.confirm("Do you have the speaker's permission to use this voice?", err=True)
    except click.Abort:  # Ctrl-D
        agreed = False
    if not agreed:
        raise Failure(errors.FAILED, "nothing was learned: a voice is its speaker's")


def read_recording(
    path: str, text: str | None, text_file: str | None, talk: Callable[[str], None]
) -> tuple[Clip, str | None]:
    """The recording, and what is said in it where that was given. Raises Failure; talks of what is odd."""
    if path == text_file == "-":
        raise click.UsageError("CLIP and --text-file cannot both be standard input")
    words, clip = _read_words(text, text_file), read_clip(path)
    for warning in clip.warnings:
        talk(warning)
    return clip, words


def hear(path: str, clip: Clip, words: str | None, transcriber: str | None, talk: Callable[[str], None]) -> str:
    """What is said in the clip, "" where nobody knows. Talks of what is odd."""
    name = "standard input" if path == "-" else path
    if words is None:
        words = transcribe(clip, transcriber, talk)
        talk(f'heard "{words}"; where that is wrong, give it --text' if words else f"{name}: {NO_WORDS}")
    pace = len(words) / clip.seconds
    if words and not PACE[0] <= pace <= PACE[1]:
        what = f"{len(words)} characters of text for {clip.seconds:.1f} s of sound"
        talk(f"{what}: is that what is said in {name}? Speech has {PACE[0]} to {PACE[1]} a second")
    return words


def _read_words(text: str | None, text_file: str | None) -> str | None:
    """On one line; None where none were given."""
    if text is not None and text_file is not None:
        raise click.UsageError("give --text or --text-file, not both")
    if text is None and text_file is None:
        return None
    words = read_text((), text_file) if text is None else read_text((text,), None)
    words = " ".join((words or "").split())
    if len(words.encode()) > m.MAX_CLIP_TEXT_BYTES:
        raise Failure.of_code("too_long", f"the words of a recording are at most {m.MAX_CLIP_TEXT_BYTES:,} bytes")
    return words
