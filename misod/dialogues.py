"""Dialogues: what was said under a session's name, context for what is said under it next. In memory only.

(misod.session.Session is a request on the wire.) What is kept is bounded: of a dialogue the newest segments, of
dialogues those used last.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from misod.voices import FRAME_HZ, Segment

if TYPE_CHECKING:
    from misod.engine import Info, Row

log = logging.getLogger(__name__)

MAX_DIALOGUES = 32
MAX_DIALOGUE_BYTES = 512 << 10  # 160 s of 32 codebooks take 256 KiB: beyond what any model's context holds


@dataclass(frozen=True)
class Dialogue:
    """`model` and `digest`: of the weights that spoke it, and whose codec its codes are of; empty before the first.
    `kept`: see misod.engine.Row."""

    name: str
    model: str = ""
    digest: str = ""
    segments: tuple[Segment, ...] = ()
    kept: str = ""

    @property
    def bytes(self) -> int:
        return sum(map(_bytes_of, self.segments))

    def about(self) -> dict:
        """For a listing."""
        seconds = sum(segment.codes.shape[1] for segment in self.segments) / FRAME_HZ
        about = {"name": self.name, "turns": len(self.segments), "seconds": seconds}
        return about | {"bytes": self.bytes, "model": self.model}

    def fitting(self) -> "Dialogue":
        """Without the oldest segments, where it is over its limit."""
        room, kept = MAX_DIALOGUE_BYTES, len(self.segments)
        while kept and (room := room - _bytes_of(self.segments[kept - 1])) >= 0:
            kept -= 1
        return replace(self, segments=self.segments[kept:])


def _bytes_of(segment: Segment) -> int:
    return segment.codes.nbytes + len(segment.text.encode())


class Dialogues:
    """`dropped` is told the `kept` that nobody will ask for again."""

    def __init__(self, dropped: Callable[[str], None]):
        self._dropped = dropped
        self._kept: dict[str, Dialogue] = {}  # the least recently used first

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str) -> Dialogue:
        """An empty one where there is none."""
        return self._kept.get(name) or Dialogue(name)

    def add(self, info: "Info", row: "Row") -> None:
        """What the row said after all that its dialogue held, without what the model took no longer.

        Others may have spoken in it since, or it was forgotten: then only what was said is new, and where another model
        has begun it, it begins anew.
        """
        began, name = row.say.dialogue, row.say.dialogue.name
        dropped, before = row.dropped, self._kept.get(name, Dialogue(name))
        if before.segments is not began.segments:
            dropped = max(0, dropped - len(began.segments))
        past = before.segments if before.digest == info.digest else ()
        self.forget(name)
        said = (*past, *row.said)[dropped:]
        self._kept[name] = Dialogue(name, info.model, info.digest, said, row.kept).fitting()
        while len(self._kept) > MAX_DIALOGUES:
            self.forget(next(iter(self._kept)))
            log.info("over %d sessions: the one used least recently is forgotten", MAX_DIALOGUES)

    def forget(self, name: str) -> bool:
        """One, or with "" all; False where there is none of that name."""
        if name and name not in self._kept:
            return False
        for gone in [self._kept.pop(each) for each in ([name] if name else list(self._kept))]:
            if gone.kept:
                self._dropped(gone.kept)
        return True

    def listing(self) -> list[dict]:
        return [self._kept[name].about() for name in sorted(self._kept)]
