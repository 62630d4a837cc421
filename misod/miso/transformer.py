"""A Llama-style transformer: in the order it computes, Rope, Attention, MLP, Layer, Transformer.

Names are the reference checkpoint's own (torchtune's spelling).
"""

import math
from collections.abc import Callable

import mlx.core as mx
import mlx.nn as nn

from misod.cuda import MAX_ROWS
from misod.gate import gated_at_once
from misod.miso import few_rows
from misod.miso.cache import KVCache, RowsCache
from misod.miso.products import Unary, added, fused
from misod.weights.dims import TransformerArgs

QKV = tuple[mx.array, mx.array]  # q (B, H, T, d); k and v (2, B, Hkv, T, d)
Turn = Callable[[mx.array], QKV]


def rope_theta(args: TransformerArgs) -> mx.array:
    """Llama-3-scaled angular frequencies, radians a position, one per interleaved pair (d / 2,) fp32.

    The power is taken in fp32 as the reference does: an ulp more or less is 1e-4 radians at position 1,000.
    """
    theta = 1 / args.rope_base ** (mx.arange(0, args.head_dim, 2, dtype=mx.float32) / args.head_dim)
    turns = args.rope_old_context_len * theta / (2 * math.pi)  # periods within the context of pre-training
    low, high = args.rope_low_freq_factor, args.rope_high_freq_factor
    smooth = mx.clip((turns - low) / (high - low), 0, 1)  # 0: scaled, 1: as it is, between: a blend
    return mx.where(smooth == 1, theta, (1 - smooth) * theta / args.rope_scale_factor + smooth * theta)


class RMSNorm(nn.Module):
    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.scale = mx.ones((dim,))
        self.eps = eps

    def bound(self) -> Unary:
        scale, eps = self.scale, self.eps
        return lambda x: mx.fast.rms_norm(x, scale, eps)  # accumulates in fp32

    def folded(self, *following: nn.Linear) -> Unary:
        """bound(), for what only these read. On a CPU in fp32 its factors are multiplied into them: what is left are
        five primitives, where mx.fast.rms_norm is eleven."""
        if mx.default_device() != mx.cpu or any(part.weight.dtype != mx.float32 for part in following):
            return self.bound()
        D = self.scale.shape[0]
        for part in following:
            part.weight = part.weight * (self.scale * math.sqrt(D))
        least = mx.array(self.eps * D)
        return lambda x: x * mx.rsqrt(mx.square(x).sum(axis=-1, keepdims=True) + least)


