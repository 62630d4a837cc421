"""The MisoTTS model: a Llama-style backbone over frames, a depth decoder over a frame's codebooks.

Names are the reference checkpoint's own (torchtune's spelling), in the order it computes:
Attention, MLP, Layer, Transformer, Model. Any dims come from config.json (misod.weights.dims).
"""

import math
from collections.abc import Callable
from dataclasses import asdict
from types import EllipsisType

import mlx.core as mx
import mlx.nn as nn

from misod.miso.cache import KVCache, RowsCache
from misod.weights.dims import ModelArgs, TransformerArgs
from misod.weights.plan import Affine, Quantization

Draw = Callable[[int, mx.array], mx.array]  # (codebook, logits (B, V)) -> codes (B,)

TABLE_ROWS = 256


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
        self._eps = eps

    def __call__(self, x: mx.array) -> mx.array:
        return mx.fast.rms_norm(x, self.scale, self._eps)  # accumulates in fp32


class Rope:
    """Rotary positions on interleaved pairs. `at` is asked once a pass; all layers share what it returns."""

    def __init__(self, args: TransformerArgs):
        self.dims = args.head_dim
        self.theta = rope_theta(args)
        pairs = mx.arange(self.dims)
        self.even = (pairs % 2 == 0)[:, None] & (pairs[:, None] + 1 == pairs)  # (d, d): x[2i] -> y[2i + 1]
        mx.eval(self.theta, self.even)

    def at(self, offset: int | mx.array, T: int) -> Callable[[mx.array], mx.array]:
        """The rotation of x (B, H, T, d) at positions offset..offset + T; offset () or one a row (B,)."""
        if T == 1 and mx.default_device() == mx.cpu:
            matrix = self._matrix(offset)
            return lambda x: x @ matrix
        # mx.fast.rope takes the reciprocal of the angular frequency
        rope, periods = mx.fast.rope, 1 / self.theta
        return lambda x: rope(x, self.dims, traditional=True, base=None, scale=1.0, offset=offset, freqs=periods)

    def _matrix(self, offset: int | mx.array) -> mx.array:
        """The rotation as one product: on MLX's CPU backend mx.fast.rope is 30 primitives in every layer."""
        angle = mx.repeat(mx.reshape(mx.array(offset), (-1, 1)) * self.theta, 2, axis=1)  # (B or 1, d)
        sin = mx.where(self.even, mx.sin(angle)[:, None], 0)  # (B, d, d)
        return (mx.cos(angle)[:, None] * mx.eye(self.dims) + sin - sin.swapaxes(1, 2))[:, None]  # (B, 1, d, d)


class Attention(nn.Module):
    def __init__(self, args: TransformerArgs):
        super().__init__()
        width, head_dim = args.embed_dim, args.head_dim
        self._heads, self._kv_heads, self._head_dim = args.num_heads, args.num_kv_heads, head_dim
        self.q_proj = nn.Linear(width, args.num_heads * head_dim, bias=False)
        self.k_proj = nn.Linear(width, args.num_kv_heads * head_dim, bias=False)
        self.v_proj = nn.Linear(width, args.num_kv_heads * head_dim, bias=False)
        self.output_proj = nn.Linear(args.num_heads * head_dim, width, bias=False)

    def __call__(self, x: mx.array, layer: int, cache: KVCache | RowsCache, rotate: Callable) -> mx.array:
        q = self._split(self.q_proj(x), self._heads)  # (B, H, T, d)
        k = self._split(self.k_proj(x), self._kv_heads)  # (B, Hkv, T, d)
        v = self._split(self.v_proj(x), self._kv_heads)
        y = cache.attend(layer, rotate(q), rotate(k), v, self._head_dim**-0.5)
        if x.ndim == 3:
            y = y.swapaxes(1, 2)
        return self.output_proj(y.reshape(*x.shape[:-1], -1))

    def _split(self, x: mx.array, heads: int) -> mx.array:
        """(B, T, heads * d) or, at T = 1, (B, heads * d) -> (B, heads, T, d)."""
        if x.ndim == 2:
            return x.reshape(x.shape[0], heads, 1, -1)
        return x.reshape(*x.shape[:2], heads, -1).swapaxes(1, 2)


