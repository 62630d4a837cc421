"""Which word is heard when. Pure: knows no player and no clock; times are seconds of the speech itself.

A model does not tell when it says a word. So a piece's sound, from its first to its last that is no silence, is shared
out over its words by their letters; while it is not all here yet, by the pace of the pieces before it.
"""

import re
import struct
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from protocol import messages as m

LETTERS_A_SECOND = 14.0  # until a piece has shown how fast this voice is
LOUD = 300  # of 32,767: a sample above it is no silence
_WORD = re.compile(r"\S+")


@dataclass(frozen=True)
class Word:
    """`spoken`: where it is in the piece's text. `source`: in the text that was given; None: not known."""

    piece: "Piece"
    spoken: tuple[int, int]
    source: tuple[int, int] | None


@dataclass
class Piece:
    text: str  # that was asked for, all of it
    skipped: int  # characters of what was given that come before it
    number: int
    sentence: int
    spoken: str
    spans: list[tuple[int, int, int, int]]
    start_s: float
    end_s: float | None = None  # None: more of it may come
    loud_s: tuple[float, float] | None = None  # its first and its last sound
    words: deque[Word] = field(default_factory=deque)  # not heard yet

    def __post_init__(self):
        spans = self.spans or [(*word.span(), None, None) for word in _WORD.finditer(self.spoken)]
        self.words.extend(Word(self, (a, b), None if c is None else (c, d)) for a, b, c, d in spans)

    def due_s(self, word: Word, pace_s: float) -> float:
        """When it begins. `pace_s`: of a letter, while the piece's length is not known."""
        first_s, last_s = self.loud_s or (self.start_s, self.start_s)
        letters = max(1, len(self.spoken))
        length_s = last_s - first_s
        if self.end_s is None:
            length_s = max(length_s, letters * pace_s)
        return first_s + length_s * word.spoken[0] / letters


class Timeline:
    """Of one or more requests, one after the other. `written_s`: of all sound so far."""

    def __init__(self):
        self.written_s = 0.0
        self._text, self._skipped = "", 0
        self._pieces: deque[Piece] = deque()  # with words that were not heard yet, and the newest
        self._ends: deque[tuple[float, m.Done]] = deque()
        self._pace_s = 1 / LETTERS_A_SECOND

    def begin(self, text: str, skipped: int = 0) -> None:
        """The next request."""
        self._text, self._skipped = text, skipped

    def take(self, message: m.Message) -> Piece | None:
        """What the daemon sent; returns the piece that begins with it."""
        if isinstance(message, m.Piece):
            self._end()
            spans = list(struct.iter_unpack("<4I", message.spans))
            numbers = message.number, message.sentence
            self._pieces.append(Piece(self._text, self._skipped, *numbers, message.spoken, spans, self.written_s))
            return self._pieces[-1]
        if isinstance(message, m.Pcm):
            self._hear(message)
        elif isinstance(message, m.Done):
            self._end()
            self._ends.append((self.written_s, message))
        return None

    def cut(self, heard_s: float) -> None:
        """The rest is not heard: what comes next goes on from here."""
        self._pieces.clear()
        self._ends.clear()
        self.written_s = heard_s

    def heard(self, until_s: float) -> Iterator[Word | m.Done]:
        """What began, or ended, since the last time."""
        while self._pieces:
            piece = self._pieces[0]
            while piece.words and piece.due_s(piece.words[0], self._pace_s) <= until_s:
                yield piece.words.popleft()
            if piece.words or piece.end_s is None:
                break
            self._pieces.popleft()
        while (
            self._ends and self._ends[0][0] <= until_s and not any(p.start_s < self._ends[0][0] for p in self._pieces)
        ):
            yield self._ends.popleft()[1]

    def _hear(self, message: m.Pcm) -> None:
        samples = memoryview(message.data).cast("h")
        start_s, self.written_s = self.written_s, self.written_s + len(samples) / message.rate
        if self._pieces and (max(samples) > LOUD or min(samples) < -LOUD):
            piece = self._pieces[-1]
            piece.loud_s = (piece.loud_s or (start_s,))[0], self.written_s

    def _end(self) -> None:
        """Of the newest piece, whose pace is now known."""
        if not self._pieces or self._pieces[-1].end_s is not None:
            return
        piece = self._pieces[-1]
        piece.end_s = self.written_s
        if piece.loud_s:
            self._pace_s = (piece.loud_s[1] - piece.loud_s[0]) / max(1, len(piece.spoken))
