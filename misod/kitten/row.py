"""One request's place among those that speak: what of its text is where on its way to sound."""

from collections import deque
from collections.abc import Generator
from concurrent.futures import Future
from dataclasses import dataclass, field

from misod.engine import Row
from misod.kitten.around import Voice
from misod.kitten.decode import Batch
from misod.kitten.manner import Manner
from misod.kitten.sampling import Settings
from misod.kitten.seams import Seams
from misod.kitten.spans import Span


@dataclass(frozen=True)
class Piece:
    """Of a text. `tries`: how often it was drawn anew."""

    text: str
    number: int
    tries: int = 0


@dataclass(frozen=True)
class Sounding:
    """A piece whose sound is in the making. `before`: ids of the pieces before it. `flaw`: cap, if it was cut."""

    pcm: Future
    piece: Piece
    before: int
    flaw: str


@dataclass
class KittenRow(Row):
    unspoken: list[Piece] = field(default_factory=list)  # after the one that is spoken
    own: Voice | None = None
    how: Manner | None = None
    settings: Settings | None = None
    emotion: list[int] = field(default_factory=list)
    reading: Generator[None, None, None] | None = None  # its prompt; then there is a batch
    batch: Batch | None = None  # of this row alone; neither: all is drawn
    piece: Piece | None = None  # the one that is read or drawn
    pieces: int = 0
    ids: list[int] = field(default_factory=list)  # drawn for this piece
    most: int = 0  # ids of this piece
    drawn: int = 0  # ids of the pieces before it
    sounds: deque[Sounding] = field(default_factory=deque)
    seams: Seams | None = None
    heard: int = 0  # the number of the piece that was joined last
    all_spans: list[Span] = field(default_factory=list)
    flaw: str = ""  # of a piece that was heard
    fault: str = ""  # the row cannot go on
