"""Dialogues: what was said under a session's name, context for what is said under it next. In memory only.

(misod.session.Session is a request on the wire.) What is kept is bounded: of a dialogue the newest segments, of
dialogues those used last.
"""

import logging
from dataclasses import dataclass, replace

from misod.voices import FRAME_HZ, Segment

log = logging.getLogger(__name__)

MAX_DIALOGUES = 32
MAX_DIALOGUE_BYTES = 512 << 10  # 160 s of 32 codebooks take 256 KiB: beyond what any model's context holds


@dataclass(frozen=True)
class Dialogue:
    """`model` and `digest`: of the weights that spoke it, and whose codec its codes are of; empty before the first."""

    name: str
    model: str = ""
    digest: str = ""
    segments: tuple[Segment, ...] = ()

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
    def __init__(self):
        self._kept: dict[str, Dialogue] = {}  # the least recently used first

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, name: str) -> Dialogue:
        """An empty one where there is none."""
        return self._kept.get(name) or Dialogue(name)

    def add(self, name: str, model: str, digest: str, said: list[Segment], dropped: int) -> None:
        """What was said, and how many of the oldest the model took no longer: the next request finds what it keeps.

        Where it was forgotten meanwhile, and another model has begun it, it begins anew.
        """
        before = self._kept.pop(name, None)
        past = before.segments if before and before.digest == digest else ()
        self._kept[name] = Dialogue(name, model, digest, (*past, *said)[dropped:]).fitting()
        while len(self._kept) > MAX_DIALOGUES:
            oldest = next(iter(self._kept))
            del self._kept[oldest]
            log.info("over %d sessions: the one used least recently is forgotten", MAX_DIALOGUES)

    def forget(self, name: str) -> bool:
        """One, or with "" all; False where there is none of that name."""
        if name:
            return self._kept.pop(name, None) is not None
        self._kept.clear()
        return True

    def listing(self) -> list[dict]:
        return [self._kept[name].about() for name in sorted(self._kept)]
