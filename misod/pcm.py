"""Float samples to the 16-bit samples of the wire."""

from dataclasses import dataclass

import numpy as np


@dataclass
class Samples:
    """Counts over one utterance, for its receipt."""

    total: int = 0
    clipped: int = 0
    nonfinite: int = 0

    def to_s16(self, pcm: np.ndarray) -> bytes:
        """pcm (n,) float, full scale +-1 -> signed 16-bit little-endian. Clips first: a bare cast wraps around."""
        finite = np.isfinite(pcm)
        self.total += pcm.size
        self.nonfinite += pcm.size - int(finite.sum())
        pcm = np.where(finite, pcm, 0.0).astype(np.float32)  # half precision has no 32,767: it would wrap
        self.clipped += int((np.abs(pcm) > 1).sum())
        return np.round(np.clip(pcm, -1, 1) * 32767).astype("<i2").tobytes()
