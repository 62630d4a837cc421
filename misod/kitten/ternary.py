"""Published ternary weights -> what mx.quantized_matmul reads, bit for bit: shuffling, no arithmetic on weights.

Within a group of a row each weight is -s, 0 or +s. The file has them as flat base-3 digits 0, 1, 2, five a byte, the
low digit first, and s as bf16. MLX multiplies by scales * code + biases: with scales = s and biases = -s a digit is
its own code.
"""

from functools import cache

import numpy as np

FORMAT = "kittenml-ternary-1.58"
GROUP_SIZE = 128  # columns that share a scale
DIGITS = 5  # a byte
LARGEST = 3**DIGITS - 1  # of a byte
BITS = 4  # of a code
BLOCK = 1 << 13  # of eight bytes, unpacked at once


@cache
def _pairs() -> np.ndarray:
    """(65536,) uint64: the ten codes of every two bytes, as a little-endian word has these."""
    digits = np.arange(256, dtype=np.uint64)[:, None] // 3 ** np.arange(DIGITS, dtype=np.uint64) % 3  # (256, 5)
    byte = (digits << np.arange(0, DIGITS * BITS, BITS, dtype=np.uint64)).sum(axis=1, dtype=np.uint64)
    return (byte[None] | byte[:, None] << np.uint64(DIGITS * BITS)).ravel()


def to_codes(packed: np.ndarray, rows: int, columns: int) -> np.ndarray:
    """Bytes (ceil(rows * columns / 5),) uint8 -> words (rows, columns / 8) uint32.

    By a table, ten digits at a time, four times 40 bits into five words; a block at a time, which stays in the
    processor's cache. Nothing is beyond the table, and numpy looks up five times as fast where it need not check.
    """
    pairs = np.pad(packed, (0, -packed.size % 8)).view("<u2").reshape(-1, 4)
    words = np.empty((len(pairs), 5), np.uint32)
    shift = np.uint64
    for start in range(0, len(pairs), BLOCK):
        a, b, c, d = np.take(_pairs(), pairs[start : start + BLOCK].T, mode="clip")
        block = words[start : start + BLOCK]
        block[:, 0] = a
        block[:, 1] = a >> shift(32) | b << shift(8)
        block[:, 2] = b >> shift(24) | c << shift(16)
        block[:, 3] = c >> shift(16) | d << shift(24)
        block[:, 4] = d >> shift(8)
    return words.reshape(-1)[: rows * columns * BITS // 32].reshape(rows, -1)


def problem(packed: np.ndarray, weights: int) -> str:
    """What is wrong with the bytes of so many weights; "" where nothing is."""
    if (largest := packed.max()) > LARGEST:
        return f"has a byte {largest}: five base-3 digits are at most {LARGEST}"
    if packed[-1] >= 3 ** (weights % DIGITS or DIGITS):
        return "has digits after its last weight"
    return ""
