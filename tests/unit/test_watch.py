"""Who looks on while it is spoken is told of all of the text, also where it was cut and goes on."""

import struct

from misoctl.progress import Progress
from misoctl.receipt import Hashed
from misoctl.watch import Watch
from protocol import messages as m

SENTENCE = "five words are in here. "
TEXT = SENTENCE * 20
SECOND = struct.pack("<h", 9000) * 24_000


class Shown:
    """A screen, as far as progress needs one."""

    size = type("Size", (), {"columns": 80})

    def __init__(self):
        self.lines = []

    def show(self, rows: list[str]) -> None:
        self.lines += rows

    def clear(self) -> None:
        """Nothing is left of it."""


class Nowhere:
    def write(self, pcm: bytes, rate_hz: int) -> None:
        """To no player: it is heard when it is written."""


def speak(watch: Watch, text: str, sentences: int) -> None:
    """So many of it are made, 10 s each."""
    watch.begin(text, {}, Hashed(Nowhere()))
    stream = []
    for number in range(sentences):
        words, spans = SENTENCE.split(), []
        for at in (SENTENCE.index(word) for word in words):
            end = SENTENCE.index(" ", at)
            spans += [at, end, number * len(SENTENCE) + at, number * len(SENTENCE) + end]
        packed = struct.pack(f"<{len(spans)}I", *spans)
        stream.append(m.Piece(id=1, number=number, sentence=number, spoken=SENTENCE.strip(), spans=packed))
        stream += [m.Pcm(id=1, seq=seq, rate=24_000, turn=0, data=SECOND) for seq in range(10)]
    for _ in watch.over(iter(stream)):
        pass


def test_of_what_goes_on_after_an_interruption_progress_is_of_all_of_it():
    shown = Shown()
    watch = Watch(Progress(shown))
    speak(watch, TEXT, 5)
    assert shown.lines[-1].startswith("25 of 100 words, 2:")
    watch.cut(4 * len(SENTENCE), "paused")
    speak(watch, TEXT[4 * len(SENTENCE) :], 1)
    assert shown.lines[-1].startswith("25 of 100 words, 2:")
    watch.cut(0, "cut")
