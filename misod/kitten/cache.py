"""Keys and values of past positions: preallocated, of one shape however far each row has come.

A layer's are one array (B, 2 Hkv, C, d), keys and then values, so that one write does for both; C is a multiple of
BLOCK. Each write makes a new array in the place of the old: MLX reuses the memory of one that nobody else holds, so a
step copies nothing, and a prompt's cache that is held can be read on from again and again.
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

    def __init__(self, kv: KV, offset: int):
        self.kv, self.offset = list(kv), offset

    def attend(self, layer: int, q: mx.array, kv: mx.array, scale: float) -> mx.array:
        """q (1, H, T, d), kv (1, 2 Hkv, T, d) -> (1, H, T, d), causal."""
        kv = mx.concatenate([self.kv[layer][:, :, : self.offset], kv], axis=2) if self.offset else kv
        self.kv[layer] = padded(kv, 2, blocks(kv.shape[2]))
        mask = "causal" if q.shape[2] > 1 else None
        return mx.fast.scaled_dot_product_attention(q, *mx.split(kv, 2, axis=1), scale=scale, mask=mask)


class Step:
    """B rows that each read one position after their own `offset` (B,)."""

    def __init__(self, kv: KV, offset: mx.array):
        self.kv, self.offset = list(kv), offset
        self._at = offset[:, None, None, None]
        self._mask = mx.arange(kv[0].shape[2]) <= self._at  # (B, 1, 1, C)

    @property
    def offsets(self) -> mx.array:
        return self.offset

    def write(self, layer: int, kv: mx.array) -> None:
        """kv (B, 2 Hkv, 1, d), of the position that is read."""
        at = mx.broadcast_to(self._at, kv.shape)
        self.kv[layer] = mx.put_along_axis(self.kv[layer], at, kv, axis=2)

    def attend(self, layer: int, q: mx.array, kv: mx.array, scale: float) -> mx.array:
        """q (B, H, 1, d), kv (B, 2 Hkv, 1, d) -> (B, H, 1, d)."""
        self.write(layer, kv)
        past = mx.split(self.kv[layer], 2, axis=1)
        return mx.fast.scaled_dot_product_attention(q, *past, scale=scale, mask=self._mask)


class StepAlone:
    """One row that reads one position after the `offset` that the host knows: no mask, so MLX's fused kernels do it.

    `offsets`: the same, on the device.
    """

    def __init__(self, kv: KV, offset: int, offsets: mx.array):
        self.kv, self.offset, self.offsets = list(kv), offset, offsets

    def write(self, layer: int, kv: mx.array) -> None:
        """kv (1, 2 Hkv, 1, d), of the position that is read."""
        array = self.kv[layer][:]  # one of our own: what is assigned to changes
        array[:, :, self.offset : self.offset + 1] = kv
        self.kv[layer] = array

    def attend(self, layer: int, q: mx.array, kv: mx.array, scale: float) -> mx.array:
        """q (1, H, 1, d), kv (1, 2 Hkv, 1, d) -> (1, H, 1, d)."""
        self.write(layer, kv)
        past = mx.split(self.kv[layer][:, :, : self.offset + 1], 2, axis=1)
        return mx.fast.scaled_dot_product_attention(q, *past, scale=scale)


Cache = Prefill | Step | StepAlone
