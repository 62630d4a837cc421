"""From logits to a code: guidance, temperature, top-k, top-p, min-p, and noise drawn once a frame from each row's key.

A draw is argmax(logits / T + Gumbel noise) over the codes that survive (the Gumbel-max trick), so a step that is
compiled takes its noise as an input and never repeats it.
"""

from dataclasses import dataclass

import mlx.core as mx


@dataclass(frozen=True)
class Settings:
    """One row's sampling of one frame. temperature 0 takes the likeliest code; top_k may exceed the vocabulary."""

    temperature: float
    top_k: int
    top_p: float = 1.0
    min_p: float = 0.0
    guidance: float = 1.0
    may_end: bool = True  # False: the first codebook's code 0 is not drawn, so the frame is no EOS


class Sampler:
    """Draws the codes of one frame for B rows.

    noise (B, K, V) Gumbel; `codes` is how many codes the codec knows: the checkpoint's few beyond
    them can be likely but have no sound, so they are never drawn. None: all of the vocabulary.
    Each row with guidance other than 1 has a shadow, after all B rows and in their order, that reads no text.
    """

    def __init__(self, settings: list[Settings], noise: mx.array, codes: int | None = None):
        warm = [s.temperature > 0 for s in settings]
        self._settings, self._codes = settings, codes
        self._scale = mx.array([[1 / s.temperature if w else 1.0] for s, w in zip(settings, warm, strict=True)])
        self._noise = noise * mx.array(warm)[:, None, None]
        guided = [i for i, s in enumerate(settings) if s.guidance != 1]
        self._guided, B = bool(guided), len(settings)
        if guided:
            self._rows = mx.array([*range(B), *guided])  # whose codes each row of logits takes
            self._shadows = mx.array([B + guided.index(i) if i in guided else i for i in range(B)])
            self._guidance = mx.array([[s.guidance] for s in settings])

    def __call__(self, codebook: int, logits: mx.array) -> mx.array:
        """logits (B + shadows, V) -> codes (B + shadows,); a shadow takes its row's."""
        V = logits.shape[-1] if self._codes is None else self._codes
        logits = self._guide(logits[:, :V].astype(mx.float32))
        if codebook == 0:
            logits = self._hold_end(logits)
        scores = logits * self._scale + self._noise[:, codebook, :V]
        codes = mx.argmax(mx.where(self._survivors(logits), scores, -mx.inf), axis=-1)
        return codes[self._rows] if self._guided else codes

    def _guide(self, logits: mx.array) -> mx.array:
        """Rows and their shadows (B + shadows, V) -> what to draw from (B, V): shadow + guidance * (row - shadow)."""
        if not self._guided:
            return logits
        return logits[: len(self._settings)] * self._guidance + logits[self._shadows] * (1 - self._guidance)

    def _hold_end(self, logits: mx.array) -> mx.array:
        held = [not s.may_end for s in self._settings]
        if not any(held):
            return logits
        first = mx.arange(logits.shape[1]) == 0
        return mx.where(mx.array(held)[:, None] & first, -mx.inf, logits)

    def _survivors(self, logits: mx.array) -> mx.array:
        """(B, V) bool. top-k on the logits; min-p and top-p on the probabilities at the row's temperature."""
        V, settings = logits.shape[1], self._settings
        ordered = mx.sort(logits, axis=-1)
        kth = [[V - min(s.top_k, V)] for s in settings]
        kept = logits >= mx.take_along_axis(ordered, mx.array(kth), axis=-1)  # ties at the k-th all stay
        if any(s.min_p > 0 or s.top_p < 1 for s in settings):
            scaled = ordered[:, ::-1] * self._scale
            chances = mx.softmax(scaled, axis=-1)  # falling
            before = mx.cumsum(chances, axis=-1) - chances  # of all that are likelier
            few = (before < mx.array([[s.top_p] for s in settings])) & (
                chances >= chances[:, :1] * mx.array([[s.min_p] for s in settings])
            )
            last = few.sum(axis=-1, keepdims=True) - 1
            kept = kept & (logits >= mx.take_along_axis(ordered[:, ::-1], last, axis=-1))
        return kept


def draw_noise(keys: list[mx.array], codebooks: int, vocabulary: int) -> mx.array:
    """(B, K, V) Gumbel noise, one key a row: a row's noise does not depend on who else speaks."""
    return mx.stack([mx.random.gumbel((codebooks, vocabulary), key=key) for key in keys])
