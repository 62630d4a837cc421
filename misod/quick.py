"""A quick start: KittenTTS 2 says the first sentence, the model the rest. One engine around the two.

Each says what it would say of its part alone, from the same seed, levelled and faded by itself: so there is no click
where the second begins. Kitten goes first. Once its first piece is drawn and its sound is made, on a thread of its own,
the model reads and makes its part, which is held here until it is heard.
"""

import math
from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from misod import text
from misod.engine import Chunk, Engine, Fault, Heard, Memory, ModelError, Models, Row, RowFault, Say, is_kitten
from misod.weights.progress import size

if TYPE_CHECKING:  # it loads mlx
    from misod.kitten.engine import KittenEngine
    from misod.kitten.row import KittenRow

QUICK = "kitten"  # the model's name
AHEAD = 40  # frames that the model makes before they can be heard: as many as a client may be sent ahead
SLICE_S = 0.08  # of kitten's work between two frames of the model


def beside(main: Engine, models: Models) -> "QuickStart":
    """`main`, and kitten loaded beside it. Raises ModelError; then `main` is as it was."""
    if main.info.engine == QUICK:
        raise ModelError(f"{main.info.model} starts as quickly as it can: nothing goes beside it", "bad_value")
    directory = models.find(QUICK)
    if not is_kitten(directory):
        raise ModelError(f"{directory} is no KittenTTS 2: only that starts quickly")
    needed_bytes = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())
    if needed_bytes > (room_bytes := models.room_bytes()):
        message = f"{QUICK} takes about {size(needed_bytes)} beside {main.info.model}, and there is {size(room_bytes)}"
        raise ModelError(message, "no_room")
    kitten = models.open(directory)
    if (kitten.sample_rate, kitten.frame_samples) != (main.sample_rate, main.frame_samples):
        kitten.close()
        raise ModelError(f"{main.info.model} makes {main.sample_rate} samples a second, {QUICK} does not", "bad_value")
    return QuickStart(main, kitten)


def prefill(engine: Engine, say: Say) -> Row:
    """As the engine does; where a quick start was asked for and is none, the row says why."""
    row = engine.prefill(say)
    if say.quick is not None and not (row.quick_digest or row.not_quick):
        model = engine.info.model
        row.not_quick = f"{QUICK} is not loaded beside {model}: `misoctl load --quick-start`"
        if engine.info.engine == QUICK:
            row.not_quick = f"{model} speaks all of it"
    return row


@dataclass
class QuickRow(Row):
    first: "KittenRow | None" = None
    opening: bool = True  # kitten is not done
    heard: deque[Chunk] = field(default_factory=deque)  # of kitten's, to be given
    later: Say | None = None  # what the model is to say; None: kitten says all
    pause_samples: int = 0  # between the two, beyond what each has of it
    rest: Row | None = None  # None until the model has begun
    held: deque[Chunk] = field(default_factory=deque)  # of the model's, to be given after kitten's
    before: int = 0  # pieces of `spoken` that are not of the part that is given now
    left_samples: int | None = None  # that may still be given
    flaw: str = ""  # how kitten ended that did not end of itself

    @property
    def makes(self) -> bool:
        """Whether the model is to make a frame of it: while kitten is heard, some ahead; then one at a time."""
        if self.rest is None or (self.held and self.held[-1].end):
            return False
        return len(self.held) < AHEAD if self.opening or self.heard else not self.held


