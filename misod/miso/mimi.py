"""Mimi, the codec: PCM at 24 kHz <-> K codes per 80 ms frame (Défossez et al., 2024, arXiv:2410.00037).

Boxes in the paper's order: SEANet encoder, transformer, downsampling to 12.5 Hz, split residual vector
quantiser; then back. Weights are the published checkpoint's, under its names. Offline and streaming are
one code path (see seanet.py): a stream is a `State`, one row per stream, and a whole recording is a
stream fed in a few large pieces. This file knows nothing of text, voices or files of sound.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import prod, sqrt
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx import nn

from misod.miso.seanet import Conv, SEANetDecoder, SEANetEncoder, State, Take, merge_new_states
from misod.weights.check import compare, read_header

PIECE_FRAMES = 50  # 4 s: what the offline forms put through at a time, which bounds their memory
MIN_USAGE = 1e-5  # a codebook entry that training never chose has usage near 0
NORM_EPS = 1e-5
MAX_SIZE = 1 << 20  # of any number in a config: a typo must not build a million layers for minutes

# What this port assumes, in the config's own words; anything else is refused by name.
ASSUMED = {
    "": {"channels": 1},
    "seanet": {
        "channels": 1, "causal": True, "n_residual_layers": 1, "activation": "ELU", "norm": "none",
        "pad_mode": "constant", "true_skip": True,
    },
    "transformer": {
        "causal": True, "gating": "none", "norm": "layer_norm", "positional_embedding": "rope",
        "conv_layout": True,
    },
}  # fmt: skip


@dataclass(frozen=True)
class MimiConfig:
    sample_rate: int
    frame_rate: float
    n_filters: int
    dimension: int
    kernel_size: int
    residual_kernel_size: int
    last_kernel_size: int
    compress: int
    ratios: tuple[int, ...]
    n_q: int
    bins: int
    codebook_dim: int
    num_heads: int
    num_layers: int
    dim_feedforward: int
    context: int
    max_period: int

    @property
    def frame_samples(self) -> int:
        return round(self.sample_rate / self.frame_rate)  # 24,000 / 12.5 = 1,920

    @property
    def resample(self) -> int:
        """Stride between the SEANet's frames (25 Hz) and the codes' (12.5 Hz)."""
        return self.frame_samples // prod(self.ratios)

    @classmethod
    def from_dict(cls, raw: dict) -> "MimiConfig":
        """From the `mimi_config` map. Raises ValueError naming a key that is absent, odd or unsupported."""
        try:
            check_assumed(raw)
            flat = {**raw["quantizer"], **raw["transformer"], **raw["seanet"], **raw}
            flat |= {"codebook_dim": raw["quantizer"]["dimension"], "ratios": tuple(flat["ratios"])}
            config = cls(**{field.name: flat[field.name] for field in fields(cls)})
        except KeyError as error:
            raise ValueError(f"{error.args[0]} is missing") from None
        except TypeError as error:
            raise ValueError(f"malformed: {error}") from None
        for field in fields(cls):
            value = flat[field.name]
            kinds = (int, float) if field.name == "frame_rate" else (int,)
            for n in value if field.name == "ratios" else [value]:
                if type(n) not in kinds or not 0 < n <= MAX_SIZE:
                    raise ValueError(f"{field.name} is {value!r}, not a positive number")
        hop = prod(config.ratios)
        if config.resample * hop != config.frame_samples or config.dimension % config.num_heads:
            raise ValueError("frame and ratios, or width and heads, do not divide")
        return config


def check_assumed(raw: dict) -> None:
    width = raw["seanet"]["dimension"]
    widths = {
        "transformer": {"d_model": width, "input_dimension": width, "output_dimensions": [width]},
        "quantizer": {"input_dimension": width, "output_dimension": width},
    }
    for assumed in (ASSUMED, widths):
        for section, keys in assumed.items():
            found = raw[section] if section else raw
            for key, value in keys.items():
                if found[key] != value:
                    raise ValueError(f"{section}.{key} is {found[key]!r}, only {value!r} is supported")


class Attention(nn.Module):
    """Causal attention over the last `context` positions, keys and values of the past in the state."""

    def __init__(self, take: Take, name: str, config: MimiConfig, scale: mx.array):
        super().__init__()
        D = config.dimension
        self.name, self.heads, self.past = name, config.num_heads, config.context - 1
        self.base = float(config.max_period)
        self.in_proj = mx.contiguous(take(f"{name}.in_proj_weight", (3 * D, D)).T)
        self.out_proj = mx.contiguous((take(f"{name}.out_proj.weight", (D, D)) * scale[:, None]).T)

    def new_state(self, rows: int) -> State:
        D = self.out_proj.shape[0]
        empty = mx.zeros((rows, 2 * self.heads, self.past, D // self.heads), self.out_proj.dtype)
        return {self.name: empty}  # keys, then values

    def __call__(self, x: mx.array, state: State, position: mx.array, mask: mx.array) -> mx.array:
        B, T, D = x.shape
        H, d = self.heads, D // self.heads
        qkv = (x @ self.in_proj).reshape(B, T, 3 * H, d).transpose(0, 2, 1, 3)  # (B, 3H, T, d)
        qk = mx.fast.rope(qkv[:, : 2 * H], d, traditional=True, base=self.base, scale=1.0, offset=position)
        kv = mx.concatenate([qk[:, H:], qkv[:, 2 * H :]], axis=1)  # (B, 2H, T, d)
        kv = mx.concatenate([state[self.name], kv], axis=2)  # (B, 2H, past + T, d)
        state[self.name] = kv[:, :, T:]
        q, k, v = qk[:, :H], kv[:, :H], kv[:, H:]
        y = mx.fast.scaled_dot_product_attention(q, k, v, scale=1 / sqrt(d), mask=mask)
        return y.transpose(0, 2, 1, 3).reshape(B, T, D) @ self.out_proj


class TransformerLayer(nn.Module):
    def __init__(self, take: Take, name: str, config: MimiConfig):
        super().__init__()
        D, F = config.dimension, config.dim_feedforward
        # layer scales multiply an output, so they fold into the matrix before it
        scale_1, scale_2 = (take(f"{name}.layer_scale_{i}.scale", (D,)) for i in (1, 2))
        self.norm1 = [take(f"{name}.norm1.{part}", (D,)) for part in ("weight", "bias")]
        self.norm2 = [take(f"{name}.norm2.{part}", (D,)) for part in ("weight", "bias")]
        self.self_attn = Attention(take, f"{name}.self_attn", config, scale_1)
        self.linear1 = mx.contiguous(take(f"{name}.linear1.weight", (F, D)).T)
        self.linear2 = mx.contiguous((take(f"{name}.linear2.weight", (D, F)) * scale_2[:, None]).T)

    def new_state(self, rows: int) -> State:
        return self.self_attn.new_state(rows)

    def __call__(self, x: mx.array, state: State, position: mx.array, mask: mx.array) -> mx.array:
        x = x + self.self_attn(mx.fast.layer_norm(x, *self.norm1, NORM_EPS), state, position, mask)
        y = mx.fast.layer_norm(x, *self.norm2, NORM_EPS) @ self.linear1
        y = y * (0.5 + 0.5 * mx.erf(y * sqrt(0.5)))  # exact GELU: Kyutai's own MLX port approximates it
        return x + y @ self.linear2


class Transformer(nn.Module):
    """(B, T, D) -> (B, T, D). Each row is at its own position, which the state holds."""

    def __init__(self, take: Take, name: str, config: MimiConfig):
        super().__init__()
        self.name, self.context = f"{name}.position", config.context
        names = [f"{name}.transformer.layers.{i}" for i in range(config.num_layers)]
        self.layers = [TransformerLayer(take, layer, config) for layer in names]

    def new_state(self, rows: int) -> State:
        return {self.name: mx.zeros((rows,), mx.int32), **merge_new_states(self.layers, rows)}

    def __call__(self, x: mx.array, state: State) -> mx.array:
        position, T = state[self.name], x.shape[1]
        mask = window_mask(position, T, self.context)
        for layer in self.layers:
            x = layer(x, state, position, mask)
        state[self.name] = position + T
        return x


def window_mask(position: mx.array, T: int, context: int) -> mx.array:
    """(B, 1, T, context - 1 + T), true where a query sees a key. The first context - 1 keys are the past."""
    key = mx.arange(context - 1 + T)
    age = mx.arange(context - 1, context - 1 + T)[:, None] - key
    written = key >= context - 1 - position[:, None, None, None]  # a young stream's past is not full
    return written & (age >= 0) & (age < context)


class Quantizer(nn.Module):
    """Two residual quantisers of the same latent: codebook 0 alone, and 1..K-1, each with its projections."""

    def __init__(self, take: Take, config: MimiConfig):
        super().__init__()
        self.bins, self.n_q = config.bins, config.n_q
        D, dim = config.dimension, config.codebook_dim
        self.input_proj, output_proj, books = [], [], []
        for name, count in (("quantizer.rvq_first", 1), ("quantizer.rvq_rest", config.n_q - 1)):
            self.input_proj.append(mx.contiguous(take(f"{name}.input_proj.weight", (dim, D, 1))[..., 0].T))
            output_proj.append(take(f"{name}.output_proj.weight", (D, dim, 1))[..., 0].T)
            books += [self._codebook(take, f"{name}.vq.layers.{i}._codebook", dim) for i in range(count)]
        self.output_proj = mx.concatenate(output_proj)  # (2 dim, D)
        self.embedding = mx.stack(books)  # (n_q, bins, dim)

    def _codebook(self, take: Take, name: str, dim: int) -> mx.array:
        take(f"{name}._initialized", (1,))
        usage = take(f"{name}.cluster_usage", (self.bins,))
        return take(f"{name}.embedding_sum", (self.bins, dim)) / mx.maximum(usage, MIN_USAGE)[:, None]

    def encode(self, latent: mx.array, num_codebooks: int) -> mx.array:
        """(B, T, D) -> (B, num_codebooks, T) int32, the nearest entry of each codebook to what is left."""
        codes = []
        for k in range(num_codebooks):
            if k < 2:
                residual = latent @ self.input_proj[k]  # (B, T, dim): both quantisers start from the latent
            book = self.embedding[k]
            distance = 0.5 * mx.sum(book * book, axis=-1) - residual @ book.T  # less a term all entries share
            codes.append(mx.argmin(distance, axis=-1))
            residual = residual - book[codes[-1]]
        return mx.stack(codes, axis=1).astype(mx.int32)

    def decode(self, codes: mx.array, there: mx.array | None = None) -> mx.array:
        """codes (B, k, T), and which codebooks a row has (B, k); None: all -> (B, T, D)"""
        k = codes.shape[1]
        books = self.embedding.reshape(self.n_q * self.bins, -1)
        entries = books[codes + mx.arange(0, k * self.bins, self.bins)[:, None]]  # (B, k, T, dim)
        if there is not None:  # of the same shape for every row, so that its sum is too, whoever else is decoded
            entries = mx.where(there[:, :, None, None], entries, 0)
        if k == 1:
            return entries[:, 0] @ self.output_proj[: entries.shape[-1]]
        both = mx.concatenate([entries[:, 0], entries[:, 1:].sum(axis=1)], axis=-1)  # (B, T, 2 dim)
        return both @ self.output_proj


class Upsample(nn.Module):
    """Depthwise ConvTranspose1d of kernel 2 * stride, trimmed right. (B, T, D) -> (B, T * stride, D)"""

    def __init__(self, take: Take, name: str, config: MimiConfig):
        super().__init__()
        self.name, self.stride = f"{name}.convtr.convtr.convtr", config.resample
        weight = take(f"{self.name}.weight", (config.dimension, 1, 2 * self.stride))
        self.weight = mx.contiguous(weight[:, 0].T)  # (2 * stride, D)

    def new_state(self, rows: int) -> State:
        return {self.name: mx.zeros((rows, 1, self.weight.shape[1]), self.weight.dtype)}

    def __call__(self, x: mx.array, state: State) -> mx.array:
        B, T, D = x.shape
        before = mx.concatenate([state[self.name], x[:, :-1]], axis=1)
        state[self.name] = x[:, -1:]
        here, after = self.weight[: self.stride], self.weight[self.stride :]
        y = x[:, :, None] * here + before[:, :, None] * after  # (B, T, stride, D)
        return y.reshape(B, T * self.stride, D)


class Mimi(nn.Module):
    def __init__(self, config: MimiConfig, take: Take):
        super().__init__()
        self.config, D = config, config.dimension
        self.encoder = SEANetEncoder(take, config)
        self.encoder_transformer = Transformer(take, "encoder_transformer", config)
        stride = config.resample
        self.downsample = Conv(take, "downsample.conv.conv.conv", D, D, 2 * stride, stride, bias=False)
        self.quantizer = Quantizer(take, config)
        self.upsample = Upsample(take, "upsample", config)
        self.decoder_transformer = Transformer(take, "decoder_transformer", config)
        self.decoder = SEANetDecoder(take, config)

    def encode(self, pcm: mx.array, num_codebooks: int | None = None) -> mx.array:
        """(B, n) samples in [-1, 1] -> (B, K, T) int32; T = ceil(n / frame_samples), the rest zeros.

        Raises ValueError on a non-finite sample: NaN would encode to code 0, a frame that means "end".
        """
        K = self.config.n_q if num_codebooks is None else num_codebooks
        return mx.concatenate(list(self.encode_pieces(pcm, K, PIECE_FRAMES)), axis=-1)

    def encode_pieces(self, pcm: mx.array, K: int, frames: int) -> Iterator[mx.array]:
        """The same, so many frames at a time, each computed when it is asked for. The first is empty."""
        if pcm.ndim != 2:
            raise ValueError(f"encode needs pcm (B, n), not {pcm.shape}")
        if not 1 <= K <= self.config.n_q:
            raise ValueError(f"encode can give 1..{self.config.n_q} codebooks, not {K}")
        if not mx.all(mx.isfinite(pcm)).item():
            raise ValueError("encode: the recording holds samples that are not finite")
        B, n = pcm.shape
        frame = self.config.frame_samples
        pcm = mx.pad(pcm, [(0, 0), (0, -n % frame)])
        state = merge_new_states([self.encoder, self.encoder_transformer], B)
        yield mx.zeros((B, K, 0), mx.int32)
        for start in range(0, n, frames * frame):
            codes = self.quantizer.encode(self.latent(pcm[:, start : start + frames * frame], state), K)
            mx.eval(codes, state)
            yield codes

    def latent(self, pcm: mx.array, state: State) -> mx.array:
        """(B, T * frame_samples) -> (B, T, D), writing the encoder's next state into `state`."""
        x = self.encoder(pcm[..., None].astype(self.downsample.weight.dtype), state)
        x = self.encoder_transformer(x, state)
        if self.downsample.name not in state:  # the one convolution that repeats its first step, not zeros
            state[self.downsample.name] = mx.repeat(x[:, :1], self.config.resample, axis=1)
        return self.downsample(x, state)

    def decode(self, codes: mx.array) -> mx.array:
        """(B, k <= K, T) -> (B, T * frame_samples) float32. Raises ValueError on a code out of range."""
        if codes.ndim != 3 or not 1 <= codes.shape[1] <= self.config.n_q:
            raise ValueError(f"decode needs codes (B, 1..{self.config.n_q}, T), not {codes.shape}")
        B, _, T = codes.shape
        if T and not mx.all((codes >= 0) & (codes < self.config.bins)).item():
            raise ValueError(f"decode: a code is outside 0..{self.config.bins - 1}")
        state = self.new_state(B)
        pieces = [mx.zeros((B, 0))]
        for start in range(0, T, PIECE_FRAMES):
            pcm, state = self.step(codes[..., start : start + PIECE_FRAMES], state)
            pieces.append(pcm)
            mx.eval(pcm, state)
        return mx.concatenate(pieces, axis=-1)

    def new_state(self, rows: int = 1) -> State:
        """A decoder's state before its first frame."""
        return merge_new_states([self.upsample, self.decoder_transformer, self.decoder], rows)

    def step(self, codes: mx.array, state: State, there: mx.array | None = None) -> tuple[mx.array, State]:
        """(B, k, n >= 1) -> (B, n * frame_samples) float32 and the next state; `state` is left as it was.
        `there` (B, k): which codebooks a row has; None: all.

        Every n = 1 step has the same shapes, so it may be compiled. The caller guarantees that
        0 <= codes < bins: looking would wait for the sampler's result, and MLX reads past a table in silence.
        """
        state = dict(state)
        x = self.upsample(self.quantizer.decode(codes, there), state)
        x = self.decoder_transformer(x, state)
        return self.decoder(x, state)[..., 0].astype(mx.float32), state


