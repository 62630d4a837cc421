"""Which tensor of a model is stored in how many bits: the precisions `pull` offers, and what a file of each holds.

A stored matrix X.weight (rows, n) in MLX's affine layout, `bits` bits in groups of `group_size` along n, is
X.weight uint32 (rows, n * bits / 32), X.scales and X.biases float (rows, n / group_size); value = q * scale + bias.
audio_head (K - 1, Dd, V) is stored transposed, (K - 1, V, Dd), for V = 2051 is no multiple of a group. Imports no mlx.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from misod.weights.dims import ModelArgs, Shapes, expected_shapes

PRECISIONS = ("q4-d3", "q4", "mixed", "q8", "bf16")  # in order of size
EMBEDDINGS = ("q8", "bf16")
GROUP_SIZES = (32, 64, 128)  # those of mx.quantize
BITS = (2, 3, 4, 5, 6, 8)


@dataclass(frozen=True)
class Affine:
    """How one tensor is stored."""

    bits: int
    group_size: int


Quantization = dict[str, Affine]  # tensor name without .weight -> how; a tensor not named is stored as it is


def read_quantization(table: Mapping) -> Quantization:
    """config.json's `quantization`. Raises ValueError naming the entry that is none."""
    plan = {}
    for name, entry in table.items():
        try:
            how = Affine(**entry)
        except TypeError:
            raise ValueError(f"quantization of {name!r} needs bits and group_size and no more") from None
        if how.bits not in BITS or how.group_size not in GROUP_SIZES:
            raise ValueError(f"quantization of {name!r}: {how.bits} bits in groups of {how.group_size} are not known")
        plan[name] = how
    return plan


def plan(args: ModelArgs, precision: str, embeddings: str | None = None) -> Quantization:
    """How each tensor is stored in `precision`; `embeddings` q8 or bf16, None: bf16 with bf16, else q8."""
    embeddings = embeddings or ("bf16" if precision == "bf16" else "q8")
    quantization = {}
    for name, shape in expected_shapes(args).items():
        base = name.removesuffix(".weight")
        wanted = Affine(8, 64) if embeddings == "q8" else None
        if not base.endswith("_embeddings"):
            wanted = _wanted(args, base, precision)
        if wanted and len(shape) > 1 and (group := _group(wanted.group_size, grouped_axis(base, shape))):
            quantization[base] = Affine(wanted.bits, group)
    return quantization


def stored_shapes(args: ModelArgs, quantization: Quantization) -> Shapes:
    """Name and shape of what the files hold. Raises ValueError where a plan does not fit these dims."""
    stored, left = {}, dict(quantization)
    for name, shape in expected_shapes(args).items():
        base = name.removesuffix(".weight")
        if (how := left.pop(base, None)) is None:
            stored[name] = shape
            continue
        if len(shape) < 2 or (n := grouped_axis(base, shape)) % how.group_size:
            raise ValueError(f"quantization of {base!r}: {list(shape)} does not divide by {how.group_size}")
        rows = (shape[0], shape[2]) if base == "audio_head" else shape[:-1]
        stored[f"{base}.weight"] = (*rows, n * how.bits // 32)
        stored[f"{base}.scales"] = stored[f"{base}.biases"] = (*rows, n // how.group_size)
    if left:
        raise ValueError(f"quantization of {min(left)!r}: the model has no such tensor")
    return stored


def is_packed(name: str, quantization: Quantization) -> bool:
    """Whether `name` holds packed codes (uint32) and no floats."""
    return name.endswith(".weight") and name.removesuffix(".weight") in quantization


def grouped_axis(base: str, shape: tuple[int, ...]) -> int:
    """Length of the axis a tensor is grouped along."""
    return shape[1] if base == "audio_head" else shape[-1]


def _wanted(args: ModelArgs, base: str, precision: str) -> Affine | None:
    if precision == "bf16":
        return None
    if precision == "q8":
        return Affine(8, 64)
    if precision == "q4-d3" and base.startswith("decoder."):
        return Affine(3, 64)
    if precision in ("q4", "q4-d3"):
        return Affine(4, 64)
    last = args.backbone.num_layers - 1
    outer = base.startswith(("backbone.layers.0.", f"backbone.layers.{last}."))
    return Affine(4, 32) if base.startswith("backbone.layers.") and not outer else Affine(8, 64)


def _group(wanted: int, n: int) -> int | None:
    """`wanted`, or 32 where only that divides n (small test models), or None: stored as it is."""
    return next((size for size in (wanted, 32) if n % size == 0), None)
