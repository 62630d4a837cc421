"""Sound for tests that is like speech in what loudness and guards look at, and needs no model."""

import numpy as np

from misod.loudness import measure

RATE, FRAME = 24_000, 1920


def speechlike(seed: int, seconds: float, lufs: float) -> np.ndarray:
    """A buzz of 110 Hz under syllables of differing strength, with a pause after every dozen; float32."""
    rng = np.random.default_rng(seed)
    t = np.arange(round(seconds * RATE)) / RATE
    phase = 2 * np.pi * np.cumsum(110 * (1 + 0.1 * np.sin(2 * np.pi * 0.7 * t))) / RATE
    buzz = sum(np.sin(k * phase + k) / k**1.5 for k in range(1, 30)) + 0.01 * rng.standard_normal(t.size)
    syllable = (t * 4.5).astype(int)
    strength = np.where(np.arange(syllable[-1] + 1) % 13 == 12, 0.001, rng.uniform(0.4, 1.0, syllable[-1] + 1))
    pcm = buzz * strength[syllable] * np.sin(np.pi * (t * 4.5 % 1)) ** 0.5
    return (pcm * 10 ** ((lufs - measure(pcm, RATE)) / 20)).astype(np.float32)
