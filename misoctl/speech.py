"""What `say` does: read the text, choose where it goes, stream it, report."""

import codecs
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import click

from misoctl import detached
from misoctl.client import Client
from misoctl.receipt import Hashed
from protocol import errors
from protocol import messages as m
from protocol.errors import Failure

if TYPE_CHECKING:
    from misoctl.script import Script
    from misoctl.watch import Watch

WAITS = {
    "loading": "loading the model",
    "queued": "waiting for a free row",
    "parked": "",
    "floor": "waiting for the one who speaks",
}


def read_script(words: tuple[str, ...], source: str | None, path: str) -> "Script":
    from misoctl.script import parse

    if words or source is not None:
        raise click.UsageError("give TEXT, -f or --script, one of them")
    script = parse(_read_source(path, ()), "standard input" if path == "-" else path)
    _check_size(len(script.text.encode()))
    return script


def read_text(words: tuple[str, ...], source: str | None) -> str | None:
    """The text to speak; None where a file or a pipe holds nothing speakable, which is no error there."""
    if words and source is not None:
        raise click.UsageError("give TEXT or -f, not both")
    if words and words != ("-",):
        text = " ".join(words)
        _check_encoding(text)
        if not m.speakable(text):
            raise click.UsageError("there is nothing to say in this text: give it words")
        _check_size(len(text.encode()))
        return text
    text = _read_source(source, words)
    return text if m.speakable(text) else None


def _read_source(source: str | None, words: tuple[str, ...]) -> str:
    if source in (None, "-"):
        if sys.stdin is None or (source is None and not words and sys.stdin.isatty()):
            raise click.UsageError('give TEXT, -f FILE, or pipe it in: misoctl say "Hello"')
    name = "standard input" if source in (None, "-") else source
    limit = len(codecs.BOM_UTF8) + m.MAX_TEXT_BYTES + 1  # enough to know that it is too long
    try:
        if source in (None, "-"):
            data = sys.stdin.buffer.read(limit)
        else:
            with open(source, "rb") as file:
                data = file.read(limit)
    except OSError as error:
        raise Failure(errors.NO_INPUT, f"cannot read {name}: {error.strerror}") from None
    _check_size(len(data.removeprefix(codecs.BOM_UTF8)))
    try:
        return data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        message = f"{name} is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}"
        raise Failure(errors.BAD_DATA, message, "convert it with `iconv -t utf-8`") from None


def _check_size(size: int) -> None:
    if size > m.MAX_TEXT_BYTES:
        raise Failure.of_code(
            "too_long", f"the text is over {m.MAX_TEXT_BYTES:,} bytes, the most that one request takes"
        )


def _check_encoding(text: str) -> None:
    """Bytes of argv that are no UTF-8 arrive as lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        offset, byte = len(text[: error.start].encode()), ord(text[error.start]) & 0xFF
        message = f"TEXT is not UTF-8: byte {offset} is 0x{byte:02x}"
        raise Failure(errors.BAD_DATA, message, "convert it with `iconv -t utf-8`") from None


def speak(
    client: Client,
    text: str,
    options: dict,
    sink: Hashed,
    tell: Callable[[str], None],
    watch: "Watch | None" = None,
    goes_on: tuple[str, ...] = (),
    came: Callable[[m.Message], None] = lambda _: None,
) -> m.Done:
    """Stream one request into `sink`. Interrupted, or cancelled by misod, it closes the sink first: silence at once.

    `goes_on`: codes of errors after which the sink is written on.
    """
    if sink.player:
        sink.player.expect(text, options.get("max_seconds"))
    stream = client.say(text=text, **options)
    if watch:
        watch.begin(text, options, sink)
    try:
        for message in telling(watch.over(stream) if watch else stream, tell):
            came(message)
            _take(message, sink)
    except BaseException as error:
        try:
            if not (isinstance(error, Failure) and error.code in goes_on):
                sink.close(whole=False)
        finally:
            stream.close()  # cancels
        raise
    return message  # a stream's last


def _take(message: m.Message, sink: Hashed) -> None:
    if isinstance(message, m.Accepted):
        detached.accepted()
        if sink.player:
            sink.player.accepted(message.rtf)
    elif isinstance(message, m.Piece):
        sink.see(message)
    elif isinstance(message, m.Pcm):
        sink.see(message)
        sink.write(message.data, message.rate)
    elif isinstance(message, m.Done) and message.end == "cancelled":
        sink.close(whole=False)
    elif isinstance(message, m.Done) and sink.player:
        sink.player.made()


def telling(stream: Iterator[m.Message], tell: Callable[[str], None]) -> Iterator[m.Message]:
    """What comes, in order; what is waited for is told, once each time it changes."""
    said = ""
    for message in stream:
        if isinstance(message, m.Progress):
            wait = WAITS.get(message.state, message.state)
            if wait and wait != said:
                tell(wait)
                said = wait
        yield message


def report(done: m.Done, quiet: bool, strict: bool) -> None:
    """What of the receipt a person wants to know. Raises Failure where the speech was not finished."""
    if done.end not in ("eos", "cap"):
        raise Failure(errors.FAILED, f"the speech ended early ({done.end})")
    if not done.samples:
        raise Failure(errors.FAILED, f"no sound was made of this text ({done.end})", "try another --seed")
    if strict and done.end != "eos":
        raise Failure(errors.FAILED, "the speech reached its longest allowed length and was cut", "try another --seed")
    if quiet:
        return
    if done.unread:
        click.echo(
            f"misoctl: {done.unread} letters of the text were left out: {done.model} has none for them", err=True
        )
    if done.not_quick:
        click.echo(f"misoctl: no quick start: {done.not_quick}", err=True)
    if done.end == "cap":
        click.echo("misoctl: the speech reached its longest allowed length and was cut", err=True)
    if sys.stderr is not None and sys.stderr.isatty():
        made = f"{done.seconds:.1f} s made in {done.seconds * done.rtf:.1f} s"
        click.echo(f"misoctl: {made}, first sound after {done.ttfa_ms:.0f} ms, seed {done.seed}", err=True)
