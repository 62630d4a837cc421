"""An utterance's sound, from what an engine makes to the 16-bit samples of the wire."""

from dataclasses import dataclass

import numpy as np

from misod.fades import fade_in, fade_out
from misod.loudness import Leveller


@dataclass
class Samples:
    """One utterance. Counts are for its receipt."""

    total: int = 0
    clipped: int = 0
    nonfinite: int = 0
    leveller: Leveller | None = None  # None: as loud as it comes

    def to_s16(self, pcm: np.ndarray, rate_hz: int, last: bool = False) -> bytes:
        """pcm (n,) float, full scale +-1 -> signed 16-bit little-endian, levelled, its two edges faded."""
        first = self.total == 0
        finite = np.isfinite(pcm)
        self.total += pcm.size
        self.nonfinite += pcm.size - int(finite.sum())
        pcm = np.where(finite, pcm, 0.0).astype(np.float32)  # half precision has no 32,767: it would wrap
        if self.leveller:
            pcm = self.leveller.process(pcm)
        if first:
            pcm = fade_in(pcm, rate_hz)
        if last:
            pcm = fade_out(pcm, rate_hz)
        return self._packed(pcm)

    def _packed(self, pcm: np.ndarray) -> bytes:
        """Clips first: a bare cast wraps around."""
        self.clipped += int((np.abs(pcm) > 1).sum())
        return np.round(np.clip(pcm, -1, 1) * 32767).astype("<i2").tobytes()
