"""Loudness: what ITU-R BS.1770-4 measures of mono sound as it comes, and a slow gain that brings it to a target.

Nothing is delayed: what goes in comes out of the same call. Gain and measure move on a grid of 100 ms from the first
sample on, so they do not depend on how the sound is cut into calls. Not here: what a voice's usual loudness is.
That is a number of its config.json, and start_gain_db is made of it, so that the same request gives the same bytes.
"""

import math
from collections import deque
from functools import cache

import numpy as np

from misod.limiter import Limiter

# BS.1770-4, annex 1. A block is four hops: 400 ms, 75 % overlap.
HOP_S, BLOCK_HOPS = 0.1, 4
OFFSET_LU = -0.691
ABSOLUTE_GATE_LUFS, RELATIVE_GATE_LU = -70.0, -10.0

# The K weighting: BS.1770-4 gives only the 48 kHz coefficients (tables 1 and 2). These are their analogue prototypes,
# as Brecht De Man derived them ("Evaluation of Implementations of the EBU R128 Loudness Measurement", AES 145, 2018):
# at 48 kHz they give the tables back.
SHELF_HZ, SHELF_Q, SHELF_DB, SHELF_SLOPE = 1681.974450955533, 0.7071752369554196, 3.999843853973347, 0.4996667741545416
PASS_HZ, PASS_Q = 38.13547087602444, 0.5003270373238773

TARGET_LUFS = -18.0
GAIN_DB = (-20.0, 24.0)  # beyond these something else is wrong, and noise would be lifted with the speech
SLEW_DB_PER_S = 9.5  # a listener hears a level come up, not a jump: under 1 dB in any 100 ms
RECENT_BLOCKS = 200  # 20 s of speech: a long text may change its level, a sentence may be quiet
# From 400 ms of speech its loudness is known to about 3 dB, from more of it better: a gain that is off by less drifts,
# and only what is more than that is made good at once. So a voice that starts right keeps the dynamics of its speech.
SLACK_DB, SLACK_MIN_DB = 3.0, 0.5  # the first shrinks as 400 ms over what was heard
FAST_S, DRIFT_S = 0.2, 2.0  # time constants beyond the slack and within it

FILTER_SAMPLES, FILTER_SEGMENTS = 48, 40  # 1,920 samples, a frame, are filtered at once


class KFilter:
    """The K weighting of one stream. process: (n,) -> (n,) float64, any n; the state runs on.

    A recursive filter without a loop over samples: in segments of 48, each is a product with the impulse response plus
    what the state at its start goes on to give; the states at all starts are one product more.
    """

    def __init__(self, rate_hz: int):
        self._toeplitz, self._decay, self._reach, self._powers, self._chain = _matrices(rate_hz)
        self._state = np.zeros(4)

    def process(self, x: np.ndarray) -> np.ndarray:
        step = FILTER_SAMPLES * FILTER_SEGMENTS
        if len(x) <= step:
            return self._run(x)
        return np.concatenate([self._run(x[i : i + step]) for i in range(0, len(x), step)])

    def _run(self, x: np.ndarray) -> np.ndarray:
        n = len(x)
        M, rest = divmod(n, FILTER_SAMPLES)
        padded = np.zeros((M + 1, FILTER_SAMPLES))
        padded.ravel()[:n] = x
        gained = padded[:M] @ self._reach.T  # (M, 4): the state each segment alone would leave
        size = 4 * (M + 1)
        starts = (self._chain[:size, :size] @ np.concatenate([self._state, gained.ravel()])).reshape(M + 1, 4)
        last = padded[M, :rest]
        self._state = self._powers[rest] @ starts[M] + self._reach[:, FILTER_SAMPLES - rest :] @ last
        return (padded @ self._toeplitz.T + starts @ self._decay.T).ravel()[:n]


