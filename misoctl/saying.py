"""The verb `say`: what goes together, what is asked for, and one request or, of --follow, many."""

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import click

from misoctl import detached, voice
from misoctl.client import Client, preflight
from misoctl.floor import Floor
from misoctl.outputs import Outputs
from misoctl.receipt import Hashed, to_json
from misoctl.screen import Screen, is_terminal
from misoctl.speech import read_script, read_text, report, speak
from misoctl.start import connect
from misoctl.talk import hush, tell
from protocol.paths import find_paths

if TYPE_CHECKING:  # 8 ms, where nobody looks on
    from misoctl.watch import Face, Watch


def run(
    text, source, script, follow, stems, sentences, where, play, like, clip_text, wish, no_start, quiet, as_json,
    strict, highlight, events, wait, **options,
) -> None:  # fmt: skip
    _check_together(script, follow, stems, as_json, highlight, events, wait)
    if follow:
        _check_follow(text, source, script, wish)
    data = "--json" if as_json else "--events" if events else ""
    outputs = Outputs(**where, stems=stems, sentences=sentences, data=data)
    if options["voice"] == "?":
        from misoctl import voices

        voices.list_all(options["model"])
        return
    if not wait:
        detached.leave(outputs.target == "-")
    faces, talk, tell_waits = _faces(quiet, highlight, events)
    dialogue = None if script is None else read_script(text, source, script)
    words = dialogue.text if dialogue else "" if follow else read_text(text, source)
    if words is None:
        talk("nothing to say")
        return
    plays = outputs.target is None
    if follow and plays:
        wish = {"when": "overlap"}  # of its lines nobody knows when they come, but `hush` is for them, too
    floor = Floor(wish, plays, words, bool(script), resumes=plays and not (follow or stems or sentences))
    options = {name: value for name, value in options.items() if value is not None}
    options |= {"script": bool(script) or None, "pieces": bool(sentences or faces or floor.wants_pieces) or None}
    options |= voice.one_off(like, clip_text, options, talk)
    if no_start:
        preflight(find_paths())  # before a file is made or a player looked for

    @contextmanager
    def ready() -> Iterator[tuple[Hashed, Client]]:
        with (
            floor,
            outputs.open(play.telling(talk), dialogue and dialogue.names) as sink,
            connect(find_paths(), not no_start, talk) as client,
            voice.suggesting(client, options.get("voice"), options.get("model")),
        ):
            yield sink, client

    with _watching(faces) as watch:
        over = watch.over if watch else iter
        if follow:
            with ready() as (sink, client):
                floor.take(client, lambda: Client(find_paths()), tell_waits, sink, over)
                _follow(client, options, sink, tell_waits, talk, watch, as_json, strict)
        while floor.rest:
            with ready() as (sink, client):
                words = floor.take(client, lambda: Client(find_paths()), tell_waits, sink, over)
                done = speak(client, words, options, sink, tell_waits, watch, came=floor.came)
            if watch and floor.rest:
                watch.cut(floor.skipped, floor.lost)
        if floor.end:
            if watch:
                watch.cut(0, floor.lost)
            floor.report(talk, data)
    if follow or floor.end:
        return
    if as_json:
        click.echo(to_json(done, words, options, sink))
    report(done, quiet, strict)


def _follow(client, options, sink, tell_waits, talk, watch, as_json, strict) -> None:
    from misoctl.follow import Lines, follow_lines

    for done, line in follow_lines(client, Lines(0, talk), options, sink, tell_waits, talk, watch):
        if as_json:
            click.echo(to_json(done, line, options, sink))
        report(done, True, strict)  # figures of each line would be noise


def _check_together(script, follow, stems, as_json, highlight, events, wait) -> None:
    """Raises UsageError."""
    if stems is not None and script is None:
        raise click.UsageError("--stems is for --script")
    if events and as_json:
        raise click.UsageError("--events end with the receipt that --json prints: give one of them")
    if not wait and (as_json or events or highlight or follow):
        raise click.UsageError(
            "--no-wait tells nothing of the speech: not with --json, --events, --highlight or --follow"
        )
    if highlight and not is_terminal():
        raise click.UsageError("--highlight needs a terminal as standard error")


def _check_follow(text, source, script, wish) -> None:
    """Raises UsageError."""
    if text not in ((), ("-",)) or source not in (None, "-") or script is not None:
        raise click.UsageError("--follow reads standard input: give no TEXT, -f or --script")
    if any(wish.values()):
        raise click.UsageError("--follow takes no turns: not with --when, --priority, --app or --resume")
    if sys.stdin is None:  # its descriptor may be another file's by now
        raise click.UsageError("--follow reads standard input, which is closed")


def _watching(faces: "list[Face]") -> "AbstractContextManager[Watch | None]":
    if not faces:
        return nullcontext()
    from misoctl.watch import Watch

    return Watch(*faces)


def _faces(quiet: bool, highlight: bool, events: bool) -> "tuple[list[Face], Callable, Callable]":
    """Who looks on, how to tell a line, and how to tell what is waited for."""
    screen = Screen() if is_terminal() and (highlight or not quiet) else None
    faces: list[Face] = []
    if highlight:
        from misoctl.highlight import Highlight

        faces.append(Highlight(screen))
    progress = screen is not None and not quiet
    if progress:
        from misoctl.progress import Progress

        faces.append(Progress(screen, words=not highlight))
    if events:
        from misoctl.events import Events

        faces.append(Events())
    talk = hush if quiet else screen.tell if screen else tell
    return faces, talk, hush if progress else talk
