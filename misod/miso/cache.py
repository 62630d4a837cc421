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

    def attend(self, layer: int, q: mx.array, kv: mx.array, scale: float) -> mx.array:
        """q (B, H, T, d), kv (2, B, Hkv, T, d) -> (B, H, T, d), causal."""
        T, held = kv.shape[3], self.kv[layer]
        end = self.position + T
        if held is None or held.shape[3] < end:
            held = self.kv[layer] = self._grown(held, kv, end)
        held[..., self.position : end, :] = kv
        keys, values = (part.squeeze(0) for part in mx.split(held[..., :end, :], 2))
        if T > 1 or mx.default_device() != mx.cpu:
            mask = "causal" if T > 1 else None
            return mx.fast.scaled_dot_product_attention(q, keys, values, scale=scale, mask=mask)
        heads = q.reshape(
            *keys.shape[:2], -1, q.shape[3]
        )  # those of one key as positions: one product of them, not many
        return mx.fast.scaled_dot_product_attention(heads, keys, values, scale=scale).reshape(q.shape)

    def _grown(self, held: mx.array | None, like: mx.array, end: int) -> mx.array:
        capacity = 0 if held is None else held.shape[3]
        more = -(-(end - capacity) // self.block) * self.block
        empty = mx.zeros((*like.shape[:3], more, like.shape[4]), like.dtype)
        return empty if held is None else mx.concatenate([held, empty], axis=3)


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
