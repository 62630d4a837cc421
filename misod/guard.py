"""Speech that has gone wrong, told from its codes and its sound, frame by frame. docs/guards.md says how the numbers
were found.

Not here: what is done about it. Nor gibberish, which sounds like speech in every way measured here.
"""

import math
from collections import deque
from functools import cache

import numpy as np

SILENCE, REPEAT, HISS, CLIPPING = KINDS = ("silence", "repeat", "hiss", "clipping")

QUIET_DBFS, QUIET_UNDER_DB = -55.0, 30.0  # a frame is quiet under either: of full scale, of the loudest so far (RMS)
SILENCE_START_S = 1.0  # before the first frame that is not quiet
SILENCE_S = 2.0  # after it: no pause inside a piece of text is as long

MAX_PERIOD = 4  # frames of the longest cycle
REPEAT_S = 0.5  # of frames of which every code is that of one cycle ago
REPEAT_FIRST_S = 1.2  # of which codebook 0 is, while the others may vary

HISS_HZ = (200.0, 6000.0)
HISS_WINDOW_S = 0.0213  # of the spectra, half overlapping, whose mean is looked at: 512 samples at 24 kHz
HISS_FLATNESS = 0.03  # geometric over arithmetic mean of that power spectrum: white noise 0.9, vowels under 0.01
HISS_SPREAD_DB = 12.0  # noise keeps its level, whispered syllables do not
HISS_S = 1.0

FULL_SCALE = 0.999
CLIPPING_SHARE = 0.02  # of the samples
CLIPPING_S = 0.5

NOTHING_DB = -120.0


class Watch:
    """Sees each frame of one piece of text as it is made; a piece drawn anew gets a new Watch.

    `ignore` names kinds not to tell of. copy.deepcopy is a snapshot to return to.
    """

    def __init__(self, frame_rate_hz: float, ignore: frozenset[str] = frozenset()):
        self.frames = 0
        self.began: int | None = None  # the frame at which what was told of began, from 0
        self._rate_hz = frame_rate_hz
        self._kinds = [(kind, getattr(self, f"_{kind}")) for kind in KINDS if kind not in ignore]
        self._loudest_db = NOTHING_DB
        self._quiet = 0  # frames, all runs up to now
        self._spoke = False
        self._past: deque[np.ndarray] = deque(maxlen=MAX_PERIOD)
        self._whole, self._first = [0] * MAX_PERIOD, [0] * MAX_PERIOD  # by period - 1
        self._flat: list[float] = []  # levels of the run of flat frames
        self._shares: deque[float] = deque(maxlen=self._run(CLIPPING_S))

    def see(self, codes: np.ndarray, pcm: np.ndarray) -> str | None:
        """codes int (K,) and their sound, pcm float32 (n,), n >= 1 -> which of KINDS it now is, the first, or None."""
        self.frames += 1
        level_db = level(pcm)
        self._loudest_db = max(self._loudest_db, level_db)
        quiet = level_db <= max(QUIET_DBFS, self._loudest_db - QUIET_UNDER_DB)
        self._spoke |= not quiet
        self._quiet = self._quiet + 1 if quiet else 0
        self._compare(codes, quiet)
        self._flat = [*self._flat, level_db] if not quiet and flatness(pcm, self._rate_hz) > HISS_FLATNESS else []
        self._shares.append(float((np.abs(pcm) >= FULL_SCALE).mean()))
        for kind, run in self._kinds:
            if frames := run():
                self.began = self.frames - frames
                return kind
        return None

    def _compare(self, codes: np.ndarray, quiet: bool) -> None:
        for p in range(1, MAX_PERIOD + 1):
            before = self._past[-p] if len(self._past) >= p and not quiet else None  # silence repeats, and may
            first = before is not None and codes[0] == before[0]
            self._first[p - 1] = self._first[p - 1] + 1 if first else 0
            self._whole[p - 1] = self._whole[p - 1] + 1 if first and (codes == before).all() else 0
        self._past.append(np.array(codes))

    # Each: how many frames the run has that is too long, or 0.

    def _silence(self) -> int:
        return self._quiet if self._quiet >= self._run(SILENCE_S if self._spoke else SILENCE_START_S) else 0

    def _repeat(self) -> int:
        runs = [(self._whole, REPEAT_S), (self._first, REPEAT_FIRST_S)]
        return max(
            (
                run[p]
                for run, least_s in runs
                for p in range(MAX_PERIOD)
                if run[p] >= max(self._run(least_s), 2 * p + 2)
            ),
            default=0,
        )

    def _hiss(self) -> int:
        least = self._run(HISS_S)
        if len(self._flat) < least or np.ptp(self._flat[-least:]) > HISS_SPREAD_DB:
            return 0
        return len(self._flat)

    def _clipping(self) -> int:
        full = len(self._shares) == self._shares.maxlen
        return len(self._shares) if full and np.mean(self._shares) >= CLIPPING_SHARE else 0

    def _run(self, seconds: float) -> int:
        return math.ceil(seconds * self._rate_hz)


def level(pcm: np.ndarray) -> float:
    """Of pcm (n,), in dB of full scale, RMS."""
    power = float(np.mean(np.square(pcm, dtype=np.float64)))
    return 10 * math.log10(max(power, 10 ** (NOTHING_DB / 10)))


def flatness(pcm: np.ndarray, frame_rate_hz: float) -> float:
    """Of the mean power spectrum of one frame within HISS_HZ: 0, one line, to 1, all alike."""
    samples_hz = len(pcm) * frame_rate_hz
    size = round(HISS_WINDOW_S * samples_hz)
    windows = np.lib.stride_tricks.sliding_window_view(pcm, size)[:: size // 2]
    power = np.square(np.abs(np.fft.rfft(windows * _hann(size)))).mean(axis=0)
    low, high = (round(hz * size / samples_hz) for hz in HISS_HZ)
    band = np.maximum(power[low:high], 1e-12)
    return float(np.exp(np.log(band).mean()) / band.mean())


@cache
def _hann(size: int) -> np.ndarray:
    return np.hanning(size)
