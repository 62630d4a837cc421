"""The grammars in a process of their own: their Python would hold the interpreter that makes the frames.

It reads runs of text and writes what they are read as, in turn: each is 4 bytes of length, big-endian, and that
many of UTF-8. It ends when its input does, so that it outlives no misod. Started by path, with nothing of misod.
"""

import signal
import struct
import sys
from typing import BinaryIO

import kitten_text_processing

LENGTH = struct.Struct(">I")


def read(stream: BinaryIO) -> str | None:
    """None at the end of the stream."""
    size = stream.read(LENGTH.size)
    if len(size) < LENGTH.size:
        return None
    text = stream.read(LENGTH.unpack(size)[0])
    return text.decode("utf-8", "surrogatepass")


def packed(text: str) -> bytes:
    data = text.encode("utf-8", "surrogatepass")
    return LENGTH.pack(len(data)) + data


def answer(run: str) -> str:
    """What the grammars read a run as; the run itself where they have no reading."""
    try:
        return " ".join(kitten_text_processing.normalize_text(run).split()) or run
    except (ValueError, RecursionError, IndexError, KeyError):  # NoPathError is a ValueError
        return run


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is misod's to obey: it may speak on for a while
    kitten_text_processing.warm()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    while (run := read(source)) is not None:
        sink.write(packed(answer(run)))
        sink.flush()


if __name__ == "__main__":
    main()
