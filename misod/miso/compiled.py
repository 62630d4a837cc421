"""A frame's two parts, as they are or compiled: what was spoken last is read, and the next codes are drawn.

Compiled, each part is a graph of fixed shapes (mx.compile): a host that has one builds no frame anew. Reading has a
graph for each number of rows and the windows their pasts are in; drawing, which knows no past, for each number of rows
and what they ask of a sampler. All that changes from frame to frame is an array: what makes a new graph is another
number of rows, a past that leaves its window, or the first wish for guidance, for fewer codebooks, for top-p or min-p.

Rows are not padded to 1, 2, 4, 8: five that cost as much as eight would pay for it in every frame, and a graph is paid
once. Nor does a row attend beyond its own window, whoever speaks beside it: its sums are the same alone and in company.
Where frames are compiled all are, for a fused kernel may round otherwise: a graph that is not there yet is waited for.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial

import mlx.core as mx

from misod.miso.cache import KVCache, RowsCache, WindowsCache
from misod.miso.model import Model
from misod.miso.sampling import GraphSampler, How, Numbers, Sampler, Settings, draw_noise

WINDOWS = (256, 512, 1024, 2048)  # positions; beyond the last, twice as many each time

Drawn = tuple[mx.array, mx.array, list[mx.array]]  # codes (L, K), finite (L,), and the rows' keys for the next frame


def window(positions: int) -> int:
    """The smallest that holds so many."""
    wide = next((w for w in WINDOWS if w >= positions), WINDOWS[-1])
    while wide < positions:
        wide *= 2
    return wide


class Plain:
    """`codes`: how many codes of a codebook may be drawn."""

    graphs, graphs_s = 0, 0.0

    def __init__(self, model: Model, codes: int):
        self.model, self.codes = model, codes

    def read(self, codes: mx.array, there: mx.array | None, caches: list[KVCache]) -> mx.array:
        """The frame codes (L, K) after each row's cache; `there` as in Model.embed_frame -> last_h (L, D)."""
        return self.model.read(self.model.embed_frame(codes, there), RowsCache(caches))

    def draw(self, last_h: mx.array, keys: list[mx.array], settings: list[Settings], depth: int) -> Drawn:
        """The next frame of B rows and of their shadows, last_h (L, D), in `depth` codebooks."""
        noise, keys = self._noise(keys)
        return *self.model.frame(last_h, Sampler(settings, noise, self.codes), depth), keys

    def _noise(self, keys: list[mx.array]) -> tuple[mx.array, list[mx.array]]:
        """Of this frame, and the keys of what comes after it."""
        both = [mx.random.split(key) for key in keys]
        args = self.model.args
        noise = draw_noise([key for _, key in both], args.audio_num_codebooks, args.audio_vocab_size)
        return noise, [key for key, _ in both]

    def prepare(self) -> bool:
        """Make a graph that is not there yet; False: all are there that may be wanted soon."""
        return False


class Compiled(Plain):
    """`graphs` were made so far, in `graphs_s` of time in all; more are made ahead for up to max_rows."""

    def __init__(self, model: Model, codes: int, max_rows: int):
        super().__init__(model, codes)
        self.graphs, self.graphs_s = 0, 0.0
        self._read, self._draw = mx.compile(self._read_traced), mx.compile(self._draw_traced)
        self._ahead = self._soon(max_rows)

    def read(self, codes: mx.array, there: mx.array | None, caches: list[KVCache]) -> mx.array:
        wide = [window(max(cache.offset + 1, cache.capacity)) for cache in caches]
        order = sorted(range(len(caches)), key=wide.__getitem__)  # for mixed windows in any order one graph is enough
        mixed = order != list(range(len(caches)))
        if there is None:
            there = mx.ones(codes.shape, mx.bool_)
        if mixed:
            codes, there = codes[mx.array(order)], there[mx.array(order)]
        for cache, positions in zip(caches, wide, strict=True):
            cache.widen(positions)
        ordered = [caches[i] for i in order]
        offsets = mx.array([cache.offset for cache in ordered])
        last_h, kv = self._made(self._read, codes, there, offsets, [cache.kv for cache in ordered])
        for cache, layers in zip(ordered, kv, strict=True):
            cache.kv = layers
            cache.advance(1)
        return last_h[mx.array([order.index(i) for i in range(len(order))])] if mixed else last_h

    def draw(self, last_h: mx.array, keys: list[mx.array], settings: list[Settings], depth: int) -> Drawn:
        how, numbers = How.of(settings, self.codes), Numbers.of(settings, self.codes)
        return self._made(self._draw, last_h, keys, numbers, depth, how.by_share, how.guided)

    def prepare(self) -> bool:
        if make := next(self._ahead, None):
            make()
        return make is not None

    def _soon(self, max_rows: int) -> Iterator[Callable[[], object]]:
        """Makes of what rows without a shadow want, the likeliest first. Nothing is computed: one takes the host's time
        to trace it, and its kernels, which most others share, are built where it first runs."""
        rows, wide = range(1, max_rows + 1), window(self.model.args.backbone.max_seq_len)
        for n in rows:
            yield from (partial(self._to_draw, n, 0.0), partial(self._to_read, n, WINDOWS[0]))
        yield from (partial(self._to_read, n, w) for w in WINDOWS[1:] if w <= wide for n in rows)
        yield from (partial(self._to_draw, n, 0.5) for n in rows)

    def _to_draw(self, rows: int, min_p: float) -> None:
        args = self.model.args
        last_h = mx.zeros((rows, args.backbone.embed_dim), self.model.dtype)
        self.draw(last_h, [mx.random.key(0)] * rows, [Settings(1.0, 1, min_p=min_p)] * rows, args.audio_num_codebooks)

    def _to_read(self, rows: int, positions: int) -> None:
        codes = mx.zeros((rows, self.model.args.audio_num_codebooks), mx.uint32)
        self.read(codes, None, [self._empty(positions) for _ in range(rows)])

    def _empty(self, positions: int) -> KVCache:
        """With room for so many. It takes none itself until it is computed."""
        cache, (_, heads, head_dim) = self.model.new_cache(), self.model.cache_layout
        cache.kv = [mx.zeros((2, 1, heads, positions, head_dim), self.model.dtype) for _ in cache.kv]
        return cache

    def _made(self, graph: Callable, *arguments):
        """What it comes to; where it had to be traced for these shapes, that is counted."""
        before, began_s = self.graphs, time.monotonic()
        result = graph(*arguments)
        if self.graphs > before:
            self.graphs_s += time.monotonic() - began_s
        return result

    def _read_traced(
        self, codes: mx.array, there: mx.array, offsets: mx.array, kv: list[list[mx.array]]
    ) -> tuple[mx.array, list[list[mx.array]]]:
        self.graphs += 1  # Python runs this for a new graph only
        cache = WindowsCache(kv, offsets)
        return self.model.read(self.model.embed_frame(codes, there), cache), cache.kv

    def _draw_traced(
        self, last_h: mx.array, keys: list[mx.array], numbers: tuple, depth: int, by_share: bool, guided: bool
    ) -> Drawn:
        self.graphs += 1
        noise, keys = self._noise(keys)
        how = How(by_share=by_share, guided=guided)
        return *self.model.frame(last_h, GraphSampler(how, Numbers(*numbers), noise, self.codes), depth), keys