class MLP(nn.Module):
    def __init__(self, args: TransformerArgs):
        super().__init__()
        self.w1 = nn.Linear(args.embed_dim, args.intermediate_dim, bias=False)  # gate
        self.w2 = nn.Linear(args.intermediate_dim, args.embed_dim, bias=False)  # down
        self.w3 = nn.Linear(args.embed_dim, args.intermediate_dim, bias=False)  # up

    def __call__(self, x: mx.array) -> mx.array:
        gate = self.w1(x)
        return self.w2(gate * mx.sigmoid(gate) * self.w3(x))  # nn.silu is compiled: on a CPU that takes g++


class Layer(nn.Module):
    def __init__(self, args: TransformerArgs):
        super().__init__()
        self.attn = Attention(args)
        self.mlp = MLP(args)
        self.sa_norm = RMSNorm(args.embed_dim, args.norm_eps)
        self.mlp_norm = RMSNorm(args.embed_dim, args.norm_eps)

    def __call__(self, x: mx.array, layer: int, cache: KVCache | RowsCache, rotate: Callable) -> mx.array:
        x = x + self.attn(self.sa_norm(x), layer, cache, rotate)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    def __init__(self, args: TransformerArgs):
        super().__init__()
        self.layers = [Layer(args) for _ in range(args.num_layers)]
        self.norm = RMSNorm(args.embed_dim, args.norm_eps)
        self._rope = Rope(args)

    def __call__(self, x: mx.array, cache: KVCache | RowsCache) -> mx.array:
        """x (B, T, D) at the cache's offset -> the normed hidden state of the last position (B, D)."""
        T = x.shape[1]
        rotate = self._rope.at(cache.offset, T)
        if T == 1:
            x = x[:, 0]  # (B, D): no flattening around every product
        for i, layer in enumerate(self.layers):
            x = layer(x, i, cache, rotate)
        cache.advance(T)
        return self.norm(x if T == 1 else x[:, -1])


def rows_of(module: nn.Module, dtype: mx.Dtype, rows: mx.array | EllipsisType = ...) -> mx.array:
    """Rows of a layer's or a table's matrix, unpacked in `dtype`: in bf16, the type of scales, a code loses bits."""
    if "scales" not in module:
        return module.weight[rows].astype(dtype)
    scales, biases = (module[part][rows].astype(dtype) for part in ("scales", "biases"))
    return mx.dequantize(module.weight[rows], scales, biases, group_size=module.group_size, bits=module.bits)


class PackedHeads(nn.Module):
    """audio_head packed: a matrix a codebook but the first, each transposed, (K - 1, V, Dd)."""

    def __init__(self, shape: tuple[int, int, int], how: Affine):
        super().__init__()
        self._how = asdict(how)
        self.weight, self.scales, self.biases = mx.quantize(mx.zeros(shape).swapaxes(1, 2), **self._how)

    def __call__(self, k: int, h: mx.array) -> mx.array:
        """h (B, Dd) -> (B, V)."""
        return mx.quantized_matmul(h, self.weight[k], self.scales[k], self.biases[k], transpose=True, **self._how)


