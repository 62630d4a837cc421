"""A click detector for tests: how much a seam sticks out of the sound around it."""

from collections.abc import Iterable

import numpy as np

AROUND_S = 0.005
FLOOR = 1e-4  # -80 dBFS: a step below it is not heard, whatever is beside it


def worst_click(pcm: np.ndarray, seams: Iterable[int], rate_hz: int) -> float:
    """The largest step onto a sample of `seams`, in multiples of the largest step within 5 ms of it.

    pcm (n,), full scale +-1. About 1 and less is sound that goes on; a start from nothing counts from FLOOR.
    """
    steps = np.abs(np.diff(np.concatenate([[0.0], pcm.astype(np.float64), [0.0]])))
    around = round(AROUND_S * rate_hz)
    worst = 0.0
    for seam in seams:
        beside = np.concatenate([steps[max(0, seam - around) : seam], steps[seam + 1 : seam + 1 + around]])
        worst = max(worst, steps[seam] / max(FLOOR, float(beside.max(initial=0.0))))
    return worst
