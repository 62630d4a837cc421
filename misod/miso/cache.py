"""Keys and values of past positions: preallocated, grown in blocks, written in place."""

import mlx.core as mx

BLOCK = 256  # positions; one allocation per 20 s of speech


class KVCache:
    """K and V of every layer for a batch of rows that share one position count.

    A layer's are one array (2, B, Hkv, C, d), keys and then values, so that one write does for both; its capacity C is
    at least the offset. `attend` writes T new positions and attends to all up to and including them; `advance` moves
    the offset once a pass is over.
    """

    def __init__(self, layers: int, block: int = BLOCK):
        self.kv: list[mx.array | None] = [None] * layers
        self.block = block
        self.position = 0

    @classmethod
    def fork(cls, kv: mx.array) -> "KVCache":
        """On from `packed`, which stays as it is: its arrays have no room, so the first write copies them.

        Slices, for those are views; MLX gathers, and copies, what is taken by a number.
        """
        layers = len(kv) // 2
        cache = cls(layers)
        both = kv.reshape(2, layers, *kv.shape[1:])
        cache.kv = [both[:, i : i + 1] for i in range(layers)]
        cache.position = kv.shape[2]
        return cache

    def packed(self) -> mx.array:
        """What one row has read, (2 layers, Hkv, T, d): keys, then values. A copy."""
        return mx.concatenate([kv[:, :, :, : self.position] for kv in self.kv], axis=1).flatten(0, 1)

    @property
    def offset(self) -> int:
        return self.position

    def advance(self, positions: int) -> None:
        self.position += positions

    def rewind(self, position: int) -> None:
        """Forget what was written from `position` on."""
        assert 0 <= position <= self.position
        self.position = position

    @property
    def capacity(self) -> int:
        return 0 if self.kv[0] is None else self.kv[0].shape[3]

    def widen(self, capacity: int) -> None:
        """Have room for so many positions. What is there is copied, where it has another size."""
        for i, held in enumerate(self.kv):
            if held.shape[3] < capacity:
                self.kv[i] = self._longer(held, capacity - held.shape[3])

    def attend(self, layer: int, q: mx.array, kv: mx.array, scale: float) -> mx.array:
        """q (B, H, T, d), kv (2, B, Hkv, T, d) -> (B, H, T, d), causal."""
        T, held = kv.shape[3], self.kv[layer]
        end = self.position + T
        if held is None or held.shape[3] < end:
            held = self.kv[layer] = self._grown(held, kv, end)
        held[..., self.position : end, :] = kv
        keys, values = (part.squeeze(0) for part in mx.split(held[..., :end, :], 2))
        return attended(q, keys, values, scale, "causal" if T > 1 else None)

    def _grown(self, held: mx.array | None, like: mx.array, end: int) -> mx.array:
        held = like[..., :0, :] if held is None else held
        return self._longer(held, -(-(end - held.shape[3]) // self.block) * self.block)

    def _longer(self, held: mx.array, positions: int) -> mx.array:
        empty = mx.zeros((*held.shape[:3], positions, held.shape[4]), held.dtype)
        return mx.concatenate([held, empty], axis=3) if held.shape[3] else empty


class RowsCache:
    """Several one-row caches seen as a batch: rows join and leave without copying any of them.

    Every matrix product runs once over all rows; only attention runs row by row, over that row's own past.
    """

    def __init__(self, rows: list[KVCache]):
        self.rows = rows

    @property
    def offset(self) -> int | mx.array:
        if len(self.rows) == 1:
            return self.rows[0].offset
        return mx.array([row.offset for row in self.rows])

    def advance(self, positions: int) -> None:
        for row in self.rows:
            row.advance(positions)

    def attend(self, layer: int, q: mx.array, kv: mx.array, scale: float) -> mx.array:
        if len(self.rows) == 1:
            return self.rows[0].attend(layer, q, kv, scale)
        parts = zip(self.rows, mx.split(q, len(self.rows)), mx.split(kv, len(self.rows), axis=1), strict=True)
        return mx.concatenate([row.attend(layer, q, kv, scale) for row, q, kv in parts])


class WindowsCache:
    """Rows as in a RowsCache, one position, where a graph is made: where each row is at is an array, offsets (B,), and
    its arrays are of their final size. What lies beyond is masked.

    `kv`: of each row its layers', and after the pass those of the next.
    """

    def __init__(self, kv: list[list[mx.array]], offsets: mx.array):
        self.kv, self.offset = [list(layers) for layers in kv], offsets
        self._at = mx.split(offsets, len(kv))
        self._past = [mx.arange(row[0].shape[3])[None, None, None] <= at for row, at in zip(kv, self._at, strict=True)]

    def advance(self, positions: int) -> None:
        """Left to whoever runs the graph."""

    def attend(self, layer: int, q: mx.array, kv: mx.array, scale: float) -> mx.array:
        parts = zip(mx.split(q, len(self.kv)), mx.split(kv, len(self.kv), axis=1), strict=True)
        return mx.concatenate([self._attend(row, layer, q, kv, scale) for row, (q, kv) in enumerate(parts)])

    def _attend(self, row: int, layer: int, q: mx.array, kv: mx.array, scale: float) -> mx.array:
        held = self.kv[row][layer] = mx.slice_update(self.kv[row][layer], kv, self._at[row], axes=[3])
        keys, values = (part.squeeze(0) for part in mx.split(held, 2))
        return attended(q, keys, values, scale, self._past[row])


def attended(q: mx.array, keys: mx.array, values: mx.array, scale: float, mask: mx.array | str | None) -> mx.array:
    """q (B, H, T, d), keys and values (B, Hkv, C, d) -> (B, H, T, d)."""
    if q.shape[2] > 1 or mx.default_device() != mx.cpu:
        return mx.fast.scaled_dot_product_attention(q, keys, values, scale=scale, mask=mask)
    heads = q.reshape(*keys.shape[:2], -1, q.shape[3])  # those of one key as positions: one product of them, not many
    return mx.fast.scaled_dot_product_attention(heads, keys, values, scale=scale, mask=mask).reshape(q.shape)
