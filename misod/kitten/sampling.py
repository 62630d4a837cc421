"""From logits to a token, on the device and of one shape: every choice is an array with a row for each row.

In the order that the published presets were tuned in: run penalty, repetition penalty, temperature, top-k, top-p,
min-p, then a draw by argmax(scores + Gumbel noise). Equal scores stay or go together, where the reference's sort
decides between those at top-p's edge.
"""

from dataclasses import dataclass

import mlx.core as mx

from misod.kitten.tokens import Tokens

Arrays = dict[str, mx.array]


@dataclass(frozen=True)
class Settings:
    """One row's sampling; what kittenml calls these, with its defaults."""

    temperature: float = 1.0  # 0: always the likeliest
    top_k: int = 0  # 0: all; may exceed the vocabulary
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.1  # 1: none
    repetition_window: int | None = None  # of the last tokens that were generated; None: all, and the prompt's
    token_run_penalty: float = 1.3  # per repeat; 0: none
    token_run_grace: int = 10  # repeats in a row before it

    def arrays(self, vocabulary: int, prompt_length: int) -> Arrays:
        """Each (1, 1)."""
        greedy = self.temperature == 0
        values = {
            "temperature": 1.0 if greedy else self.temperature,
            "noise": 0.0 if greedy else 1.0,
            "top_k": min(self.top_k or vocabulary, vocabulary),
            "tail": 1.0 - self.top_p if self.top_p < 1 else -1.0,  # -1: not even what is as good as impossible
            "min_p": self.min_p,
            "penalty": self.repetition_penalty,
            "window": self.repetition_window or 1 << 30,
            "window_floor": prompt_length if self.repetition_window else 0,
            "run_penalty": self.token_run_penalty,
            "run_grace": self.token_run_grace,
        }
        return {name: mx.array([[value]]) for name, value in values.items()}


def process(scores: mx.array, history: mx.array, length: mx.array, run: mx.array, how: Arrays, ids: Tokens) -> mx.array:
    """Logits (B, V) fp32 -> scores to draw from (B, V), -inf where a token is not to be drawn.

    history (B, C) int32, of which `length` (B,) positions are filled; run (B,): how often its last came in a row.
    """
    scores = _penalise_runs(scores, history, length, run, how, ids)
    scores = _penalise_repetition(scores, history, length, how, ids) / how["temperature"]
    return mx.where(scores >= _threshold(scores, how), scores, -mx.inf)


def draw(scores: mx.array, keys: mx.array, how: Arrays) -> mx.array:
    """Scores (B, V), a key a row (B, 2) -> tokens (B,) int32: a row's draw does not depend on who else speaks."""
    noise = mx.vmap(lambda key: mx.random.gumbel(scores.shape[1:], key=key))(keys)
    return mx.argmax(scores + noise * how["noise"], axis=1).astype(mx.int32)


def _penalise_runs(scores, history, length, run, how, ids: Tokens) -> mx.array:
    last = mx.take_along_axis(history, length[:, None] - 1, axis=1)  # (B, 1)
    beyond = run[:, None] - how["run_grace"] + 1
    hit = (last >= ids.audio_id_base) & (last < ids.audio_id_end) & (beyond > 0)
    held = mx.arange(scores.shape[1]) == last
    return mx.where(held & hit, scores - beyond.astype(scores.dtype) * how["run_penalty"], scores)


def _penalise_repetition(scores, history, length, how, ids: Tokens) -> mx.array:
    """The ends of speech are exempt: a segment must be free to close."""
    V, at, length = scores.shape[1], mx.arange(history.shape[1]), length[:, None]
    counts = (at >= mx.maximum(how["window_floor"], length - how["window"])) & (at < length)
    token = mx.where(counts, history, V)  # what does not count goes into a column of its own
    seen = mx.zeros((len(scores), V + 1), mx.bool_)
    seen = mx.put_along_axis(seen, token, mx.ones(token.shape, mx.bool_), axis=1)[:, :V]
    for end in ids.ends:
        seen = seen & (mx.arange(V) != end)
    return mx.where(seen, mx.where(scores < 0, scores * how["penalty"], scores / how["penalty"]), scores)


def _threshold(scores, how) -> mx.array:
    """(B, 1), the least score that top-k, top-p and min-p, each after the one before, leave; one sort for all."""
    V, rising = scores.shape[1], mx.sort(scores, axis=1)
    kept = rising >= mx.take_along_axis(rising, V - how["top_k"], axis=1)
    best = mx.arange(V) == V - 1
    kept = (mx.cumsum(_chances(rising, kept), axis=1) > how["tail"]) & kept | best
    chances = _chances(rising, kept)
    kept = (chances >= how["min_p"] * chances[:, -1:]) & kept | best
    return mx.take_along_axis(rising, V - kept.sum(axis=1, keepdims=True), axis=1)


def _chances(scores: mx.array, kept: mx.array) -> mx.array:
    return mx.softmax(mx.where(kept, scores, -mx.inf), axis=1)
