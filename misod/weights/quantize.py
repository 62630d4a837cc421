"""Weights stored in fewer bits: MLX's affine layout, as mx.quantize writes it and mx.dequantize reads it.

For a matrix X.weight (rows, n) in `bits` bits, groups of `group_size` along n:
X.weight uint32 (rows, n * bits / 32), X.scales and X.biases float (rows, n / group_size); value = q * scale + bias.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import mlx.core as mx

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Quantization:
    """A checkpoint's `quantization`: every matrix is stored so; vectors and stacks of matrices stay as they are."""

    group_size: int
    bits: int

    def shapes(self, dense: Mapping[str, tuple[int, ...]]) -> Shapes:
        """What a file holds in place of tensors of these names and shapes."""
        stored: Shapes = {}
        for name, shape in dense.items():
            if len(shape) != 2:
                stored[name] = shape
                continue
            rows, n = shape
            base = name.removesuffix(".weight")
            stored[name] = (rows, n * self.bits // 32)
            stored[f"{base}.scales"] = stored[f"{base}.biases"] = (rows, n // self.group_size)
        return stored

    def dense(self, stored: dict[str, mx.array]) -> dict[str, mx.array]:
        """The tensors of a file as the model's own, in the scales' type."""
        values = {}
        for name, w in stored.items():
            base = name.removesuffix(".weight")
            if w.dtype == mx.uint32:
                scales, biases = stored[f"{base}.scales"], stored[f"{base}.biases"]
                values[name] = mx.dequantize(w, scales, biases, group_size=self.group_size, bits=self.bits)
            elif not name.endswith((".scales", ".biases")):
                values[name] = w
        return values
