"""Mimi's decoder in numpy, for the CPU: what Mimi.step makes, in a third of the processor time.

MLX's x86 backend takes one exponential at a time, 18 ns where numpy's vector takes 1, and the codec has 204,000 of them
in a frame of nano. And numpy lets go of the interpreter while it works, so this runs beside MLX on a thread of its own.

The boxes, their names, the weights and the state are those of mimi.py and seanet.py, which this must agree with:
tests/model/test_mimi.py holds both to the reference. Arrays are (B, T, C), float32.
"""

from math import sqrt

import mlx.core as mx
import numpy as np
from numpy.lib.stride_tricks import as_strided

from misod.miso import mimi, seanet

State = dict[str, np.ndarray]  # every array has one row per stream on axis 0

# erf of x >= 0 within 1.5e-7: Abramowitz and Stegun, 7.1.26. numpy has none.
ERF_P = 0.3275911
ERF_A = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)


def view(array: mx.array) -> np.ndarray:
    """Of the same memory."""
    mx.eval(array)
    return np.asarray(array)


def elu(x: np.ndarray) -> np.ndarray:
    y = np.minimum(x, 0)
    return np.maximum(x, np.expm1(y, out=y), out=y)


def gelu(x: np.ndarray) -> np.ndarray:
    z = np.abs(x) * np.float32(sqrt(0.5))
    t = 1 / (1 + np.float32(ERF_P) * z)
    series = np.polyval([np.float32(a) for a in (*reversed(ERF_A), 0)], t)
    erf = np.copysign(1 - series * np.exp(-z * z), x)
    return x * (0.5 + 0.5 * erf)


def layer_norm(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:
    x = x - x.mean(axis=-1, keepdims=True)
    return x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + np.float32(mimi.NORM_EPS)) * weight + bias


class Conv:
    def __init__(self, conv: seanet.Conv):
        self.name, self.kernel, self.weight, self.bias = conv.name, conv.kernel, view(conv.weight), view(conv.bias)

    def __call__(self, x: np.ndarray, state: State) -> np.ndarray:
        B, T, _ = x.shape
        if self.kernel > 1:
            x = np.concatenate([state[self.name], x], axis=1)
            state[self.name] = x[:, T:].copy()  # a view would keep all of x
        y = self._taps(x) if self.kernel <= T else self._windows(x, T)
        y += self.bias
        return y.reshape(B, -1, y.shape[-1])[:, :T]

    def _windows(self, x: np.ndarray, T: int) -> np.ndarray:
        """(B, T + kernel - 1, C) -> (B * T, Cout)"""
        B, C, (row, step, item) = len(x), x.shape[2], x.strides
        windows = as_strided(x, (B, T, self.kernel * C), (row, step, item))
        return windows.reshape(B * T, -1) @ self.weight

    def _taps(self, x: np.ndarray) -> np.ndarray:
        """The same, a product for each of the kernel's positions: no window is copied. (B * (T + kernel - 1), Cout):
        what follows the first T of each row reads the next one too, and is nothing."""
        flat, C = x.reshape(-1, x.shape[2]), x.shape[2]
        y, n = np.empty((len(flat), self.weight.shape[1]), np.float32), len(flat) - self.kernel + 1
        np.matmul(flat[:n], self.weight[:C], out=y[:n])
        for k in range(1, self.kernel):
            y[:n] += flat[k : k + n] @ self.weight[k * C : (k + 1) * C]
        y[n:] = 0
        return y


class ConvTranspose:
    def __init__(self, conv: seanet.ConvTranspose):
        self.name, self.stride, self.weight = conv.name, conv.stride, view(conv.weight)
        self.bias = np.tile(view(conv.bias), conv.stride)

    def __call__(self, x: np.ndarray, state: State) -> np.ndarray:
        B, T, C = x.shape
        y = (x.reshape(B * T, C) @ self.weight).reshape(B, T, 2, -1)  # own block, next block
        out, after = y[:, :, 0] + self.bias, y[:, :, 1]
        out[:, 0] += state[self.name][:, 0]
        out[:, 1:] += after[:, :-1]
        state[self.name] = after[:, -1:].copy()
        return out.reshape(B, T * self.stride, -1)


class ResnetBlock:
    def __init__(self, block: seanet.ResnetBlock):
        self.block = [Conv(conv) for conv in block.block]

    def __call__(self, x: np.ndarray, state: State) -> np.ndarray:
        y = x
        for conv in self.block:
            y = conv(elu(y), state)
        y += x
        return y


KINDS = {seanet.Conv: Conv, seanet.ConvTranspose: ConvTranspose, seanet.ResnetBlock: ResnetBlock}


