"""An utterance's sound, from what an engine makes to the 16-bit samples of the wire."""

from dataclasses import dataclass

import numpy as np

from misod.loudness import Leveller

EDGE_MS = 8.0  # long enough not to click, too short to soften the first consonant


@dataclass
class Samples:
    """One utterance. Counts are for its receipt."""

    total: int = 0
    clipped: int = 0
    nonfinite: int = 0
    leveller: Leveller | None = None  # None: as loud as it comes
    begins: bool = True  # the next sample is an edge

    def finish(self, pcm: np.ndarray, rate_hz: int, last: bool) -> bytes:
        """pcm (n,) float of one step -> to_s16 of it, levelled, the utterance's two edges faded.

        `last`: of the utterance, or of what one voice says of it: another begins as an utterance does.
        """
        first, self.begins = self.begins, last or (self.begins and not pcm.size)
        pcm = self._finite(pcm)
        if self.leveller:
            pcm = self.leveller.process(pcm)
        if first:
            pcm = fade_in(pcm, rate_hz)
        if last:
            pcm = fade_out(pcm, rate_hz)
        return self.to_s16(pcm)

    def to_s16(self, pcm: np.ndarray) -> bytes:
        """pcm (n,) float, full scale +-1 -> signed 16-bit little-endian. Clips first: a bare cast wraps around."""
        pcm = self._finite(pcm)
        self.total += pcm.size
        self.clipped += int((np.abs(pcm) > 1).sum())
        return np.round(np.clip(pcm, -1, 1) * 32767).astype("<i2").tobytes()

    def _finite(self, pcm: np.ndarray) -> np.ndarray:
        finite = np.isfinite(pcm)
        self.nonfinite += pcm.size - int(finite.sum())
        return np.where(finite, pcm, 0.0).astype(np.float32)  # half precision has no 32,767: it would wrap


def fade_in(pcm: np.ndarray, rate_hz: int) -> np.ndarray:
    """pcm (n,) with its first EDGE_MS a raised cosine from zero; a shorter one over its whole length. A copy.

    Only an utterance's edges are faded: at seams between pieces the codec's state runs on, and a fade would be a dip.
    """
    samples = min(len(pcm), round(EDGE_MS / 1000 * rate_hz))
    faded = pcm.copy()
    faded[:samples] *= (0.5 - 0.5 * np.cos(np.pi * np.arange(samples) / max(1, samples))).astype(pcm.dtype)
    return faded


def fade_out(pcm: np.ndarray, rate_hz: int) -> np.ndarray:
    """fade_in's mirror image."""
    return fade_in(pcm[::-1], rate_hz)[::-1]
