"""Rows that speak together: prompts are read one at a time, then every step draws one token for each row.

All that a step changes is on the device and of one shape, so steps follow each other without the host: it waits once
for many tokens. Rows may join and leave between those.
"""

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from functools import partial

import mlx.core as mx
import numpy as np
from mlx.utils import tree_flatten, tree_map

from misod.engine import returned
from misod.kitten.cache import KV, Prefill, Step, StepAlone, blocks, padded
from misod.kitten.model import Model
from misod.kitten.sampling import Settings, draw, process
from misod.kitten.tokens import Tokens

READ_AT_ONCE = 512  # positions


@dataclass(frozen=True)
class Past:
    """What was read so far, to go on from as often as one likes."""

    ids: tuple[int, ...]
    kv: KV
    hidden: mx.array  # (1, D), of the last


def read(model: Model, ids: Sequence[int], speaker: mx.array | None = None, past: Past | None = None) -> Past:
    """As `reading`, at once."""
    return returned(reading(model, ids, speaker, past))


def reading(
    model: Model, ids: Sequence[int], speaker: mx.array | None = None, past: Past | None = None
) -> Generator[None, None, Past]:
    """Go on from `past` with `ids`; at the start, position 0 is the speaker's row (D,) and not what ids[0] says.

    A layer of READ_AT_ONCE positions a step: on a CPU the whole of a voice takes longer than a step may.
    """
    for start in range(0, len(ids), READ_AT_ONCE):
        past = yield from _reading(model, ids[start : start + READ_AT_ONCE], speaker, past)
    return past


def _reading(
    model: Model, ids: Sequence[int], speaker: mx.array | None, past: Past | None
) -> Generator[None, None, Past]:
    x = model.embed(mx.array(ids)[None])  # (1, T, D)
    if past is None:
        x = mx.concatenate([speaker.astype(x.dtype)[None, None], x[:, 1:]], axis=1)
    cache = Prefill(past.kv, len(past.ids)) if past else Prefill([None] * model.args.num_hidden_layers, 0)
    for i, layer in enumerate(model.model.layers):
        x = layer(x, i, cache)
        mx.eval(x, cache.kv[i])
        yield
    hidden = model.model.norm(x[:, -1])
    return Past((*(past.ids if past else ()), *ids), cache.kv, hidden)


class Vocabulary:
    """What may be drawn, numbered from 0 to `size`: all, as the reference has it, or speech and its ends only.

    The reference draws text too, now and then, feeds it back, and leaves it out of the sound. Without it the head is
    a twenty-fourth of the true size, which is half of all that a step reads. `compiled`: what draws is one graph of
    fused kernels, traced anew for each number of rows and capacity; on a CPU that takes g++ half a minute.
    """

    def __init__(self, model: Model, tokens: Tokens, speech_only: bool, compiled: bool = False):
        embedding, V = model.model.embed_tokens.weight, model.args.vocab_size
        table = np.arange(V)
        if speech_only:
            table = np.array([*range(tokens.audio_id_base, tokens.audio_id_end), *tokens.ends])
        self.size = size = len(table)
        self._own = np.full(V, size, np.int32)  # what is not drawn has one number
        self._own[table] = np.arange(size)
        self.table = mx.array(table)  # own numbers -> the model's
        self.model, self.tokens = model, tokens
        if speech_only:
            self.tokens = Tokens(0, tokens.num_audio_tokens, size, size - 2, size, size, size, size - 1)
        self._head = (embedding[self.table] if speech_only else embedding).astype(model.dtype)
        mx.eval(self.table, self._head)
        self.choose = partial(choose, self)
        if compiled:
            self.choose = mx.compile(self.choose)

    def own(self, ids: np.ndarray) -> mx.array:
        return mx.array(self._own[ids])

    def logits(self, hidden: mx.array) -> mx.array:
        """(B, D) -> (B, size) float32."""
        return (hidden @ self._head.T).astype(mx.float32)


