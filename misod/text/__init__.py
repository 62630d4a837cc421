"""What is written, to what is said: pieces of text that a model can read, each with where it came from.

docs/text.md has in one table what is read how.
"""

from misod.text.cut import WHOLE, Limits
from misod.text.first import first_sentence
from misod.text.pieces import Manner, Piece, pieces
from misod.text.reader import Reader, cool, warm
from misod.text.script import Script, Turn, turns

__all__ = [
    "WHOLE",
    "Limits",
    "Manner",
    "Piece",
    "Reader",
    "Script",
    "Turn",
    "cool",
    "first_sentence",
    "normalise",
    "pieces",
    "turns",
    "warm",
]


def normalise(text: str) -> str:
    """A text with its numbers, money, dates, times, units and marks written out as they are spoken."""
    return " ".join(piece.text for piece in pieces(text, WHOLE, Manner(at_once=False)))
