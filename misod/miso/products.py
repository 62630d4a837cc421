"""A layer's matrices as they are multiplied with: dense, packed, those of one input as one. Arrays are bound once."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from types import EllipsisType

import mlx.core as mx
import mlx.nn as nn

from misod.weights.plan import Affine

Unary = Callable[[mx.array], mx.array]


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
