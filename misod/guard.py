"""Speech that has gone wrong, told from its codes and its sound, frame by frame. docs/guards.md says how the numbers
were found.

Not here: what is done about it. Nor gibberish, which sounds like speech in every way measured here.
"""

import math
from collections import deque
from dataclasses import dataclass
from functools import cache

import numpy as np

SILENCE, REPEAT, HISS, CLIPPING = KINDS = ("silence", "repeat", "hiss", "clipping")

QUIET_DBFS, QUIET_UNDER_DB = -55.0, 30.0  # a frame is quiet under either: of full scale, of the loudest so far (RMS)
QUIET_STAYS_DB = 6.0  # and stays so until it is this much above: noise at the border is one silence
SILENCE_START_S = 1.0  # before the first frame that is not quiet
SILENCE_S = 2.0  # after it: no pause inside a piece of text is as long

MAX_PERIOD = 4  # frames of the longest cycle
REPEAT_S = 0.5  # of frames of which every code is that of one cycle ago
REPEAT_FIRST_S = 1.2  # of which codebook 0 is, while the others may vary

HISS_HZ = (200.0, 6000.0)
HISS_WINDOW_S = 0.0213  # of the spectra, half overlapping, whose mean is looked at: 512 samples at 24 kHz
HISS_FLATNESS = 0.04  # geometric over arithmetic mean of that power spectrum: white noise 0.9, vowels under 0.01
HISS_SPREAD_DB = 8.0  # between the frames of a run: noise keeps its level, whispered syllables do not
HISS_S = 1.0

FULL_SCALE = 0.999
CLIPPING_SHARE = 0.01  # of the samples
CLIPPING_S = 0.5

NOTHING_DB = -120.0


@dataclass(eq=False)
class Cycle:
    """Frames whose first `codebooks` codes (None: all) are those of `period` frames ago."""

    period: int
    codebooks: int | None
    least: int  # of them that are too many
    count: int = 0
    began: int = 0

    def see(self, codes: np.ndarray, past: deque[np.ndarray], quiet: bool, frame: int) -> None:
        before = past[-self.period] if len(past) >= self.period else codes[:0]
        if not np.array_equal(codes[: self.codebooks], before[: self.codebooks]):
            self.count = 0
        elif not quiet:  # silence repeats, and may; nor does it end a loop
            self.began = self.began if self.count else frame
            self.count += 1


class Watch:
    """Sees each frame of one piece of text as it is made. What is drawn anew gets a new Watch.

    `frames` were there before the first that it sees: `began` counts them too. `ignore` names kinds not to tell of.
    copy.deepcopy is a snapshot to return to.
    """

    def __init__(self, frame_rate_hz: float, frames: int = 0, ignore: frozenset[str] = frozenset()):
        self.first = self.frames = frames
        self.began: int | None = None  # the frame, from 0, at which what was told of last began
        self._rate_hz, self._ignore = frame_rate_hz, ignore
        self._loudest_db = NOTHING_DB
        self.spoke = False  # whether a frame was not quiet
        self._quiet = 0  # frames, of the silence that lasts
        self._past: deque[np.ndarray] = deque(maxlen=MAX_PERIOD)
        self._cycles = [
            Cycle(period, codebooks, max(self._frames(least_s), 2 * period))
            for codebooks, least_s in ((None, REPEAT_S), (1, REPEAT_FIRST_S))
            for period in range(1, MAX_PERIOD + 1)
        ]
        self._flat: list[float] = []  # levels in dB of the flat frames that follow each other now
        self._shares: deque[float] = deque(maxlen=self._frames(CLIPPING_S))  # of samples at full scale

    def see(self, codes: np.ndarray, pcm: np.ndarray) -> str | None:
        """codes int (K,) and their sound, pcm float32 (n,), n >= 1 -> which of KINDS it now is, the first, or None."""
        level_db = level(pcm)
        quiet = self._is_quiet(level_db)
        self._quiet = self._quiet + 1 if quiet else 0
        for cycle in self._cycles:
            cycle.see(codes, self._past, quiet, self.frames)
        self._past.append(np.array(codes))
        flat = not quiet and flatness(pcm, self._rate_hz) > HISS_FLATNESS
        self._flat = [*self._flat, level_db] if flat else []
        self._shares.append(float((np.abs(pcm) >= FULL_SCALE).mean()))
        self.frames += 1
        began = {SILENCE: self._silence, REPEAT: self._repeat, HISS: self._hiss, CLIPPING: self._clipping}
        for kind in KINDS:
            if kind not in self._ignore and (frame := began[kind]()) is not None:
                self.began = frame
                return kind
        return None

    def _is_quiet(self, level_db: float) -> bool:
        self._loudest_db = max(self._loudest_db, level_db)
        border = max(QUIET_DBFS, self._loudest_db - QUIET_UNDER_DB) + (QUIET_STAYS_DB if self._quiet else 0)
        self.spoke |= level_db > border
        return level_db <= border

    # Each: the frame at which it began, if there is too much of it.

    def _silence(self) -> int | None:
        too_long = self._quiet >= self._frames(SILENCE_S if self.spoke else SILENCE_START_S)
        return self.frames - self._quiet if too_long else None

    def _repeat(self) -> int | None:
        return min((cycle.began for cycle in self._cycles if cycle.count >= cycle.least), default=None)

    def _hiss(self) -> int | None:
        run = self._flat[-self._frames(HISS_S) :]
        too_long = len(run) == self._frames(HISS_S) and max(run) - min(run) <= HISS_SPREAD_DB
        return self.frames - len(self._flat) if too_long else None

    def _clipping(self) -> int | None:
        if len(self._shares) < self._shares.maxlen or np.mean(self._shares) < CLIPPING_SHARE:
            return None
        return self.frames - len(self._shares) + int(np.flatnonzero(self._shares)[0])

    def _frames(self, seconds: float) -> int:
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
