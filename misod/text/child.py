"""The grammars in a process of their own: their Python would hold the interpreter that makes the frames.

It reads runs of text and writes what they are read as, in turn, a line each: neither holds a line's end. It ends
when its input does, so that it outlives no misod. Started by path, with nothing of misod.
"""

import signal
import sys

import kitten_text_processing

CODING = "utf-8", "surrogatepass"
END = b"\n"


def answer(run: str) -> str:
    """What the grammars read a run as; the run itself where they have no reading."""
    try:
        return " ".join(kitten_text_processing.normalize_text(run).split()) or run
    except (ValueError, RecursionError, IndexError, KeyError):  # NoPathError is a ValueError
        return run


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is misod's to obey: it may speak on for a while
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # a misod that ended wants no answer, nor a traceback in its log
    kitten_text_processing.warm()
    while (line := sys.stdin.buffer.readline()).endswith(END):
        sys.stdout.buffer.write(answer(line[:-1].decode(*CODING)).encode(*CODING) + END)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
