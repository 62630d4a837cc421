"""The MisoTTS model: a Llama-style backbone over frames, a depth decoder over a frame's codebooks.

Names are the reference checkpoint's own (torchtune's spelling), in the order it computes:
Attention, MLP, Layer, Transformer, Model. Any dims come from config.json (misod.weights.dims).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import EllipsisType

import mlx.core as mx
import mlx.nn as nn

from misod.cuda import MAX_ROWS
from misod.miso import few_rows
from misod.miso.cache import KVCache, RowsCache
from misod.weights.dims import ModelArgs, TransformerArgs
from misod.weights.plan import Affine, Quantization

Draw = Callable[[int, mx.array], mx.array]  # (codebook, logits (B, V)) -> codes (B,)
Unary = Callable[[mx.array], mx.array]
QKV = tuple[mx.array, mx.array]  # q (B, H, T, d); k and v (2, B, Hkv, T, d)
Turn = Callable[[mx.array], QKV]

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


def gated(gate: mx.array, up: mx.array) -> mx.array:
    return gate * mx.sigmoid(gate) * up


gated_at_once = mx.compile(gated, shapeless=True)  # one kernel for three; on a CPU that would take g++


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


def bound(module: nn.Module) -> Unary:
    """The product with a layer's matrix, its arrays looked up once: a module looks them up slowly, at every call."""
    if "scales" in module:
        return packed_product(module.weight, module.scales, module.biases, module.bits, module.group_size)
    return dense_product(matrix_of(module))


def added(module: nn.Module) -> Callable[[mx.array, mx.array], mx.array]:
    """(x, y) -> x + module(y)."""
    if "scales" in module:
        product = bound(module)
        return lambda x, y: x + product(y)
    matrix = matrix_of(module)
    return lambda x, y: mx.addmm(x, y, matrix)


def matrix_of(module: nn.Module) -> mx.array:
    """A layer's matrix as it is multiplied with, (in, out); on a CPU in that order in memory, and only there.

    OpenBLAS multiplies up to eight rows with the other one two to four times as slowly: it turns the matrix each time.
    """
    if mx.default_device() == mx.cpu:
        module.weight = mx.contiguous(module.weight.T).T
    matrix = module.weight.T
    mx.eval(matrix)
    return matrix


def fused(parent: nn.Module, names: list[str], name: str) -> Unary:
    """Of layers that read the same input: one product, where all are stored alike, of what becomes `parent`'s `name`.

    They are gone from parent then, and at most these few are in memory twice.
    """
    parts = [parent[each] for each in names]
    kinds = {(getattr(p, "bits", 0), getattr(p, "group_size", 0), p.weight.dtype) for p in parts}
    if len(kinds) > 1:
        products = [bound(part) for part in parts]
        return lambda x: mx.concatenate([product(x) for product in products], axis=-1)
    whole = parts[0]
    whole.update({key: mx.concatenate([part[key] for part in parts]) for key in whole.parameters()})
    mx.eval(whole.parameters())
    for each in names:
        delattr(parent, each)
    parent[name] = whole
    return bound(whole)


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
        self.bits, self.group_size = how.bits, how.group_size
        self.weight, self.scales, self.biases = mx.quantize(mx.zeros(shape).swapaxes(1, 2), **asdict(how))

    def matrices(self) -> Iterator[tuple[mx.array, mx.array, mx.array]]:
        """weight, scales and biases of each."""
        return zip(*(parted(array) for array in (self.weight, self.scales, self.biases)), strict=True)

    def bound(self) -> list[Unary]:
        return [packed_product(*matrix, self.bits, self.group_size) for matrix in self.matrices()]


def dense_product(matrix: mx.array) -> Unary:
    return lambda x: x @ matrix


def packed_product(weight: mx.array, scales: mx.array, biases: mx.array, bits: int, group_size: int) -> Unary:
    return lambda x: mx.quantized_matmul(x, weight, scales, biases, True, group_size, bits)


def parted(stack: mx.array) -> list[mx.array]:
    """Views of what it is made of. What is taken by a number is copied."""
    views = [part.squeeze(0) for part in mx.split(stack, len(stack))]
    mx.eval(views)
    return views


