"""--highlight: the text on the terminal, sentence after sentence, the word that is heard in reverse."""

from misoctl.screen import ESC, Screen, wrapped
from misoctl.timeline import Piece, Word
from misoctl.watch import Face

ON, OFF = f"{ESC}7m", f"{ESC}27m"  # no colour: NO_COLOR has nothing to say to it


class Highlight(Face):
    def __init__(self, screen: Screen):
        self._screen = screen
        self._piece: Piece | None = None
        self._text, self._places = "", {}

    def word(self, word: Word) -> None:
        if word.piece is not self._piece:
            self._settle()
            self._piece = word.piece
            self._text, self._places = shown(word.piece)
        start, end = self._places.get(word.source or word.spoken, (0, 0))
        size = self._screen.size
        rows = wrapped(self._text, max(1, size.columns - 1))
        at = next((i for i, (a, b) in enumerate(rows) if a <= start < b), 0)
        most = max(1, size.lines - 1)
        first = max(0, min(at - most // 2, len(rows) - most))
        rows = rows[first : first + most]  # of a piece that is higher than the terminal
        self._screen.show([self._text[a:b] for a, b in rows], [self._marked(a, b, start, end) for a, b in rows])

    def close(self) -> None:
        self._settle()

    def _settle(self) -> None:
        if self._piece:
            rows = wrapped(self._text, max(1, self._screen.size.columns - 1))
            self._screen.settle([self._text[a:b] for a, b in rows])
        self._piece = None

    def _marked(self, a: int, b: int, start: int, end: int) -> str:
        start, end = max(a, start), min(b, end)
        if start >= end:
            return self._text[a:b]
        return self._text[a:start] + ON + self._text[start:end] + OFF + self._text[end:b]


def shown(piece: Piece) -> tuple[str, dict[tuple[int, int], tuple[int, int]]]:
    """The piece as it was written, in one line, and where each of its sources is in that; where no source is known, as
    it is spoken. What a terminal would obey is left out."""
    places = [(c, d) for *_, c, d in piece.spans] or [word.spoken for word in piece.words]
    text = piece.text if piece.spans else piece.spoken
    first = min((a for a, _ in places), default=0)
    last = max((b for _, b in places), default=len(text))
    line, at = "", {}
    for i in range(first, last):
        at[i] = len(line)
        character = " " if text[i].isspace() else text[i]
        if character.isprintable() and not (character == " " and line[-1:] in ("", " ")):
            line += character
    at[last] = len(line)
    return line, {(a, b): (at[a], at[b]) for a, b in places}
