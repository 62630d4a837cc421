"""Keys and values of past positions: preallocated, of one shape however far each row has come.

Arrays are (B, Hkv, C, d), C a multiple of BLOCK. Each write makes new arrays in the place of the old: MLX reuses the
memory of those that nobody else holds, so a step copies nothing, and a prompt's cache that is held can be read on
from again and again.
"""

import mlx.core as mx

BLOCK = 256  # positions; 10 s of speech

KV = list[mx.array]  # one a layer


def padded(array: mx.array, axis: int, capacity: int) -> mx.array:
    """With zeros at its end up to `capacity` along `axis`."""
    width = [(0, 0)] * array.ndim
    width[axis] = (0, capacity - array.shape[axis])
    return mx.pad(array, width)


def blocks(positions: int) -> int:
    """The capacity that so many positions need."""
    return -(-positions // BLOCK) * BLOCK


class Prefill:
    """One row that reads T positions after the `offset` that are there."""

    def __init__(self, keys: KV, values: KV, offset: int):
        self.keys, self.values, self.offset = list(keys), list(values), offset

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """q (1, H, T, d), k and v (1, Hkv, T, d) -> (1, H, T, d), causal."""
        k, v = (
            mx.concatenate([past[layer][:, :, : self.offset], new], axis=2) if self.offset else new
            for past, new in ((self.keys, k), (self.values, v))
        )
        capacity = blocks(k.shape[2])
        self.keys[layer], self.values[layer] = padded(k, 2, capacity), padded(v, 2, capacity)
        return mx.fast.scaled_dot_product_attention(q, k, v, scale=scale, mask="causal" if q.shape[2] > 1 else None)


class Step:
    """B rows that each read one position after their own `offset` (B,)."""

    def __init__(self, keys: KV, values: KV, offset: mx.array):
        self.keys, self.values, self.offset = list(keys), list(values), offset
        self._at = offset[:, None, None, None]
        self._mask = mx.arange(keys[0].shape[2]) <= self._at  # (B, 1, 1, C)

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """q (B, H, 1, d), k and v (B, Hkv, 1, d) -> (B, H, 1, d)."""
        at = mx.broadcast_to(self._at, k.shape)
        self.keys[layer] = mx.put_along_axis(self.keys[layer], at, k, axis=2)
        self.values[layer] = mx.put_along_axis(self.values[layer], at, v, axis=2)
        return mx.fast.scaled_dot_product_attention(
            q, self.keys[layer], self.values[layer], scale=scale, mask=self._mask
        )


class StepAlone:
    """One row that reads one position after the `offset` that the host knows: no mask, so MLX's fused kernels do it."""

    def __init__(self, keys: KV, values: KV, offset: int):
        self.keys, self.values, self.offset = list(keys), list(values), offset

    def attend(self, layer: int, q: mx.array, k: mx.array, v: mx.array, scale: float) -> mx.array:
        """q (1, H, 1, d), k and v (1, Hkv, 1, d) -> (1, H, 1, d)."""
        end = self.offset + 1
        past = []
        for held, new in ((self.keys, k), (self.values, v)):
            array = held[layer][:]  # one of our own: what is assigned to changes
            array[:, :, self.offset : end] = new
            held[layer] = array
            past.append(array[:, :, :end])
        return mx.fast.scaled_dot_product_attention(q, *past, scale=scale)


Cache = Prefill | Step | StepAlone