class QuickStart:
    """See misod.engine.Engine. All that is no quick start is the model's."""

    def __init__(self, main: Engine, kitten: "KittenEngine"):
        self._main, self._kitten = main, kitten
        self.info = replace(main.info, quick_digest=kitten.info.digest)
        self.sample_rate, self.frame_samples = main.sample_rate, main.frame_samples
        self.max_rows = main.max_rows

    def hear(self, pcm: np.ndarray, words: str, speaker: int) -> Generator[None, None, Heard]:
        return self._main.hear(pcm, words, speaker)

    def prefill(self, say: Say) -> Row:
        """Kitten's part; the model's is begun when it is due."""
        if say.quick is None:
            return self._main.prefill(say)
        if say.quick and say.quick not in self._kitten.info.voices:
            raise RowFault(f"{QUICK} has no voice {say.quick}: `misoctl voices --model {QUICK}`", "bad_value")
        parted = text.first_sentence(say.text, text.Manner(say.normalize, say.emoji or "drop"))
        if parted is None:
            row = self._main.prefill(say)
            row.not_quick = "where the first sentence ends cannot be told"
            return row
        cut, pause_s = parted
        how = {"max_seconds": say.max_seconds, "normalize": say.normalize, "level": say.level}
        first = self._kitten.prefill(Say(say.text[:cut], say.seed, own_voice=say.quick, **how))
        return QuickRow(
            say=say,
            style=first.style,
            voice_digest=say.voice.digest if say.voice else "",
            quick_digest=self.info.quick_digest,
            first=first,
            later=replace(say, text=say.text[cut:], quick=None) if cut < len(say.text) else None,
            pause_samples=round(pause_s * self.sample_rate / self.frame_samples) * self.frame_samples,
            left_samples=say.max_seconds and self._samples(say.max_seconds),
        )

    def _samples(self, seconds: float) -> int:
        return math.ceil(int(seconds * self.sample_rate) / self.frame_samples) * self.frame_samples

    def _begin(self, row: QuickRow) -> None:
        """The model's part. Raises RowFault."""
        row.due = None
        try:
            row.rest = self._main.prefill(row.later)
        except RowFault as fault:
            if fault.code != "unspeakable":
                raise
            row.unread = sum(c.isalnum() for c in row.later.text)  # as at the end of any text
            row.later = None
        else:
            row.style, row.usual_lufs = row.rest.style, row.rest.usual_lufs
            row.voice_digest = row.rest.voice_digest

    def step(self, rows: list[Row]) -> list[Chunk | Fault]:
        """Kitten first. Beside it the model makes a frame of each row that is its own, or is to be ready in time."""
        opening = [row for row in rows if isinstance(row, QuickRow) and row.opening]
        making = [row for row in rows if not isinstance(row, QuickRow) or row.makes]
        results: dict[int, Chunk | Fault | None] = {}
        if opening:
            heard = self._kitten.step([row.first for row in opening], SLICE_S if making else None)
            results |= {id(row): _heard(row, chunk) for row, chunk in zip(opening, heard, strict=True)}
            for row in opening:
                if row.later and not row.rest and (row.heard or row.first.sounds):
                    row.due = partial(self._begin, row)
        if making:
            made = self._main.step([row.rest if isinstance(row, QuickRow) else row for row in making])
            for row, chunk in zip(making, made, strict=True):
                results[id(row)] = results.get(id(row)) or _held(row, chunk)
        return [results.get(id(row)) or self._give(row) for row in rows]

    def _give(self, row: QuickRow) -> Chunk:
        """Nothing before the model has begun: what is wrong with its part is told before any sound."""
        if row.heard and not row.due:
            return self._told(row, row.heard.popleft(), row.first)
        if row.held and not (row.opening or row.heard):
            return self._told(row, row.held.popleft(), row.rest)
        return Chunk(np.zeros(0, np.float32))

    def _told(self, row: QuickRow, chunk: Chunk, part: Row) -> Chunk:
        """What is given of a chunk of the part, and in the row what a receipt tells of it."""
        self._tell(row, part, len(part.spoken) - 1 if chunk.end else chunk.piece)
        piece, pcm, end = row.before + chunk.piece, chunk.pcm, chunk.end
        if end and part is row.first:
            row.before, row.flaw = len(row.spoken), end.removeprefix("eos")
            end = None if row.later else end
            if row.pause_samples:
                row.held.appendleft(Chunk(np.zeros(row.pause_samples, np.float32), piece=-1, seam=True))
        elif end:
            end = row.flaw or end
        if row.left_samples is not None:
            pcm = pcm[: row.left_samples]
            row.left_samples -= len(pcm)
            end = end or (None if row.left_samples else "cap")
        return Chunk(pcm, end, chunk.turn, piece, chunk.seam or bool(chunk.end and not end))

    def _tell(self, row: QuickRow, part: Row, last: int) -> None:
        """Of the part's pieces up to number `last`."""
        cut = len(row.say.text) - len(row.later.text) if part is row.rest else 0
        for piece in range(len(row.spoken) - row.before, last + 1):
            shift = len(" ".join([*row.spoken, ""]))
            row.spans += [(a + shift, b + shift, c + cut, d + cut) for a, b, c, d in part.spans_of(piece)]
            row.spoken.append(part.spoken[piece])
            row.sentences.append(0 if part is row.first else 1 + (part.sentences[piece] if part.sentences else piece))
        row.mended = [*row.first.mended, *(row.rest.mended if row.rest else [])]
        if row.rest:
            row.unread, row.dropped = row.rest.unread, row.rest.dropped

    def release(self, row: Row) -> None:
        if not isinstance(row, QuickRow):
            self._main.release(row)
            return
        self._kitten.release(row.first)
        if row.rest:
            self._main.release(row.rest)

    def keep(self, digest: str) -> None:
        self._main.keep(digest)

    def forget(self, digest: str) -> None:
        self._main.forget(digest)

    def prepare(self) -> bool:
        return self._main.prepare()

    def memory(self) -> Memory:
        return self._main.memory()

    def close(self) -> None:
        self._kitten.close()
        self._main.close()


def _heard(row: QuickRow, chunk: Chunk | Fault) -> Fault | None:
    """Of kitten. What there is to hear waits in the row."""
    if isinstance(chunk, Fault):
        return replace(chunk, message=f"{QUICK}, which begins: {chunk.message}")
    row.heard += [chunk] if len(chunk.pcm) or chunk.end else []
    row.opening = chunk.end is None
    return None


def _held(row: Row, chunk: Chunk | Fault) -> Chunk | Fault | None:
    """Of the model: as it is, but for what waits in a quick start's row."""
    if isinstance(chunk, Fault) or not isinstance(row, QuickRow):
        return chunk
    row.held += [chunk] if len(chunk.pcm) or chunk.end else []
    return None
