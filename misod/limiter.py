"""A peak limiter that delays nothing: it sees a peak coming only as far as the call reaches."""

import numpy as np

# Its aim lies under the ceiling; between the two a soft knee catches what comes too early in a call to turn down for.
KNEE_DB = 0.5
ATTACK_S = 0.004  # from full gain to none, ahead of a peak, in a straight line
RELEASE_S = 0.6  # and back


class Limiter:
    """process: (n,) -> (n,), no sample beyond the ceiling, the reduction a line of bounded slope across calls.

    The ceiling is of samples, not of what a converter makes between them. What is under the aim passes untouched,
    to the bit, once an earlier reduction is over.
    """

    def __init__(self, rate_hz: int, ceiling_dbfs: float):
        self._ceiling = 10 ** (ceiling_dbfs / 20)
        self._aim = 10 ** ((ceiling_dbfs - KNEE_DB) / 20)
        self._fall, self._rise = 1 / (ATTACK_S * rate_hz), 1 / (RELEASE_S * rate_hz)  # a sample
        self._reduction = 1.0  # at the last sample of the call before

    def process(self, x: np.ndarray) -> np.ndarray:
        size = np.abs(x)
        if self._reduction == 1.0 and size.max(initial=0.0) <= self._aim:
            return x
        line = self._line(self._aim / np.maximum(size, self._aim))
        self._reduction = float(line[-1])
        return self._knee(x * line)

    def _line(self, need: np.ndarray) -> np.ndarray:
        """The greatest factors (n,) that are at most `need`, fall and rise no faster than they may, and go on from the
        last; where a peak is too near the start for that, it wins that they go on."""
        at = np.arange(len(need))
        fall, rise = self._fall * at, self._rise * at
        before = np.minimum.accumulate((need + fall)[::-1])[::-1] - fall
        after = np.minimum.accumulate(before - rise) + rise
        after = np.minimum(after, self._reduction + self._rise + rise)
        return np.maximum(after, self._reduction - self._fall - fall).clip(0.0, 1.0)

    def _knee(self, x: np.ndarray) -> np.ndarray:
        room = self._ceiling - self._aim
        over = np.maximum(np.abs(x) - self._aim, 0.0)
        return np.where(over > 0, np.copysign(self._aim + room * np.tanh(over / room), x), x)
