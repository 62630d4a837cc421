"""The edges of an utterance: raised cosines, so that it neither starts nor stops with a click.

Only its first and its last samples: at seams between pieces the codec's state runs on, and a fade would be a dip.
"""

import numpy as np

EDGE_MS = 8.0  # long enough not to click, too short to soften the first consonant


def fade_in(pcm: np.ndarray, rate_hz: int, ms: float = EDGE_MS) -> np.ndarray:
    """pcm (n,) with its first `ms` faded in from zero; a shorter one over its whole length. The input is left as is."""
    samples = min(len(pcm), round(ms / 1000 * rate_hz))
    faded = pcm.copy()
    faded[:samples] *= _rise(samples).astype(pcm.dtype)
    return faded


def fade_out(pcm: np.ndarray, rate_hz: int, ms: float = EDGE_MS) -> np.ndarray:
    """pcm (n,) with its last `ms` faded to zero: fade_in's mirror image."""
    return fade_in(pcm[::-1], rate_hz, ms)[::-1]


def _rise(samples: int) -> np.ndarray:
    """From 0, which is the first, towards 1, which would be the next after the last."""
    return 0.5 - 0.5 * np.cos(np.pi * np.arange(samples) / max(1, samples))
