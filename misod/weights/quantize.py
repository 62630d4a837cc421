"""Numbers of a checkpoint in fewer bits, in numpy, so that a conversion gives the same bytes on every machine.

The layout is MLX's affine one (see plan.py), read by mx.dequantize and mx.quantized_matmul. Codes are rounded
against the scale and bias as stored, in bf16: rounding against the exact ones, as mx.quantize does, costs 8-bit
weights a quarter more error (0.0068 of the weights' own size against 0.0053, Gaussian, groups of 64).
"""

import numpy as np

from misod.weights.plan import Affine

Packed = tuple[np.ndarray, np.ndarray, np.ndarray]  # uint32 codes, uint16 scales, uint16 biases (bf16 bit patterns)
SMALLEST = 1e-30  # scale of a group whose values are all equal
PACKABLE = (3, 4, 6, 8)
INSIDE = 0.88  # of a group's range, that 3 bits span: the ends are cut, and the rest is nearer (0.176 against 0.193)


def from_bf16(bits: np.ndarray) -> np.ndarray:
    """uint16 bit patterns -> float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def to_bf16(x: np.ndarray) -> np.ndarray:
    """float32, finite -> uint16 bit patterns, rounded to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def pack(x: np.ndarray, how: Affine) -> Packed:
    """x (..., n) float32 -> codes (..., n * bits / 32), scales and biases (..., n / group_size).

    Raises ValueError on a value that is not finite.
    """
    top = (1 << how.bits) - 1
    groups = x.reshape(*x.shape[:-1], -1, how.group_size)
    low, high = groups.min(axis=-1), groups.max(axis=-1)
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ValueError("not all its values are finite")
    if how.bits == 3:
        centre, half = (low + high) / 2, (high - low) / 2 * np.float32(INSIDE)
        low, high = centre - half, centre + half
    biases = to_bf16(low)
    scales = to_bf16(np.maximum((high - from_bf16(biases)) / top, SMALLEST))
    codes = groups - from_bf16(biases)[..., None]
    codes /= from_bf16(scales)[..., None]
    np.rint(codes, out=codes)
    np.clip(codes, 0, top, out=codes)
    return _to_words(codes.astype(np.uint8).reshape(x.shape), how.bits), scales, biases


def unpack(codes: np.ndarray, scales: np.ndarray, biases: np.ndarray, how: Affine) -> np.ndarray:
    """The inverse: scales and biases float32 -> float32 (..., n)."""
    q = _to_codes(codes, how.bits)
    groups = q.reshape(*q.shape[:-1], -1, how.group_size).astype(np.float32)
    groups *= scales[..., None]
    groups += biases[..., None]
    return groups.reshape(q.shape)


def _to_words(codes: np.ndarray, bits: int) -> np.ndarray:
    """uint8 codes (..., n) -> uint32 (..., n * bits / 32), the first code in the lowest bits."""
    if bits == 4:
        codes = codes[..., 0::2] | codes[..., 1::2] << 4
    elif bits < 8:  # three octets hold eight codes of 3 bits, or four of 6
        parts = codes.reshape(*codes.shape[:-1], -1, 24 // bits).astype(np.uint32)
        whole = np.bitwise_or.reduce(parts << np.arange(0, 24, bits, dtype=np.uint32), axis=-1).astype("<u4")
        codes = whole[..., None].view(np.uint8)[..., :3].reshape(*codes.shape[:-1], -1)
    return np.ascontiguousarray(codes).view("<u4")


def _to_codes(words: np.ndarray, bits: int) -> np.ndarray:
    octets = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    if bits != 4:
        a, b, c = np.moveaxis(octets.reshape(*octets.shape[:-1], -1, 3).astype(np.uint32), -1, 0)
        parts = (a | b << 8 | c << 16)[..., None] >> np.arange(0, 24, bits, dtype=np.uint32)
        return (parts & (1 << bits) - 1).astype(np.uint8).reshape(*octets.shape[:-1], -1)
    return np.stack([octets & 15, octets >> 4], axis=-1).reshape(*octets.shape[:-1], -1)
