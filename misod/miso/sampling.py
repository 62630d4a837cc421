"""From logits to a code: guidance, temperature, top-k, top-p, min-p, and noise drawn once a frame from each row's key.

A draw is argmax(logits / T + Gumbel noise) over the codes that survive (the Gumbel-max trick), so a step that is
compiled takes its noise as an input and never repeats it.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

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


class Numbers(NamedTuple):
    """Settings of B rows as arrays (B, 1), and of all L rows and shadows: whose codes each takes."""

    heat: mx.array  # (B, 1, 1), for noise
    judged_at: mx.array  # by top-p and min-p: heat, or 1 where that is 0
    cut: mx.array  # of the codes in rising order, the first that top-k keeps
    top_p: mx.array
    min_p: mx.array
    guidance: mx.array
    held: mx.array  # bool: must not end yet
    shadows: mx.array  # (B,): of B rows and then their shadows, which is the row's; itself where it has none
    rows: mx.array  # (L,)

    @classmethod
    def of(cls, settings: list[Settings], codes: int) -> "Numbers":
        """Their types are always the same: 1 may stand for 1.0."""
        guided, B = [i for i, s in enumerate(settings) if s.guidance != 1], len(settings)

        def column(values: Iterable[float]) -> mx.array:
            return mx.array([[value] for value in values], mx.float32)

        return cls(
            heat=mx.array([[[s.temperature]] for s in settings], mx.float32),
            judged_at=column(s.temperature or 1.0 for s in settings),
            cut=mx.array([[codes - min(s.top_k, codes)] for s in settings], mx.int32),
            top_p=column(s.top_p for s in settings),
            min_p=column(s.min_p for s in settings),
            guidance=column(s.guidance for s in settings),
            held=mx.array([[not s.may_end] for s in settings]),
            shadows=mx.array([B + guided.index(i) if i in guided else i for i in range(B)]),
            rows=mx.array([*range(B), *guided]),
        )


@dataclass(frozen=True)
class How:
    """What the rows of a frame need of a Sampler, and so which steps it takes. As it is: of any rows without a shadow,
    none of whom top-p or min-p holds back."""

    greedy: bool = False  # all of them
    cut: int | None = None  # of all alike
    by_share: bool = False
    guided: bool = False
    all_guided: bool = False
    held: bool = True

    @classmethod
    def of(cls, settings: list[Settings], codes: int) -> "How":
        keeps, guided = {min(s.top_k, codes) for s in settings}, [s.guidance != 1 for s in settings]
        return cls(
            greedy=all(s.temperature == 0 for s in settings),
            cut=codes - keeps.pop() if len(keeps) == 1 else None,
            by_share=any(s.min_p > 0 or s.top_p < 1 for s in settings),
            guided=any(guided),
            all_guided=all(guided),
            held=any(not s.may_end for s in settings),
        )


class Sampler:
    """Draws the codes of one frame for B rows.

    noise (B, K, V) Gumbel; `codes` is how many codes the codec knows: the checkpoint's few beyond
    them can be likely but have no sound, so they are never drawn. None: all of the vocabulary.
    Each row with guidance other than 1 has a shadow, after all B rows and in their order, that reads no text.

    What is drawn is the largest of logits + T * noise, which is that of logits / T + noise: at T = 0 the likeliest.
    """

    def __init__(self, settings: list[Settings], noise: mx.array, codes: int | None = None):
        codes = noise.shape[2] if codes is None else codes
        self._begin(How.of(settings, codes), Numbers.of(settings, codes), noise, codes)

    def _begin(self, how: How, numbers: Numbers, noise: mx.array, codes: int) -> None:
        self._how, self._numbers, self._codes = how, numbers, codes
        self._noise = mx.split(noise[:, :, :codes] * numbers.heat, noise.shape[1], axis=1)  # K times (B, 1, V)
        self._never = mx.array(-mx.inf)

    def __call__(self, codebook: int, logits: mx.array) -> mx.array:
        """logits (B + shadows, V) -> codes (B + shadows,); a shadow takes its row's."""
        logits = self._guide(logits[:, : self._codes].astype(mx.float32))
        if codebook == 0 and self._how.held:
            first = mx.arange(self._codes) == 0
            logits = mx.where(self._numbers.held & first, self._never, logits)
        if not self._how.greedy:
            logits = mx.where(self._survivors(logits), logits + self._noise[codebook].squeeze(1), self._never)
        codes = mx.argmax(logits, axis=-1)
        if not self._how.guided:
            return codes
        return mx.broadcast_to(codes, (2,)) if len(codes) == 1 else codes[self._numbers.rows]

    def _guide(self, logits: mx.array) -> mx.array:
        """Rows and their shadows (B + shadows, V) -> what to draw from (B, V): shadow + guidance * (row - shadow)."""
        if not self._how.guided:
            return logits
        if self._how.all_guided:
            rows, shadows = mx.split(logits, 2)
        else:
            rows, shadows = logits[: len(self._numbers.shadows)], logits[self._numbers.shadows]
        return shadows + self._numbers.guidance * (rows - shadows)

    def _survivors(self, logits: mx.array) -> mx.array:
        """(B, V) bool. top-k on the logits, ties at the k-th all stay; then min-p and top-p."""
        at = self._how.cut
        if at is not None and not self._how.by_share:
            return logits >= mx.partition(logits, at, axis=-1)[:, at : at + 1]
        ordered = mx.sort(logits, axis=-1)
        kept = logits >= mx.take_along_axis(ordered, self._numbers.cut, axis=-1)
        return kept & self._likely(logits, ordered[:, ::-1]) if self._how.by_share else kept

    def _likely(self, logits: mx.array, falling: mx.array) -> mx.array:
        """Of enough share, by min-p and top-p, in the probabilities at the row's temperature."""
        heat, top_p, min_p = self._numbers.judged_at, self._numbers.top_p, self._numbers.min_p
        chances = mx.softmax(falling / heat, axis=-1)
        before = mx.cumsum(chances, axis=-1) - chances  # of all that are likelier
        few = (before < top_p) & (chances >= chances[:, :1] * min_p)
        last = few.sum(axis=-1, keepdims=True) - 1
        return logits >= mx.take_along_axis(falling, last, axis=-1)


class GraphSampler(Sampler):
    """The same where a graph is made: the settings come as arrays, and `how` says what these may ask for."""

    def __init__(self, how: How, numbers: Numbers, noise: mx.array, codes: int):
        self._begin(how, numbers, noise, codes)


def draw_noise(keys: list[mx.array], codebooks: int, vocabulary: int) -> mx.array:
    """(B, K, V) Gumbel noise, one key a row: a row's noise does not depend on who else speaks."""
    return mx.stack([mx.random.gumbel((codebooks, vocabulary), key=key) for key in keys])
