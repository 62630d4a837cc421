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

    What is drawn is the largest of logits + T * noise, which is that of logits / T + noise: at T = 0 the likeliest.
    """

    def __init__(self, settings: list[Settings], noise: mx.array, codes: int | None = None):
        self._settings, self._codes = settings, noise.shape[2] if codes is None else codes
        self._greedy = all(s.temperature == 0 for s in settings)
        heat = mx.array([[[s.temperature]] for s in settings])
        self._noise = mx.split(noise[:, :, : self._codes] * heat, noise.shape[1], axis=1)  # K times (B, 1, V)
        self._keeps = [min(s.top_k, self._codes) for s in settings]
        self._by_share = any(s.min_p > 0 or s.top_p < 1 for s in settings)
        self._never = mx.array(-mx.inf)
        guided = [i for i, s in enumerate(settings) if s.guidance != 1]
        self._guided, B = bool(guided), len(settings)
        self._all_guided = len(guided) == B
        if guided:
            self._rows = mx.array([*range(B), *guided])  # whose codes each row of logits takes
            self._shadows = mx.array([B + guided.index(i) if i in guided else i for i in range(B)])
            self._guidance = mx.array([[s.guidance] for s in settings])

    def __call__(self, codebook: int, logits: mx.array) -> mx.array:
        """logits (B + shadows, V) -> codes (B + shadows,); a shadow takes its row's."""
        logits = self._guide(logits[:, : self._codes].astype(mx.float32))
        if codebook == 0:
            logits = self._hold_end(logits)
        if not self._greedy:
            logits = mx.where(self._survivors(logits), logits + self._noise[codebook].squeeze(1), self._never)
        codes = mx.argmax(logits, axis=-1)
        if not self._guided:
            return codes
        return mx.broadcast_to(codes, (2,)) if len(codes) == 1 else codes[self._rows]

    def _guide(self, logits: mx.array) -> mx.array:
        """Rows and their shadows (B + shadows, V) -> what to draw from (B, V): shadow + guidance * (row - shadow)."""
        if not self._guided:
            return logits
        if self._all_guided:
            rows, shadows = mx.split(logits, 2)
        else:
            rows, shadows = logits[: len(self._settings)], logits[self._shadows]
        return shadows + self._guidance * (rows - shadows)

    def _hold_end(self, logits: mx.array) -> mx.array:
        held = [not s.may_end for s in self._settings]
        if not any(held):
            return logits
        first = mx.arange(logits.shape[1]) == 0
        return mx.where(mx.array(held)[:, None] & first, self._never, logits)

    def _survivors(self, logits: mx.array) -> mx.array:
        """(B, V) bool. top-k on the logits, ties at the k-th all stay; then min-p and top-p."""
        V, alike = self._codes, len(set(self._keeps)) == 1
        if alike and not self._by_share:
            at = V - self._keeps[0]
            return logits >= mx.partition(logits, at, axis=-1)[:, at : at + 1]
        ordered = mx.sort(logits, axis=-1)
        kept = logits >= mx.take_along_axis(ordered, mx.array([[V - k] for k in self._keeps]), axis=-1)
        return kept & self._likely(logits, ordered[:, ::-1]) if self._by_share else kept

    def _likely(self, logits: mx.array, falling: mx.array) -> mx.array:
        """Of enough share, by min-p and top-p, in the probabilities at the row's temperature."""
        settings = self._settings
        heat = mx.array([[s.temperature or 1.0] for s in settings])
        chances = mx.softmax(falling / heat, axis=-1)
        before = mx.cumsum(chances, axis=-1) - chances  # of all that are likelier
        few = (before < mx.array([[s.top_p] for s in settings])) & (
            chances >= chances[:, :1] * mx.array([[s.min_p] for s in settings])
        )
        last = few.sum(axis=-1, keepdims=True) - 1
        return logits >= mx.take_along_axis(falling, last, axis=-1)


def draw_noise(keys: list[mx.array], codebooks: int, vocabulary: int) -> mx.array:
    """(B, K, V) Gumbel noise, one key a row: a row's noise does not depend on who else speaks."""
    return mx.stack([mx.random.gumbel((codebooks, vocabulary), key=key) for key in keys])
