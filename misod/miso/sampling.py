"""From logits to a code: temperature, top-k, and noise drawn once a frame from each row's own key.

A draw is argmax(logits / T + Gumbel noise) over the codes that survive top-k (the Gumbel-max trick),
so a step that is compiled takes its noise as an input and never repeats it.
"""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class Settings:
    """One row's sampling. temperature 0 takes the likeliest code; top_k may exceed the vocabulary."""

    temperature: float
    top_k: int


class Sampler:
    """Draws the codes of one frame for B rows.

    noise (B, K, V) Gumbel; `codes` is how many codes the codec knows: the checkpoint's few beyond
    them can be likely but have no sound, so they are never drawn. None: all of the vocabulary.
    """

    def __init__(self, settings: list[Settings], noise: mx.array, codes: int | None = None):
        warm = [s.temperature > 0 for s in settings]
        self._scale = mx.array([[1 / s.temperature if w else 1.0] for s, w in zip(settings, warm, strict=True)])
        self._noise = noise * mx.array(warm)[:, None, None]
        self._top_k = [s.top_k for s in settings]
        self._codes = codes

    def __call__(self, codebook: int, logits: mx.array) -> mx.array:
        """logits (B, V) -> codes (B,)."""
        V = logits.shape[-1] if self._codes is None else self._codes
        logits = logits[:, :V].astype(mx.float32)
        kth = [[V - min(k, V)] for k in self._top_k]
        floor = mx.take_along_axis(mx.sort(logits, axis=-1), mx.array(kth), axis=-1)  # ties at the k-th all stay
        scores = logits * self._scale + self._noise[:, codebook, :V]
        return mx.argmax(mx.where(logits >= floor, scores, -mx.inf), axis=-1)


def draw_noise(keys: list[mx.array], codebooks: int, vocabulary: int) -> mx.array:
    """(B, K, V) Gumbel noise, one key a row: a row's noise does not depend on who else speaks."""
    return mx.stack([mx.random.gumbel((codebooks, vocabulary), key=key) for key in keys])