class Model(nn.Module):
    """Text and audio frames in, the K codes of the next frame out.

    A row of input is the sum of K audio embeddings and one text embedding, the absent ones left out.
    """

    def __init__(self, args: ModelArgs):
        super().__init__()
        D, Dd, K, V = args.backbone.embed_dim, args.decoder.embed_dim, args.audio_num_codebooks, args.audio_vocab_size
        self.args = args
        self.backbone = Transformer(args.backbone)
        self.decoder = Transformer(args.decoder, kept=K)
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
        """Once the weights are loaded: what is multiplied with the same input becomes one matrix; activations take the
        norms' type."""
        self._dtype = self.backbone.norm.scale.dtype
        self.backbone.prepare()
        self.decoder.prepare()
        self._tabulate()
        self.bind()

    def bind(self) -> None:
        """Anew where the heads' arrays were replaced."""
        heads, packed = self.audio_head, isinstance(self.audio_head, PackedHeads)
        self._project = bound(self.projection)
        rest = heads.bound() if packed else map(dense_product, parted(heads))
        self._heads = bound(self.codebook0_head), *rest
        self._few = few_rows.Depth.of(self)

    def _tabulate(self) -> None:
        """projection(audio_embeddings), K times (V, Dd), in the type the embeddings are stored in, a few rows at a time
        to hold little else; and each codebook's mean embedding, (K, D)."""
        stored = self.audio_embeddings.get("scales", self.audio_embeddings.weight).dtype
        projection = rows_of(self.projection, self._dtype).T  # many rows: on a CPU far faster than packed
        self._depth_inputs, means, V = [], [], self.args.audio_vocab_size
        for first in self._first_code.tolist():
            parts, total = [], 0
            for start in range(first, first + V, TABLE_ROWS):
                codes = mx.arange(start, min(start + TABLE_ROWS, first + V))
                rows = rows_of(self.audio_embeddings, self._dtype, codes)
                parts.append((rows @ projection).astype(stored))
                total = total + rows.astype(mx.float32).sum(axis=0)
                mx.eval(parts, total)
            self._depth_inputs.append(mx.concatenate(parts))
            means.append((total / V).astype(self._dtype))
            mx.eval(self._depth_inputs, means)
        self._means = mx.stack(means)
        mx.eval(self._means)

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

    def embed_prompt(self, tokens: mx.array, mask: mx.array, there: mx.array | None = None) -> mx.array:
        """tokens and mask (T, K + 1), the last column text -> (1, T, D). `there` (T, K) as in embed_frame."""
        audio = self._embed_audio(tokens[:, :-1], there)
        text = rows_of(self.text_embeddings, self._dtype, tokens[:, -1:])  # (T, 1, D)
        rows = mx.concatenate([audio, text], axis=1)
        return mx.where(mask[..., None], rows, 0).sum(axis=1)[None]

    def embed_frame(self, codes: mx.array, there: mx.array | None = None) -> mx.array:
        """codes (B, K), and which of them are there (B, K); None: all -> (B, 1, D)."""
        return self._embed_audio(codes, there).sum(axis=1, keepdims=True)

    def _embed_audio(self, codes: mx.array, there: mx.array | None) -> mx.array:
        """(n, K) -> (n, K, D). For what is not there stands the mean of its codebook: nearer to the sum that was taught
        than nothing is, and than any one code."""
        rows = rows_of(self.audio_embeddings, self._dtype, codes + self._first_code)
        return rows if there is None else mx.where(there[..., None], rows, self._means)

    def read(self, x: mx.array, cache: KVCache | RowsCache) -> mx.array:
        """The backbone over x (B, T, D) -> the last position's hidden state (B, D)."""
        return self.backbone(x, cache)

    def frame(self, last_h: mx.array, draw: Draw, depth: int | None = None) -> tuple[mx.array, mx.array]:
        """last_h (B, D) -> the next frame's codes (B, K) and whether all its logits were finite (B,).

        `draw` picks a code from each codebook's logits. The depth decoder's cache lives for this frame.
        `depth`: how many codebooks are drawn; None: all. The codes of the rest are 0.
        """
        K = self.args.audio_num_codebooks
        begin = self._few.begin if self._few and len(last_h) <= MAX_ROWS else self.at_depth
        first, step = begin(last_h)
        logits, codes = [first], [draw(0, first)]
        for k in range(1, depth or K):
            logits.append(step(k, self._depth_input(k - 1, codes[k - 1])))
            codes.append(draw(k, logits[k]))
        every = mx.concatenate(logits, axis=1)
        if len(codes) < K:
            codes += [mx.zeros_like(codes[0])] * (K - len(codes))
        return mx.stack(codes, axis=1), (every - every == 0).all(axis=1)  # neither NaN nor infinity less itself is 0

    def at_depth(self, last_h: mx.array) -> tuple[mx.array, Callable[[int, mx.array], mx.array]]:
        """Logits of a frame: of codebook 0 (B, V), and (k, what the depth decoder reads (B, Dd)) -> of codebook k."""
        cache = KVCache(self.args.decoder.num_layers, block=self.args.audio_num_codebooks)
        first = self._project(last_h)

        def step(k: int, x: mx.array) -> mx.array:
            x = mx.stack([first, x], axis=1) if k == 1 else x  # two positions at once
            return self._heads[k](self.decoder(x, cache))

        return self._heads[0](last_h), step

    def _depth_input(self, k: int, codes: mx.array) -> mx.array:
        """projection of codebook k's embeddings of codes (B,) -> (B, Dd)."""
        return self._depth_inputs[k][codes].astype(self._dtype)
