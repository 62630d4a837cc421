"""Another sample rate by a band-limited windowed sinc: the filter of torchaudio.functional.resample's defaults."""

import math

import numpy as np

ZERO_CROSSINGS = 6  # of the sinc, on each side
ROLLOFF = 0.99  # of the lower Nyquist frequency
BLOCK_TAPS = 1 << 20  # products held at a time


def resample(sound: np.ndarray, old_hz: int, new_hz: int) -> np.ndarray:
    """(n,) float -> (ceil(n * new / old),) float64; silence is assumed on both sides.

    y[i] = sum over k of x[k] h(k / old - i / new), with h(t) = c sinc(c t) cos(pi c t / 12)^2 / old where |c t| < 6,
    c = 0.99 min(old, new). As i / new falls on only new / gcd places between two samples, h is computed for those.
    """
    if old_hz == new_hz or not len(sound):
        return sound.astype(np.float64)
    common = math.gcd(old_hz, new_hz)
    old, new = old_hz // common, new_hz // common
    cutoff = min(old, new) * ROLLOFF
    reach = math.ceil(ZERO_CROSSINGS * old / cutoff)
    kernels = _kernels(old, new, cutoff, reach)  # (new, taps)
    length = -(-len(sound) * new // old)
    padded = np.pad(sound, (reach, reach + 1))
    windows = np.lib.stride_tricks.sliding_window_view(padded, kernels.shape[1])  # (n, taps)
    out = np.empty(length)
    block = max(1, BLOCK_TAPS // kernels.shape[1])
    for first in range(0, length, block):
        i = np.arange(first, min(first + block, length))
        out[i] = np.einsum("nt,nt->n", windows[i * old // new], kernels[i % new])
    return out


def _kernels(old: int, new: int, cutoff: float, reach: int) -> np.ndarray:
    """h at the taps around each place between two samples: (new, 2 reach + 2)."""
    places = np.arange(new) * old % new / new  # of an output sample, after the input sample before it
    taps = np.arange(-reach, reach + 2)
    t = np.clip((taps - places[:, None]) * (cutoff / old), -ZERO_CROSSINGS, ZERO_CROSSINGS)
    return np.sinc(t) * np.cos(np.pi * t / (2 * ZERO_CROSSINGS)) ** 2 * (cutoff / old)
