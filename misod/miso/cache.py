"""Keys and values of past positions: preallocated, grown in blocks, written in place."""

import mlx.core as mx

BLOCK = 256  # positions; one allocation per 20 s of speech


class KVCache:
    """K and V of every layer for a batch of rows that share one position count.

    Arrays are (B, Hkv, C, d) with capacity C >= offset. `attend` writes T new positions and
    attends to all up to and including them; `advance` moves the offset once a pass is over.
    """

    def __init__(self, layers: int, block: int = BLOCK):
        self.keys: list[mx.array | None] = [None] * layers
        self.values: list[mx.array | None] = [None] * layers
        self.block = block
        self.position = 0

    @classmethod
    def fork(cls, kv: mx.array) -> "KVCache":
        """On from `packed`, which stays as it is: its arrays have no room, so the first write copies them.

        Slices, for those are views; MLX gathers, and copies, what is taken by a number.
        """
        layers = len(kv) // 2
        cache = cls(layers)
        cache.keys, cache.values = ([kv[i : i + 1] for i in range(at, at + layers)] for at in (0, layers))
        cache.position = kv.shape[2]
        return cache

    def packed(self) -> mx.array:
        """What one row has read, (2 layers, Hkv, T, d): keys, then values. A copy."""
        return mx.stack([array[0, :, : self.position] for array in self.keys + self.values])

    @property
    def offset(self) -> int:
        return self.position

    def advance(self, positions: int) -> None:
        self.position += positions

    def rewind(self, position: int) -> None:
        """Forget what was written from `position` on."""
        assert 0 <= position <= self.position
        self.position = position

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """q (B, H, T, d), k and v (B, Hkv, T, d) -> (B, H, T, d), causal."""
        end = self.position + k.shape[2]
        self._reserve(layer, k, end)
        self.keys[layer][:, :, self.position : end] = k
        self.values[layer][:, :, self.position : end] = v
        keys, values = self.keys[layer][:, :, :end], self.values[layer][:, :, :end]
        mask = "causal" if k.shape[2] > 1 else None
        return mx.fast.scaled_dot_product_attention(q, keys, values, scale=scale, mask=mask)

    def _reserve(self, layer: int, like: mx.array, end: int) -> None:
        held = self.keys[layer]
        capacity = 0 if held is None else held.shape[2]
        if end <= capacity:
            return
        rows, heads, _, dim = like.shape
        more = -(-(end - capacity) // self.block) * self.block
        for arrays in (self.keys, self.values):
            empty = mx.zeros((rows, heads, more, dim), like.dtype)
            arrays[layer] = empty if held is None else mx.concatenate([arrays[layer], empty], axis=2)


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

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        parts = [row.attend(layer, q[b : b + 1], k[b : b + 1], v[b : b + 1], scale) for b, row in enumerate(self.rows)]
        return parts[0] if len(parts) == 1 else mx.concatenate(parts)