class Batch:
    """B rows. `capacity` positions are there for each, and more when they are needed."""

    def __init__(self, words: Vocabulary, rows: dict):
        self._words, self._rows = words, rows

    @classmethod
    def start(cls, words: Vocabulary, past: Past, settings: Settings, seed: int) -> "Batch":
        """One row, whose prompt is `past`."""
        ids = np.array(past.ids, np.int32)
        length, capacity = len(ids), past.kv[0].shape[2]
        rows = {
            "kv": past.kv,
            "logits": words.logits(past.hidden),
            "history": padded(words.own(ids)[None], 1, capacity),
            "length": mx.array([length]),
            "run": mx.array([_run(ids)]),
            "key": mx.random.key(seed)[None],
            "alive": mx.array([True]),
            "finite": mx.array([True]),
            "how": settings.arrays(words.size, length),
        }
        return cls(words, rows)

    @classmethod
    def of(cls, batches: Sequence["Batch"]) -> "Batch":
        """All their rows in one; they are used up."""
        first, *others = batches
        for other in others:
            first.join(other)
        return first

    def split(self) -> list["Batch"]:
        """Each row by itself."""
        if len(self) == 1:
            return [self]
        parts = [tree_map(lambda a, i=i: a[i : i + 1], self._rows) for i in range(len(self))]
        return [Batch(self._words, rows) for rows in parts]

    def __len__(self) -> int:
        return len(self._rows["length"])

    @property
    def capacity(self) -> int:
        return self._rows["history"].shape[1]

    def join(self, other: "Batch") -> None:
        """Take in the other's rows, after these; the other is used up."""
        capacity = max(self.capacity, other.capacity)
        self._reserve(capacity)
        other._reserve(capacity)
        self._rows = tree_map(lambda a, b: mx.concatenate([a, b]), self._rows, other._rows)

    def run(self, steps: int) -> tuple[np.ndarray, np.ndarray]:
        """-> tokens (B, steps) int32, -1 from a row's end on, and whether all of a row's logits were finite (B,)."""
        length = self._rows["length"].max().item()
        self._reserve(length + steps)
        drawn = []
        for i in range(steps):
            self._rows, token = step(self._words, self._rows, length + i)
            mx.async_eval(token, [array for _, array in tree_flatten(self._rows)])
            drawn.append(token)
        tokens = mx.stack(drawn, axis=1)
        mx.eval(tokens, self._rows["finite"])
        return np.array(tokens), np.array(self._rows["finite"])

    def _reserve(self, positions: int) -> None:
        if positions <= self.capacity:
            return
        capacity, rows = blocks(positions), self._rows
        kv = [padded(array, 2, capacity) for array in rows["kv"]]
        self._rows = rows | {"kv": kv, "history": padded(rows["history"], 1, capacity)}


def step(words: Vocabulary, rows: dict, longest: int) -> tuple[dict, mx.array]:
    """One token more for each row, (B,), -1 for one that has ended; `longest`: their greatest length, which the host
    knows. A row that has ended is read on from positions that nobody looks at.
    """
    drawn, token, read = words.choose({name: rows[name] for name in rows.keys() - {"kv"}})
    cache = StepAlone(rows["kv"], longest, rows["length"]) if len(token) == 1 else Step(rows["kv"], rows["length"])
    hidden = words.model(words.model.embed(read)[:, None], cache)
    return drawn | {"kv": cache.kv, "logits": words.logits(hidden)}, token


def choose(words: Vocabulary, rows: dict) -> tuple[dict, mx.array, mx.array]:
    """What is drawn: the rows after it, tokens (B,), and what the model reads next (B,). Pure, and of one shape."""
    history, length, run, how = (rows[name] for name in ("history", "length", "run", "how"))
    keys = mx.vmap(mx.random.split)(rows["key"])  # (B, 2, 2)
    token = draw(process(rows["logits"], history, length, run, how, words.tokens), keys[:, 1], how)
    ends = mx.any(token[:, None] == mx.array(words.tokens.ends), axis=1)
    alive = rows["alive"] & ~ends
    last = mx.take_along_axis(history, length[:, None] - 1, axis=1)[:, 0]
    read = words.table[token]
    after = {
        "history": mx.put_along_axis(history, length[:, None], token[:, None], axis=1),
        "length": length + alive,
        "run": mx.where(token == last, run + 1, 1),
        "key": keys[:, 0],
        "alive": alive,
        "finite": rows["finite"] & (mx.isfinite(rows["logits"]).all(axis=1) | ~rows["alive"]),
        "how": how,
    }
    return after, mx.where(alive, read, -1), read


def _run(ids: np.ndarray) -> int:
    """How often the last came in a row."""
    others = np.flatnonzero(ids != ids[-1])
    return len(ids) - (int(others[-1]) + 1 if len(others) else 0)