def concat_states(states: Sequence[State]) -> State:
    """One batch of all the rows of `states`, in order; the streams may be at different positions."""
    return {name: _join([state[name] for state in states]) for name in states[0]}


def _join(arrays: Sequence[mx.array | np.ndarray]) -> mx.array | np.ndarray:
    return (np if isinstance(arrays[0], np.ndarray) else mx).concatenate(arrays)


def take_rows(state: State, rows: Sequence[int]) -> State:
    """The batch of these rows of `state`: drops, picks or reorders streams."""
    index = mx.array(rows, mx.int32)
    return {name: array[list(rows) if isinstance(array, np.ndarray) else index] for name, array in state.items()}


def expected_tensors(config: MimiConfig) -> dict[str, tuple[int, ...]]:
    """Checkpoint name -> shape of every tensor a Mimi of this config takes."""
    shapes = {}

    def record(name: str, shape: tuple[int, ...]) -> mx.array:
        shapes[name] = shape
        return mx.zeros(shape)  # lazy: never computed

    Mimi(config, record)
    return shapes


def load_mimi(directory: Path, dtype: mx.Dtype = mx.float32) -> Mimi:
    """From `config.json` ({"mimi_config": ...}) and `model.safetensors`, whatever float type that holds.

    Raises ValueError naming the file and each missing, extra or misshapen tensor, before any is read.
    `dtype` is what it computes in; the published codec is meant for float32.
    """
    config = read_config(directory / "config.json")
    path = directory / "model.safetensors"
    compare(path, read_header(path), expected_tensors(config))
    weights = mx.load(str(path))
    mimi = Mimi(config, lambda name, shape: weights[name].astype(mx.float32))
    mimi.set_dtype(dtype)
    mx.eval(mimi.parameters())
    return mimi


def read_config(path: Path) -> MimiConfig:
    try:
        return MimiConfig.from_dict(json.loads(path.read_bytes())["mimi_config"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: not a Mimi config: {error}") from error
