"""Who speaks now. Pure: knows no socket, no model and no clock; time comes as an argument.

A job is queued, then prefilling, then speaking or, while its client has given no credit, parked; then it is gone.
"""

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field

from misod.engine import Heard, Row, Say
from misod.pcm import Samples
from protocol.messages import WINDOW_FRAMES

Key = tuple[bytes, int, int]  # (the client's routing id, its request id, a serial number): unique for ever


@dataclass
class Job:
    """One request as the worker sees it: to speak, or (say None) to hear a clip, or to load or free a model."""

    key: Key
    say: Say | None
    model: str | None = ""  # the one it needs; "": whichever is loaded; None: none may be
    keep_alive_s: float | None = None
    clip: bytes = b""  # to hear first: to speak like it, or (say None) to learn it
    clip_text: str = ""
    speaker: int = 0  # of the voice that is learned
    quick: bool = False  # what starts quickly is to be beside the model
    hearing: Generator[None, None, Heard] | None = None  # under way
    row: Row | None = None  # None until it is prefilled
    credit: int = WINDOW_FRAMES  # frames that may be sent before the next ack
    held: deque = field(default_factory=deque)  # frames made that wait for credit
    piece: int = -1  # of the last of them
    end: str | None = None  # why it is over, once all that is held has left
    busy_s: float = 0.0  # prefill and steps, for the real-time factor
    samples: Samples = field(default_factory=Samples)

    @property
    def parked(self) -> bool:
        return self.row is not None and self.credit <= 0

    @property
    def speaking(self) -> bool:
        return self.row is not None and self.credit > 0 and not self.end


class Scheduler:
    def __init__(self, max_rows: int):
        self.max_rows = max_rows
        self._queue: deque[Job] = deque()
        self._rows: dict[Key, Job] = {}

    def submit(self, job: Job) -> None:
        self._queue.append(job)

    def head(self) -> Job | None:
        """The next job in line, which stays there."""
        return self._queue[0] if self._queue else None

    def admit(self) -> Job | None:
        """The next job in line, where a row is free: prefill it. One a step, so that speaking rows do not wait long."""
        if not self._queue or not self.has_room:
            return None
        job = self._queue.popleft()
        self._rows[job.key] = job
        return job

    def ready(self) -> list[Job]:
        """The rows that take part in the next step, in the order they came."""
        return [job for job in self._rows.values() if job.speaking]

    def hearing(self) -> Job | None:
        """The first of those whose clip is being heard."""
        return next((job for job in self._rows.values() if job.hearing), None)

    def due(self) -> Job | None:
        """The first of those that may speak and have something due before they do."""
        return next((job for job in self.ready() if job.row.due), None)

    def credit(self, key: Key, frames: int) -> Job | None:
        """The job that has so much more, if it is still there."""
        if job := self._rows.get(key):
            job.credit += frames
        return job

    def sent(self, job: Job) -> None:
        """A frame of the job went out."""
        job.credit -= 1

    def remove(self, key: Key) -> Job | None:
        """The job leaves, wherever it is; its row, if it has one, is the caller's to release."""
        if job := self._rows.pop(key, None):
            return job
        for job in self._queue:
            if job.key == key:
                self._queue.remove(job)
                return job
        return None

    def waiting(self) -> list[Job]:
        return list(self._queue)

    @property
    def has_room(self) -> bool:
        return len(self._rows) < self.max_rows

    @property
    def speaks(self) -> bool:
        """Whether there are rows, parked ones too."""
        return bool(self._rows)

    @property
    def empty(self) -> bool:
        return not self._queue and not self._rows

    def counts(self) -> tuple[int, int, int]:
        """(queued, speaking, parked)"""
        parked = sum(job.parked for job in self._rows.values())
        return len(self._queue), len(self._rows) - parked, parked
