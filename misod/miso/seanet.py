"""SEANet, the convolutional halves of Mimi (Défossez et al., 2024), causal, channels last.

Every layer is its own streaming form: it takes the samples since the last call and a `State`, reads what
it must remember under its own name and writes the new value back. A fresh state is the zero padding of
the offline model, so offline is one long call. Layer names are the published checkpoint's.

Convolutions are one matmul each: MLX's CPU conv_transpose1d is naive (about five times slower at these
shapes), and a transposed convolution as a matmul and an overlap-add streams by carrying the overlap.
"""

from collections.abc import Callable

import mlx.core as mx
from mlx import nn

State = dict[str, mx.array]  # every array has one row per stream on axis 0
Take = Callable[[str, tuple[int, ...]], mx.array]  # (checkpoint name, shape) -> the tensor


def elu(x: mx.array) -> mx.array:
    # nn.elu is compiled, which needs g++ on the CPU backend; mx.where is ten times slower than maximum there
    return mx.maximum(x, mx.expm1(mx.minimum(x, 0)))


class Conv(nn.Module):
    """Causal Conv1d. (B, T, Cin) -> (B, T / stride, Cout); T must be a multiple of stride."""

    def __init__(self, take: Take, name: str, cin: int, cout: int, kernel: int, stride=1, bias=True):
        super().__init__()
        self.name, self.cin, self.kernel, self.stride = name, cin, kernel, stride
        weight = take(f"{name}.weight", (cout, cin, kernel))
        self.weight = mx.contiguous(weight.transpose(2, 1, 0).reshape(kernel * cin, cout))
        if bias:
            self.bias = take(f"{name}.bias", (cout,))

    def new_state(self, rows: int) -> State:
        overlap = self.kernel - self.stride
        return {self.name: mx.zeros((rows, overlap, self.cin), self.weight.dtype)} if overlap else {}

    def __call__(self, x: mx.array, state: State) -> mx.array:
        if self.kernel > 1:
            x = self._windows(x, state)  # (B, T / stride, kernel * Cin)
        return mx.addmm(self.bias, x, self.weight) if "bias" in self else x @ self.weight

    def _windows(self, x: mx.array, state: State) -> mx.array:
        x = mx.concatenate([state[self.name], x], axis=1)
        B, T, C = x.shape
        state[self.name] = x[:, T - self.kernel + self.stride :]
        n = (T - self.kernel) // self.stride + 1
        return mx.as_strided(x, (B, n, self.kernel * C), (T * C, self.stride * C, 1))


class ConvTranspose(nn.Module):
    """ConvTranspose1d of kernel 2 * stride, trimmed on the right. (B, T, Cin) -> (B, T * stride, Cout)"""

    def __init__(self, take: Take, name: str, cin: int, cout: int, stride: int):
        super().__init__()
        self.name, self.stride = name, stride
        weight = take(f"{name}.weight", (cin, cout, 2 * stride))
        self.weight = mx.contiguous(weight.transpose(0, 2, 1).reshape(cin, 2 * stride * cout))
        self.bias = take(f"{name}.bias", (cout,))

    def new_state(self, rows: int) -> State:
        return {self.name: mx.zeros((rows, 1, self.weight.shape[1] // 2), self.weight.dtype)}

    def __call__(self, x: mx.array, state: State) -> mx.array:
        B, T, _ = x.shape
        here, after = mx.split(x @ self.weight, 2, axis=-1)  # (B, T, stride * Cout): own block, next block
        y = here + mx.concatenate([state[self.name], after[:, :-1]], axis=1)
        state[self.name] = after[:, -1:]
        return y.reshape(B, T * self.stride, -1) + self.bias


class ResnetBlock(nn.Module):
    def __init__(self, take: Take, name: str, dim: int, hidden: int, kernel: int):
        super().__init__()
        self.block = [
            Conv(take, f"{name}.block.1.conv.conv", dim, hidden, kernel),
            Conv(take, f"{name}.block.3.conv.conv", hidden, dim, 1),
        ]

    def new_state(self, rows: int) -> State:
        return merge_new_states(self.block, rows)

    def __call__(self, x: mx.array, state: State) -> mx.array:
        y = x
        for conv in self.block:
            y = conv(elu(y), state)
        return x + y


class SEANet(nn.Module):
    """A list of layers in checkpoint order, each but the first and the residual blocks behind an ELU."""

    def new_state(self, rows: int) -> State:
        return merge_new_states(self.model, rows)

    def __call__(self, x: mx.array, state: State) -> mx.array:
        x = self.model[0](x, state)
        for layer in self.model[1:]:
            x = layer(x if isinstance(layer, ResnetBlock) else elu(x), state)
        return x


class SEANetEncoder(SEANet):
    """(B, n, 1) samples -> (B, n / hop, dimension). n must be a multiple of hop = prod(ratios)."""

    def __init__(self, take: Take, config):
        super().__init__()
        c, dim = config, config.n_filters
        layers = [Conv(take, "encoder.model.0.conv.conv", 1, dim, c.kernel_size)]
        for i, ratio in enumerate(reversed(c.ratios)):
            at = 3 * i + 1  # the checkpoint counts the ELU between the two
            layers += [
                ResnetBlock(take, f"encoder.model.{at}", dim, dim // c.compress, c.residual_kernel_size),
                Conv(take, f"encoder.model.{at + 2}.conv.conv", dim, 2 * dim, 2 * ratio, ratio),
            ]
            dim *= 2
        last = f"encoder.model.{3 * len(c.ratios) + 2}.conv.conv"
        self.model = [*layers, Conv(take, last, dim, c.dimension, c.last_kernel_size)]


class SEANetDecoder(SEANet):
    """(B, T, dimension) -> (B, T * hop, 1) samples"""

    def __init__(self, take: Take, config):
        super().__init__()
        c, dim = config, config.n_filters << len(config.ratios)
        layers = [Conv(take, "decoder.model.0.conv.conv", c.dimension, dim, c.kernel_size)]
        for i, ratio in enumerate(c.ratios):
            at = 3 * i + 2
            dim //= 2
            layers += [
                ConvTranspose(take, f"decoder.model.{at}.convtr.convtr", 2 * dim, dim, ratio),
                ResnetBlock(take, f"decoder.model.{at + 1}", dim, dim // c.compress, c.residual_kernel_size),
            ]
        last = f"decoder.model.{3 * len(c.ratios) + 2}.conv.conv"
        self.model = [*layers, Conv(take, last, dim, 1, c.last_kernel_size)]


def merge_new_states(layers, rows: int) -> State:
    return {name: array for layer in layers for name, array in layer.new_state(rows).items()}
