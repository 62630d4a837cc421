"""Pieces of speech to one stream of samples: each begins and ends in silence of its own, and with a click."""

import numpy as np

GAP_S = 0.16
FADE_S = 0.008
QUIET = 10 ** (-45 / 20)  # of full scale, RMS of LOOK_S
LOOK_S, KEEP_S = 0.01, 0.02


class Seams:
    """Gives whole frames. `samples`: of all that was joined. A `single` piece is left as it is."""

    def __init__(self, sample_rate: int, frame_samples: int, single: bool, gap_s: float = GAP_S):
        self._rate, self._frame, self._single, self._gap_s = sample_rate, frame_samples, single, gap_s
        self._held = np.zeros(0, np.float32)
        self.samples = 0

    def join(self, pcm: np.ndarray, last: bool, most: int | None = None) -> np.ndarray:
        """The next piece (n,), and after it the gap to the one that follows; no more than `most` samples in all."""
        if not self._single:
            gap = np.zeros(0 if last else int(self._gap_s * self._rate), np.float32)
            pcm = np.concatenate([self._faded(self._trimmed(pcm)), gap])
        if most is not None:
            pcm = pcm[: most - self.samples]
        self.samples += len(pcm)
        pcm = np.concatenate([self._held, pcm])
        if last or self.samples == most:
            return np.pad(pcm, (0, -len(pcm) % self._frame))
        whole = len(pcm) // self._frame * self._frame
        self._held = pcm[whole:]
        return pcm[:whole]

    def _trimmed(self, pcm: np.ndarray) -> np.ndarray:
        """Without the silence at its edges, but for KEEP_S; nothing that can be heard goes."""
        look, keep = int(LOOK_S * self._rate), int(KEEP_S * self._rate)
        looks = np.pad(pcm, (0, -len(pcm) % look)).reshape(-1, look)
        loud = np.flatnonzero(np.sqrt((looks**2).mean(axis=1)) > QUIET)
        if not loud.size:
            return pcm
        return pcm[max(0, loud[0] * look - keep) : (loud[-1] + 1) * look + keep]

    def _faded(self, pcm: np.ndarray) -> np.ndarray:
        size = min(int(FADE_S * self._rate), len(pcm) // 2)
        ramp, pcm = np.linspace(0, 1, size, dtype=np.float32), pcm.copy()
        pcm[:size] *= ramp
        pcm[len(pcm) - size :] *= ramp[::-1]
        return pcm