class Meter:
    """Gated loudness of one mono stream, BS.1770-4. feed any number of samples; read `lufs` at any time."""

    def __init__(self, rate_hz: int):
        self.hop_samples = round(HOP_S * rate_hz)
        self._filter = KFilter(rate_hz)
        self._open = 0.0  # the sum of squares of the hop that is not full yet,
        self._filled = 0  # and its samples
        self._hops: deque[float] = deque(maxlen=BLOCK_HOPS)
        self._blocks: list[float] = []  # mean squares above the absolute gate

    def feed(self, x: np.ndarray) -> list[tuple[float, float | None]]:
        """x (n,) -> (mean square of it, mean square of the block it completes or None) of each hop that is now full."""
        if not len(x):
            return []
        squares = np.square(self._filter.process(x))
        full = []
        while self._filled + len(squares) >= self.hop_samples:
            head, squares = np.split(squares, [self.hop_samples - self._filled])
            full.append(self._close((self._open + float(head.sum())) / self.hop_samples))
            self._open, self._filled = 0.0, 0
        self._open += float(squares.sum())
        self._filled += len(squares)
        return full

    def _close(self, hop: float) -> tuple[float, float | None]:
        self._hops.append(hop)
        if len(self._hops) < BLOCK_HOPS:
            return hop, None
        block = sum(self._hops) / BLOCK_HOPS
        if block > ABSOLUTE_GATE:
            self._blocks.append(block)
        return hop, block

    @property
    def lufs(self) -> float | None:
        """Of all so far; None until a block (400 ms) was above the absolute gate."""
        return to_lufs(gated_mean(self._blocks)[0]) if self._blocks else None


class Leveller:
    """Brings one mono stream to target_lufs by a slow gain, and keeps its peaks under ceiling_dbfs.

    The gain starts at start_gain_db and stands still while there is silence. Same calls, same bytes. Samples that are
    not finite are the caller's to remove. `after`: what came out of that one counts as heard before.
    """

    def __init__(
        self,
        rate_hz: int,
        target_lufs: float = TARGET_LUFS,
        ceiling_dbfs: float = -1.0,
        start_gain_db: float = 0.0,
        after: "Leveller | None" = None,
    ):
        self._target_lufs = target_lufs
        self._heard, self._made = Meter(rate_hz), after._made if after else Meter(rate_hz)
        self._limiter = Limiter(rate_hz, ceiling_dbfs)
        self._recent: deque[float] = deque(maxlen=RECENT_BLOCKS)
        self._speech_hops = BLOCK_HOPS - 1
        start = float(np.clip(start_gain_db, *GAIN_DB))
        self._from_db = self._to_db = start  # where the gain was as this hop began, where it is as it ends
        self._into = 0  # samples of this hop that are past

    def process(self, pcm: np.ndarray) -> np.ndarray:
        """float32 (n,) -> float32 (n,). Raises ValueError where a sample is not finite; then nothing was heard."""
        if not np.isfinite(pcm).all():
            raise ValueError("a sample to level is not finite")
        if not len(pcm):
            return np.zeros(0, np.float32)
        hop = self._heard.hop_samples
        at, gains = [-self._into, hop - self._into], [self._from_db, self._to_db]
        for energy, block in self._heard.feed(pcm):
            self._from_db, self._to_db = self._to_db, self._to_db + self._move_db(energy, block)
            at.append(at[-1] + hop)
            gains.append(self._to_db)
        self._into = len(pcm) - at[-2]
        ramp = np.interp(np.arange(len(pcm)), at, from_db(np.array(gains)))
        levelled = self._limiter.process(pcm * ramp).astype(np.float32)
        self._made.feed(levelled)
        return levelled

    def _move_db(self, energy: float, block: float | None) -> float:
        """How far the gain goes in the next hop, after one of this mean square."""
        if block is not None and block > ABSOLUTE_GATE:
            self._recent.append(block)
        if not self._recent:
            return 0.0
        loud, gate = gated_mean(self._recent)
        if energy <= gate:
            return 0.0
        self._speech_hops += 1
        error = float(np.clip(self._target_lufs - to_lufs(loud), *GAIN_DB)) - self._to_db
        slack = max(SLACK_MIN_DB, SLACK_DB * BLOCK_HOPS / self._speech_hops)
        speed = min(SLEW_DB_PER_S, abs(error) / DRIFT_S + max(0.0, abs(error) - slack) / FAST_S)
        return math.copysign(speed * HOP_S, error)

    @property
    def gain_db(self) -> float:
        """At the last sample so far, without the limiter."""
        share = self._into / self._heard.hop_samples
        return float(to_db((1 - share) * from_db(self._from_db) + share * from_db(self._to_db)))

    @property
    def output_lufs(self) -> float | None:
        """Gated loudness of what came out so far; None while nothing was heard."""
        return self._made.lufs


