"""One request as the I/O thread sees it: what was sent, what was acknowledged, how long to wait."""

import itertools
from dataclasses import dataclass, field

from protocol.errors import ProtocolError
from protocol.messages import WINDOW_FRAMES, Learn

SLOW_S = 10.0  # a client that takes nothing for this long is evicted
PROBE_S = 1.0  # a client that waits is sent a word this often: a dead one shows itself by the send that fails


@dataclass
class Session:
    """Times are monotonic seconds."""

    peer: bytes
    id: int
    said_s: float
    seed: int = 0
    speaker: int = 0
    voice: str = ""  # names, as asked for
    dialogue: str = ""
    learn: Learn | None = None  # without its clip
    pieces: bool = False  # it wants to be told them
    speaks: bool = True  # False: it only has a model loaded, or freed
    serial: int = field(default_factory=itertools.count().__next__)
    admitted: bool = False  # it has a row
    sent: int = 0  # frames
    sent_samples: int = 0
    acked: int = 0
    first_pcm_s: float | None = None
    waiting_since_s: float | None = None  # set while the whole window is out
    probed_s: float = field(init=False)
    closing: bool = False  # cancelled: nothing but `done` goes out

    def __post_init__(self) -> None:
        self.probed_s = self.said_s

    @property
    def key(self) -> tuple[bytes, int]:
        return self.peer, self.id

    @property
    def job(self) -> tuple[bytes, int, int]:
        """What the worker calls it: a client may use its id again before the worker's last word came."""
        return self.peer, self.id, self.serial

    @property
    def waits(self) -> bool:
        """For a row, for its clip to be learned, for its client's acks: nothing would show that the client is gone."""
        return not self.closing and (not self.admitted or not self.speaks or self.waiting_since_s is not None)

    def frame_sent(self, samples: int, now_s: float) -> int:
        """Counts one frame; returns its seq."""
        seq = self.sent
        self.sent += 1
        self.sent_samples += samples
        if self.first_pcm_s is None:
            self.first_pcm_s = now_s
        if self.sent - self.acked >= WINDOW_FRAMES:
            self.waiting_since_s = self.probed_s = now_s
        return seq

    def ack(self, seq: int) -> int:
        """The client took all frames up to `seq`. Returns the credit that gives back. Raises ProtocolError."""
        if seq >= self.sent:
            raise ProtocolError("bad_value", f"ack.seq {seq} was not sent yet", self.id)
        gained = max(0, seq + 1 - self.acked)
        self.acked += gained
        if gained:
            self.waiting_since_s = None
        return gained

    def next_deadline_s(self) -> float | None:
        """When to look at this session again, if nothing is heard from it."""
        if not self.waits:
            return None
        probe_s = self.probed_s + PROBE_S
        return probe_s if self.waiting_since_s is None else min(self.waiting_since_s + SLOW_S, probe_s)

    def is_slow(self, now_s: float) -> bool:
        return self.waiting_since_s is not None and now_s >= self.waiting_since_s + SLOW_S

    def wants_probe(self, now_s: float) -> bool:
        return self.waits and now_s >= self.probed_s + PROBE_S
