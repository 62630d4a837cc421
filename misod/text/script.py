"""Several speakers in one text: a turn a line, `[speaker] words`; blank lines are pauses."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace

from misod.text.pieces import Piece
from misod.text.reader import Reader
from protocol.messages import speakable

BETWEEN_S, BLANK_S = 0.2, 0.6  # pauses: where the speaker changes, for each blank line
MOST_BLANK = 5  # lines that count
_LINE = re.compile(r"\[(\d{1,2})\] ?(.*)")


@dataclass(frozen=True)
class Turn:
    number: int  # from 0
    speaker: int
    text: str
    start: int = 0  # where in the whole text it is
    pause_s: float = 0.0  # before it


def turns(text: str) -> list[Turn]:
    """Raises ValueError, naming the line, where one is neither blank nor `[speaker] words`."""
    found: list[Turn] = []
    start = blank = 0
    for number, line in enumerate(text.split("\n"), 1):
        match = _LINE.fullmatch(line)
        if match and speakable(match[2]):
            pause_s = BETWEEN_S + BLANK_S * min(blank, MOST_BLANK) if found else 0.0
            found.append(Turn(len(found), int(match[1]), match[2], start + match.start(2), pause_s))
            blank = 0
        elif line.strip():
            raise ValueError(f"line {number} of the script is not `[speaker] words`")
        else:
            blank += 1
        start += len(line) + 1
    if not found:
        raise ValueError("there is nothing to say in this script")
    return found


class Script:
    """Reads turn after turn; the one after next is under way while one is read."""

    def __init__(self, turns: list[Turn], open_reader: Callable[[str], Reader]):
        self._turns, self._open = turns, open_reader
        self._readers = {0: open_reader(turns[0].text)}
        self._now = 0
        self._unread = 0  # in turns that are over

    @property
    def unread(self) -> int:
        """Letters and digits so far that the model has none for."""
        return self._unread + sum(reader.unread for reader in self._readers.values())

    def next(self) -> tuple[Turn, Piece] | None:
        """The next piece and whose it is, its spans those of the whole text; None after the last."""
        while self._now < len(self._turns):
            turn = self._turns[self._now]
            for number in (self._now, self._now + 1):
                if number < len(self._turns) and number not in self._readers:
                    self._readers[number] = self._open(self._turns[number].text)
            if (piece := self._readers[self._now].next()) is not None:
                return turn, _moved(piece, turn.start)
            self._unread += self._close(self._now)
            self._now += 1
        return None

    def close(self) -> None:
        for number in list(self._readers):
            self._close(number)

    def _close(self, number: int) -> int:
        reader = self._readers.pop(number)
        reader.close()
        return reader.unread


def _moved(piece: Piece, start: int) -> Piece:
    spans = tuple((*span[:2], span[2] + start, span[3] + start) for span in piece.spans)
    return replace(piece, spans=spans) if start else piece
