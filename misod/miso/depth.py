"""`--depth N`, an experiment: of each frame only the first N codebooks are made, read and decoded.

The backbone was taught on whole frames: the sum of its input lacks what the rest would add. docs/performance.md says
what that costs, and what was tried in its place. A code that is not there is 0 in a frame and -1 in a Segment.
"""

from collections.abc import Sequence

import numpy as np

from misod.engine import RowFault


def check_depth(depth: int | None, codebooks: int, model: str) -> None:
    """Raises RowFault."""
    if depth is not None and depth > codebooks:
        raise RowFault(f"a frame of {model} has {codebooks} codebooks, so its depth is 1 to {codebooks}", "bad_value")


def there(depths: Sequence[int | None], codebooks: int) -> np.ndarray | None:
    """Which codes of a frame a row of each depth has, (B, K) bool; None: every row all."""
    if all(depth in (None, codebooks) for depth in depths):
        return None
    return np.arange(codebooks) < np.array([[depth or codebooks] for depth in depths])


def deepest(depths: Sequence[int | None], codebooks: int) -> int:
    return max(depth or codebooks for depth in depths)


def segment_codes(frames: Sequence[np.ndarray], depth: int | None) -> np.ndarray:
    """What is kept of a piece's frames, (K, T)."""
    codes = np.stack(frames, axis=1).astype(np.int32)
    codes[depth or len(codes) :] = -1
    return codes