class Rope:
    """Rotary positions on interleaved pairs, for the queries and keys of all heads at once.

    `at` is asked once a pass; all layers share what it returns. Offsets below `kept` are the same in every frame.
    """

    def __init__(self, args: TransformerArgs, kept: int = 0):
        self.dims, self._heads, self._kv_heads = args.head_dim, args.num_heads, args.num_kv_heads
        self.theta = rope_theta(args)
        self._periods = 1 / self.theta  # mx.fast.rope takes the reciprocal of the angular frequency
        self._turned = mx.arange(args.num_heads + 2 * args.num_kv_heads) < args.num_heads + args.num_kv_heads  # not v
        self._kept, self._seen = kept, {}
        mx.eval(self.theta, self._periods, self._turned)

    def at(self, offset: int | mx.array, T: int, rows: int, dtype: mx.Dtype) -> Turn:
        """How a layer's q, k and v of T positions from offset (or offsets, one a row) become q and kv.

        They come as (rows, T, (H + 2 Hkv) * d), without T where that is 1; q and k of a head are turned.
        """
        on_cpu = dtype == mx.float32 and mx.default_device() == mx.cpu
        if not on_cpu and T > 1:
            return lambda qkv: self._whole(qkv, offset)
        key = offset, T, rows
        if not isinstance(offset, int) or offset >= self._kept:
            known = None
        elif (known := self._seen.get(key)) is None:
            known = self._seen[key] = self._factors(offset, T) if on_cpu else self._offsets(offset, rows)
            mx.eval(known)
        if on_cpu:
            factors = self._factors(offset, T) if known is None else known
            return lambda qkv: self._multiplied(qkv, factors)
        offsets = self._offsets(offset, rows) if known is None else known
        return lambda qkv: self._each(qkv, offsets)

    def _whole(self, qkv: mx.array, offset: int | mx.array) -> QKV:
        B, T, _ = qkv.shape
        qk, v = mx.split(qkv.reshape(B, T, -1, self.dims).swapaxes(1, 2), [self._heads + self._kv_heads], axis=1)
        q, k = mx.split(self._rope(qk, offset), [self._heads], axis=1)
        return q, mx.stack([k, v])

    def _each(self, qkv: mx.array, offsets: mx.array) -> QKV:
        """One position, each head a row of its own: values are at position 0, where nothing turns."""
        B = qkv.shape[0]
        x = self._rope(qkv.reshape(-1, 1, 1, self.dims), offsets).reshape(B, -1, 1, self.dims)
        return self._parted(x)

    def _parted(self, x: mx.array) -> QKV:
        """(B, H + 2 Hkv, T, d) -> (B, H, T, d) and (2, B, Hkv, T, d)."""
        B, _, T, d = x.shape
        q, kv = mx.split(x, [self._heads], axis=1)
        if B == 1:
            return q, kv.reshape(2, 1, -1, T, d)
        return q, kv.reshape(B, 2, -1, T, d).swapaxes(0, 1)

    def _multiplied(self, qkv: mx.array, factors: mx.array) -> QKV:
        """A product of complex numbers: on MLX's CPU backend mx.fast.rope is 30 primitives in every layer."""
        B, T = qkv.shape[0], factors.shape[1]
        x = (qkv.view(mx.complex64).reshape(B, T, -1, self.dims // 2) * factors).view(mx.float32)  # (B, T, N, d)
        if T == 1:
            return self._parted(x.reshape(B, -1, 1, self.dims))
        q, k, v = mx.split(x.swapaxes(1, 2), [self._heads, self._heads + self._kv_heads], axis=1)
        return q, mx.stack([k, v])

    def _rope(self, x: mx.array, offset: int | mx.array) -> mx.array:
        periods = self._periods
        return mx.fast.rope(x, self.dims, traditional=True, base=None, scale=1.0, offset=offset, freqs=periods)

    def _offsets(self, offset: int | mx.array, rows: int) -> mx.array:
        """(rows * (H + 2 Hkv),)"""
        at = mx.broadcast_to(mx.reshape(mx.array(offset, mx.int32), (-1, 1)), (rows, 1))
        return mx.where(self._turned, at, 0).flatten()

    def _factors(self, offset: int | mx.array, T: int) -> mx.array:
        """e^(i angle) of each pair, (B or 1, T, H + 2 Hkv, d / 2) complex; 1 for values."""
        positions = mx.reshape(mx.array(offset), (-1, 1)) + mx.arange(T)
        angle = positions[:, :, None, None] * self.theta
        return mx.where(self._turned[:, None], mx.cos(angle) + mx.sin(angle) * mx.array(1j), mx.array(1 + 0j))


class Attention(nn.Module):
    def __init__(self, args: TransformerArgs):
        super().__init__()
        width, head_dim = args.embed_dim, args.head_dim
        self.q_proj = nn.Linear(width, args.num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, args.num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, args.num_kv_heads * head_dim, bias=False)
        self.output_proj = nn.Linear(args.num_heads * head_dim, width, bias=False)
        self.scale = head_dim**-0.5

    def prepare(self) -> None:
        self._qkv = fused(self, ["q_proj", "k_proj", "v_proj"], "qkv_proj")
        self._add_output = added(self.output_proj)

    def __call__(self, x: mx.array, h: mx.array, layer: int, cache: KVCache | RowsCache, turn: Turn) -> mx.array:
        """x and what it is added to, h the same, normed: (B, T, D) or, at T = 1, (B, D)."""
        y = cache.attend(layer, *turn(self._qkv(h)), self.scale)  # (B, H, T, d)
        if x.ndim == 3:
            y = y.swapaxes(1, 2)
        return self._add_output(x, y.reshape(*x.shape[:-1], -1))


class MLP(nn.Module):
    def __init__(self, args: TransformerArgs):
        super().__init__()
        self.w1 = nn.Linear(args.embed_dim, args.intermediate_dim, bias=False)  # gate
        self.w2 = nn.Linear(args.intermediate_dim, args.embed_dim, bias=False)  # down
        self.w3 = nn.Linear(args.embed_dim, args.intermediate_dim, bias=False)  # up

    def prepare(self) -> None:
        self._gate_up, self._add_down = fused(self, ["w1", "w3"], "w13"), added(self.w2)
        self._gated = gated_on_cpu if mx.default_device() == mx.cpu else gated_at_once

    def __call__(self, x: mx.array, h: mx.array) -> mx.array:
        return self._add_down(x, self._gated(*mx.split(self._gate_up(h), 2, axis=-1)))


def gated_on_cpu(gate: mx.array, up: mx.array) -> mx.array:
    """MLX's x86 backend takes a power in a third of the time of a sigmoid."""
    return gate * up / (mx.power(1 / math.e, gate) + 1)


class Layer(nn.Module):
    def __init__(self, args: TransformerArgs):
        super().__init__()
        self.attn = Attention(args)
        self.mlp = MLP(args)
        self.sa_norm = RMSNorm(args.embed_dim, args.norm_eps)
        self.mlp_norm = RMSNorm(args.embed_dim, args.norm_eps)

    def prepare(self) -> None:
        before = self.sa_norm.folded(self.attn.q_proj, self.attn.k_proj, self.attn.v_proj)
        between = self.mlp_norm.folded(self.mlp.w1, self.mlp.w3)
        self.attn.prepare()
        self.mlp.prepare()
        attend, feed = self.attn.__call__, self.mlp.__call__  # bound: a module looks its parts up slowly

        def run(x: mx.array, layer: int, cache: KVCache | RowsCache, turn: Turn) -> mx.array:
            x = attend(x, before(x), layer, cache, turn)
            return feed(x, between(x))

        self._run = run

    def __call__(self, x: mx.array, layer: int, cache: KVCache | RowsCache, turn: Turn) -> mx.array:
        return self._run(x, layer, cache, turn)


class Transformer(nn.Module):
    """`kept`: how many of the first positions every frame comes to anew."""

    def __init__(self, args: TransformerArgs, kept: int = 0):
        super().__init__()
        self.layers = [Layer(args) for _ in range(args.num_layers)]
        self.norm = RMSNorm(args.embed_dim, args.norm_eps)
        self.rope = Rope(args, kept)

    def prepare(self) -> None:
        for layer in self.layers:
            layer.prepare()
            mx.clear_cache()  # of what was fused: else there are two copies of the model
        self._norm = self.norm.bound()
        self._steps = tuple(self.layers)
        few = [few_rows.step_of(layer) for layer in self.layers]
        self._few = few if all(few) else self._steps

    def __call__(self, x: mx.array, cache: KVCache | RowsCache) -> mx.array:
        """x (B, T, D), or (B, D), at the cache's offset -> the normed hidden state of the last position (B, D)."""
        if x.ndim == 3 and x.shape[1] == 1:
            x = x[:, 0]  # (B, D): no flattening around every product
        T = x.shape[1] if x.ndim == 3 else 1
        turn = self.rope.at(cache.offset, T, x.shape[0], x.dtype)
        for i, layer in enumerate(self._few if x.ndim == 2 and len(x) <= MAX_ROWS else self._steps):
            x = layer(x, i, cache, turn)
        cache.advance(T)
        return self._norm(x if x.ndim == 2 else x[:, -1])