class Attention:
    def __init__(self, attention: mimi.Attention):
        self.name, self.heads = attention.name, attention.heads
        self.in_proj, self.out_proj = view(attention.in_proj), view(attention.out_proj)

    def __call__(self, x: np.ndarray, state: State, turn: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """turn (B, T, 1, d / 2) complex; mask (B, 1, T, past + T), 0 or minus infinity."""
        B, T, D = x.shape
        H, d = self.heads, D // self.heads
        qkv = (x.reshape(B * T, D) @ self.in_proj).reshape(B, T, 3 * H, d)
        qk = qkv[:, :, : 2 * H].copy().view(np.complex64)
        qkv[:, :, : 2 * H] = (qk * turn).view(np.float32)
        qkv = qkv.transpose(0, 2, 1, 3)  # (B, 3H, T, d)
        kv = np.concatenate([state[self.name], qkv[:, H:]], axis=2)  # (B, 2H, past + T, d)
        state[self.name] = kv[:, :, T:]
        scores = qkv[:, :H] @ kv[:, :H].swapaxes(2, 3)
        scores *= np.float32(1 / sqrt(d))
        scores += mask
        scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
        y = scores @ kv[:, H:] / scores.sum(axis=-1, keepdims=True)
        return y.transpose(0, 2, 1, 3).reshape(B * T, D) @ self.out_proj


class TransformerLayer:
    def __init__(self, layer: mimi.TransformerLayer):
        self.norm1, self.norm2 = ([view(part) for part in norm] for norm in (layer.norm1, layer.norm2))
        self.self_attn = Attention(layer.self_attn)
        self.linear1, self.linear2 = view(layer.linear1), view(layer.linear2)

    def __call__(self, x: np.ndarray, state: State, turn: np.ndarray, mask: np.ndarray) -> np.ndarray:
        B, T, D = x.shape
        x = x.reshape(B * T, D) + self.self_attn(layer_norm(x, *self.norm1), state, turn, mask)
        x += gelu(layer_norm(x, *self.norm2) @ self.linear1) @ self.linear2
        return x.reshape(B, T, D)


class Transformer:
    def __init__(self, transformer: mimi.Transformer, config: mimi.MimiConfig):
        self.name, self.context = transformer.name, transformer.context
        self.layers = [TransformerLayer(layer) for layer in transformer.layers]
        d = config.dimension // config.num_heads
        self.theta = (1 / config.max_period ** (np.arange(0, d, 2) / d)).astype(np.float32)

    def __call__(self, x: np.ndarray, state: State) -> np.ndarray:
        position, T = state[self.name], x.shape[1]
        angle = (position[:, None] + np.arange(T, dtype=np.float32))[..., None, None] * self.theta
        turn, mask = np.exp(1j * angle).astype(np.complex64), self._mask(position, T)
        for layer in self.layers:
            x = layer(x, state, turn, mask)
        state[self.name] = position + np.int32(T)
        return x

    def _mask(self, position: np.ndarray, T: int) -> np.ndarray:
        """mimi.window_mask, as what is added to scores."""
        past = self.context - 1
        key = np.arange(past + T)
        age = np.arange(past, past + T)[:, None] - key
        seen = (key >= past - position[:, None, None, None]) & (age >= 0) & (age < self.context)
        return np.where(seen, np.float32(0), np.float32(-np.inf))


class NumpyDecoder:
    """`step` and `new_state` of a Mimi whose weights are float32 and in the CPU's memory."""

    def __init__(self, codec: mimi.Mimi):
        self._codec, quantizer = codec, codec.quantizer
        self.bins, self.books, self.output_proj = quantizer.bins, view(quantizer.embedding), view(quantizer.output_proj)
        self.upsample, (self.here, self.after) = codec.upsample, np.split(view(codec.upsample.weight), 2)
        self.transformer = Transformer(codec.decoder_transformer, codec.config)
        self.model = [KINDS[type(layer)](layer) for layer in codec.decoder.model]

    def new_state(self, rows: int = 1) -> State:
        return {name: view(array) for name, array in self._codec.new_state(rows).items()}

    def step(self, codes: np.ndarray, state: State, there: np.ndarray | None = None) -> tuple[np.ndarray, State]:
        """See Mimi.step. (B, k, n) -> (B, n * frame_samples) and the next state."""
        state = dict(state)
        x = self.transformer(self._upsampled(self._latent(codes, there), state), state)
        x = self.model[0](x, state)
        for layer in self.model[1:]:
            x = layer(x if isinstance(layer, ResnetBlock) else elu(x), state)
        return x.reshape(len(codes), -1), state

    def _latent(self, codes: np.ndarray, there: np.ndarray | None) -> np.ndarray:
        """Quantizer.decode."""
        entries = self.books[np.arange(codes.shape[1])[:, None], codes]  # (B, k, T, dim)
        if there is not None:
            entries *= there[:, :, None, None]
        both = np.concatenate([entries[:, 0], entries[:, 1:].sum(axis=1)], axis=-1)  # (B, T, 2 dim)
        return both @ self.output_proj

    def _upsampled(self, x: np.ndarray, state: State) -> np.ndarray:
        B, T, D = x.shape
        before = np.concatenate([state[self.upsample.name], x[:, :-1]], axis=1)
        state[self.upsample.name] = x[:, -1:]
        y = x[:, :, None] * self.here + before[:, :, None] * self.after
        return y.reshape(B, T * self.upsample.stride, D)
