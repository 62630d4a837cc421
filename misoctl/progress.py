"""What a person at a terminal waits for: a line that is rewritten, and gone at the end."""

import time

from misoctl.receipt import Hashed
from misoctl.screen import Screen
from misoctl.speech import WAITS
from misoctl.timeline import Word
from misoctl.watch import Face
from protocol import messages as m

LONG_WORDS = 60  # some 20 s: less needs no progress
SETTLED_S = 3.0  # of speech, before it says how long the rest will take


class Progress(Face):
    """`words`: whether to count them; where the text itself is shown they need not be."""

    def __init__(self, screen: Screen, words: bool = True):
        self._screen, self._counts = screen, words
        self._text = self._said = ""  # all of it, and its end that is said now
        self._skipped = self._done_to = 0  # characters of all of it: before that end, and heard
        self._from_s = self._heard_s = 0.0
        self._wait, self._since_s = "", 0.0

    def begins(self, text: str, _options: dict, _sink: Hashed) -> None:
        self._said = text
        if not self._skipped:
            self._text = text
        self._done_to, self._from_s = self._skipped, self._heard_s

    def lost(self, _why: str, skipped: int) -> None:
        self._skipped = skipped

    def sees(self, message: m.Message) -> None:
        if isinstance(message, m.Progress) and (wait := WAITS.get(message.state)):
            if wait != self._wait:
                self._wait, self._since_s = wait, time.monotonic()
            waited_s = time.monotonic() - self._since_s
            self._show(self._wait + (f", {waited_s:.0f} s" if waited_s >= 1 else ""))
        elif isinstance(message, m.Pcm) and self._wait:
            self._wait = ""
            self._screen.clear()

    def word(self, word: Word) -> None:
        if word.source and word.piece.text is self._said:
            self._done_to = max(self._done_to, word.piece.skipped + word.source[1])

    def tick(self, heard_s: float) -> None:
        self._heard_s = heard_s
        counts = self._counts and self._done_to > self._skipped and not self._wait
        if counts and (line := self.line(heard_s - self._from_s)):
            self._show(line)

    def line(self, heard_s: float) -> str:
        """As "12 of 340 words, 1:40 left"; nothing of a short text. `heard_s`: of what is said now."""
        words, done = len(self._text.split()), len(self._text[: self._done_to].split())
        if words < LONG_WORDS:
            return ""
        line = f"{done} of {words} words"
        if heard_s < SETTLED_S:
            return line
        left_s = round(heard_s * (len(self._text) - self._done_to) / (self._done_to - self._skipped))
        return f"{line}, {left_s // 60}:{left_s % 60:02} left"

    def close(self) -> None:
        self._screen.clear()

    def _show(self, line: str) -> None:
        self._screen.show([line[: max(1, self._screen.size.columns - 1)]])