def measure(pcm: np.ndarray, rate_hz: int) -> float | None:
    """Gated loudness of a whole mono recording (n,), LUFS; None where nothing is above the absolute gate."""
    meter = Meter(rate_hz)
    meter.feed(pcm)
    return meter.lufs


def gated_mean(blocks) -> tuple[float, float]:
    """Mean squares, all above the absolute gate -> the mean of those above the relative gate too, and that gate."""
    blocks = np.fromiter(blocks, float)
    gate = max(ABSOLUTE_GATE, float(blocks.mean()) * 10 ** (RELATIVE_GATE_LU / 10))
    return float(blocks[blocks > gate].mean()), gate


def to_lufs(mean_square: float) -> float:
    return OFFSET_LU + 10 * math.log10(mean_square)


def from_lufs(lufs: float) -> float:
    return 10 ** ((lufs - OFFSET_LU) / 10)


ABSOLUTE_GATE = from_lufs(ABSOLUTE_GATE_LUFS)


def from_db(db):
    return 10 ** (db / 20)


def to_db(factor):
    return 20 * np.log10(factor)


def coefficients(rate_hz: float) -> list[tuple[np.ndarray, np.ndarray]]:
    """(b, a) of the shelf and of the high pass at this rate, three numbers each, a[0] = 1: bilinear transforms."""
    K, V = math.tan(math.pi * SHELF_HZ / rate_hz), from_db(SHELF_DB)
    W = V**SHELF_SLOPE
    shelf_b = [V + W * K / SHELF_Q + K * K, 2 * (K * K - V), V - W * K / SHELF_Q + K * K]
    shelf_a = [1 + K / SHELF_Q + K * K, 2 * (K * K - 1), 1 - K / SHELF_Q + K * K]
    K = math.tan(math.pi * PASS_HZ / rate_hz)
    pass_a = [1 + K / PASS_Q + K * K, 2 * (K * K - 1), 1 - K / PASS_Q + K * K]
    shelf = np.array(shelf_b) / shelf_a[0], np.array(shelf_a) / shelf_a[0]
    return [shelf, (np.array([1.0, -2.0, 1.0]), np.array(pass_a) / pass_a[0])]


@cache
def _matrices(rate_hz: int) -> tuple[np.ndarray, ...]:
    """The two filters in a row as s' = A s + B x, y = C s + D x, unrolled over a segment of L samples:

    toeplitz (L, L), input to output; decay (L, 4), first state to output; reach (4, L), input to last state;
    powers (L + 1, 4, 4) of A; chain (4 M + 4, 4 M + 4), first state and each segment's reach to the states at starts.
    """
    L, M = FILTER_SAMPLES, FILTER_SEGMENTS
    A, B, C, D = _in_a_row(*(_state_space(b, a) for b, a in coefficients(rate_hz)))
    powers = np.stack([np.linalg.matrix_power(A, k) for k in range(L + 1)])
    decay = C @ powers[:L]
    response = np.concatenate([[D], decay[: L - 1] @ B])
    lag = np.arange(L)[:, None] - np.arange(L)
    toeplitz = np.where(lag >= 0, response[np.maximum(lag, 0)], 0.0)
    reach = (powers[:L][::-1] @ B).T
    chain = np.zeros((M + 1, 4, M + 1, 4))
    for i in range(M + 1):
        for j in range(i + 1):
            chain[i, :, j] = np.linalg.matrix_power(powers[L], i - j)
    return toeplitz, decay, reach, powers, chain.reshape(4 * (M + 1), -1)


def _state_space(b: np.ndarray, a: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """Direct form II, transposed."""
    A = np.array([[-a[1], 1.0], [-a[2], 0.0]])
    return A, b[1:] - a[1:] * b[0], np.array([1.0, 0.0]), float(b[0])


def _in_a_row(first, second) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    (A1, B1, C1, D1), (A2, B2, C2, D2) = first, second
    A = np.block([[A1, np.zeros((2, 2))], [np.outer(B2, C1), A2]])
    return A, np.concatenate([B1, B2 * D1]), np.concatenate([D2 * C1, C2]), D1 * D2
