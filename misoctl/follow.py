"""--follow: lines of standard input, spoken as they come, one after the other on one connection, through one player.

A line is asked for as soon as the one before it has been made, while that is still heard.
"""

import os
import re
import threading
from collections.abc import Callable, Iterator
from queue import Empty, Queue

from misoctl.client import Client
from misoctl.receipt import Hashed
from misoctl.speech import speak
from misoctl.watch import Watch
from protocol import errors
from protocol import messages as m
from protocol.errors import Failure

TOGETHER_BYTES = 2000  # of lines that wait, in one request: over a minute of speech
WAITING_LINES = 1000  # then they are read no further: whoever writes them waits
BETWEEN = "\n\n"  # each line is a paragraph
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")  # a coloured log

Tell = Callable[[str], None]


def follow_lines(
    client: Client, lines: "Lines", options: dict, sink: Hashed, tell_waits: Tell, tell: Tell, watch: Watch
) -> Iterator[tuple[m.Done, str]]:
    """Each request's receipt and text, once all of it was made."""
    for text in lines:
        try:
            yield speak(client, text, options, sink, tell_waits, watch, goes_on=("unspeakable",)), text
        except Failure as failure:
            if failure.code != "unspeakable":
                raise
            tell(f"left out: {failure.message}")


class Lines:
    """Texts to speak, from `descriptor`: all lines that wait, joined. What cannot be spoken is left out; of what is no
    text, or too long, that is told."""

    def __init__(self, descriptor: int, tell: Tell):
        self._descriptor, self._tell = descriptor, tell
        self._queue: Queue[str | OSError | None] = Queue(WAITING_LINES)
        self.thread = threading.Thread(target=self._read, name="lines", daemon=True)
        self.thread.start()

    def __iter__(self) -> Iterator[str]:
        following = self._queue.get()
        while following is not None:
            if isinstance(following, OSError):
                raise Failure(errors.NO_INPUT, f"cannot read standard input: {following.strerror}")
            text, following = following, self._next()
            while isinstance(following, str) and following and _fit(text, following):
                text, following = text + BETWEEN + following, self._next()
            yield text
            if following == "":
                following = self._queue.get()

    def _next(self) -> str | OSError | None:
        """The line that waits; "" where none does."""
        try:
            return self._queue.get_nowait()
        except Empty:
            return ""

    def _read(self) -> None:
        try:
            for number, line in enumerate(split(self._chunks()), 1):
                if text := self._text_of(line, number):
                    self._queue.put(text)
            self._queue.put(None)
        except OSError as error:
            self._queue.put(error)

    def _chunks(self) -> Iterator[bytes]:
        while chunk := os.read(self._descriptor, 1 << 16):
            yield chunk

    def _text_of(self, line: bytes | None, number: int) -> str:
        """ "" where there is nothing to speak."""
        if line is None:
            self._tell(f"line {number} is over {m.MAX_TEXT_BYTES:,} bytes: left out")
            return ""
        try:
            text = ESCAPES.sub("", line.decode().removeprefix("\ufeff")).rstrip("\r").rpartition("\r")[2]
        except UnicodeDecodeError as error:
            self._tell(f"line {number} is not UTF-8 (byte {error.start} is 0x{line[error.start]:02x}): left out")
            return ""
        return text if m.speakable(text) else ""


def _fit(text: str, following: str) -> bool:
    return len(text.encode()) + len(following.encode()) < TOGETHER_BYTES


def split(chunks: Iterator[bytes]) -> Iterator[bytes | None]:
    """Lines without their ends, the last with or without one; None in place of one that is too long for a request."""
    held, too_long = b"", False
    for chunk in chunks:
        *ended, rest = chunk.split(b"\n")
        for part in ended:
            line = held + part
            yield None if too_long or len(line) > m.MAX_TEXT_BYTES else line
            held, too_long = b"", False
        held += rest
        if len(held) > m.MAX_TEXT_BYTES:
            held, too_long = b"", True
    if held or too_long:
        yield None if too_long else held