class Model(nn.Module):
    """Text and audio frames in, the K codes of the next frame out.

    A row of input is the sum of K audio embeddings and one text embedding, the absent ones left out.
    """

    def __init__(self, args: ModelArgs):
        super().__init__()
        D, Dd, K, V = args.backbone.embed_dim, args.decoder.embed_dim, args.audio_num_codebooks, args.audio_vocab_size
        self.args = args
        self.backbone = Transformer(args.backbone)
        self.decoder = Transformer(args.decoder)
        self.text_embeddings = nn.Embedding(args.text_vocab_size, D)
        self.audio_embeddings = nn.Embedding(K * V, D)
        self.projection = nn.Linear(D, Dd, bias=False)
        self.codebook0_head = nn.Linear(D, V, bias=False)
        self.audio_head = mx.zeros((K - 1, Dd, V))
        self._first_code = mx.arange(K) * V  # row of codebook k's code 0 in audio_embeddings
        self._dtype = mx.float32  # of activations
        self._depth_inputs: list[mx.array] = []

    def keep_packed(self, quantization: Quantization) -> None:
        """Before the weights are loaded: make the modules that hold these tensors packed. Nothing is computed."""
        nn.quantize(self, class_predicate=lambda path, _: path in quantization and asdict(quantization[path]))
        if "audio_head" in quantization:
            self.audio_head = PackedHeads(self.audio_head.shape, quantization["audio_head"])

    def prepare(self) -> None:
        """Once the weights are loaded: activations take the norms' type, and projection(audio_embeddings), K times
        (V, Dd), is tabulated in the type the embeddings are stored in, a few rows at a time to hold little else."""
        self._dtype = self.backbone.norm.scale.dtype
        stored = self.audio_embeddings.get("scales", self.audio_embeddings.weight).dtype
        projection = rows_of(self.projection, self._dtype).T  # many rows: on a CPU far faster than packed
        self._depth_inputs, V = [], self.args.audio_vocab_size
        for first in self._first_code.tolist():
            parts = []
            for start in range(first, first + V, TABLE_ROWS):
                codes = mx.arange(start, min(start + TABLE_ROWS, first + V))
                parts.append((rows_of(self.audio_embeddings, self._dtype, codes) @ projection).astype(stored))
                mx.eval(parts)
            self._depth_inputs.append(mx.concatenate(parts))
            mx.eval(self._depth_inputs)

    @property
    def dtype(self) -> mx.Dtype:
        """Of activations, and so of what a cache holds."""
        return self._dtype

    @property
    def cache_layout(self) -> tuple[int, int, int]:
        """(2 layers, Hkv, d): what a packed cache has but for its positions."""
        backbone = self.args.backbone
        return 2 * backbone.num_layers, backbone.num_kv_heads, backbone.head_dim

    def new_cache(self) -> KVCache:
        return KVCache(self.args.backbone.num_layers)

    def embed_prompt(self, tokens: mx.array, mask: mx.array) -> mx.array:
        """tokens and mask (T, K + 1), the last column text -> (1, T, D)."""
        audio = rows_of(self.audio_embeddings, self._dtype, tokens[:, :-1] + self._first_code)  # (T, K, D)
        text = rows_of(self.text_embeddings, self._dtype, tokens[:, -1:])  # (T, 1, D)
        rows = mx.concatenate([audio, text], axis=1)
        return mx.where(mask[..., None], rows, 0).sum(axis=1)[None]

    def embed_frame(self, codes: mx.array) -> mx.array:
        """codes (B, K) -> (B, 1, D)."""
        return rows_of(self.audio_embeddings, self._dtype, codes + self._first_code).sum(axis=1, keepdims=True)

    def read(self, x: mx.array, cache: KVCache | RowsCache) -> mx.array:
        """The backbone over x (B, T, D) -> the last position's hidden state (B, D)."""
        return self.backbone(x, cache)

    def frame(self, last_h: mx.array, draw: Draw) -> tuple[mx.array, mx.array]:
        """last_h (B, D) -> the next frame's codes (B, K) and whether all its logits were finite (B,).

        `draw` picks a code from each codebook's logits. The depth decoder's cache lives for this frame.
        """
        cache = KVCache(self.args.decoder.num_layers, block=self.args.audio_num_codebooks)
        logits = [self.codebook0_head(last_h)]  # (B, V)
        codes = [draw(0, logits[0])]
        x = mx.stack([self.projection(last_h), self._depth_input(0, codes[0])], axis=1)  # (B, 2, Dd)
        for k in range(1, self.args.audio_num_codebooks):
            logits.append(self._head(k - 1, self.decoder(x, cache)))
            codes.append(draw(k, logits[k]))
            x = self._depth_input(k, codes[k])[:, None]  # (B, 1, Dd)
        return mx.stack(codes, axis=1), mx.isfinite(mx.concatenate(logits, axis=1)).all(axis=1)

    def _depth_input(self, k: int, codes: mx.array) -> mx.array:
        """projection of codebook k's embeddings of codes (B,) -> (B, Dd)."""
        return self._depth_inputs[k][codes].astype(self._dtype)

    def _head(self, k: int, h: mx.array) -> mx.array:
        return h @ self.audio_head[k] if isinstance(self.audio_head, mx.array) else self.audio_head(k, h)
