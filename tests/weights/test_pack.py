"""Packed weights are what MLX reads, and closer to the original than what MLX itself would pack."""

import mlx.core as mx
import numpy as np
import pytest

from misod.weights.plan import Affine
from misod.weights.quantize import _to_codes, _to_words, from_bf16, pack, to_bf16, unpack

HOWS = [Affine(8, 64), Affine(4, 64), Affine(3, 64), Affine(6, 64), Affine(4, 32), Affine(8, 32)]


def weights(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((48, 256)).astype(np.float32) * 0.02


@pytest.mark.parametrize("how", HOWS)
def test_mlx_reads_what_was_packed(how):
    codes, scales, biases = pack(weights(), how)
    ours = unpack(codes, from_bf16(scales), from_bf16(biases), how)
    parts = [mx.array(codes)] + [mx.array(part).view(mx.bfloat16).astype(mx.float32) for part in (scales, biases)]
    theirs = mx.dequantize(*parts, group_size=how.group_size, bits=how.bits)
    np.testing.assert_allclose(np.array(theirs), ours, rtol=0, atol=1e-7)


@pytest.mark.parametrize("how", HOWS)
def test_what_mlx_packs_is_read_bit_for_bit_and_packed_again_as_it_was(how):
    w, s, b = mx.quantize(mx.array(weights(3)), how.group_size, how.bits)
    words, scales, biases = np.array(w), np.array(s), np.array(b)
    theirs = np.array(mx.dequantize(w, s, b, group_size=how.group_size, bits=how.bits))
    np.testing.assert_allclose(unpack(words, scales, biases, how), theirs, rtol=0, atol=1e-8)
    codes = _to_codes(words, how.bits)
    assert codes.shape == (48, 256) and codes.max() == (1 << how.bits) - 1
    np.testing.assert_array_equal(_to_words(codes, how.bits), words)


@pytest.mark.parametrize("how", HOWS)
def test_the_error_is_below_that_of_mlxs_own_quantiser_with_bf16_scales(how):
    x = weights(1)
    codes, scales, biases = pack(x, how)
    error = np.square(unpack(codes, from_bf16(scales), from_bf16(biases), how) - x).mean()
    w, s, b = mx.quantize(mx.array(x).astype(mx.bfloat16), how.group_size, how.bits)
    mlx = mx.dequantize(w, s.astype(mx.float32), b.astype(mx.float32), group_size=how.group_size, bits=how.bits)
    assert error < np.square(np.array(mlx) - x).mean()


@pytest.mark.parametrize("how", HOWS)
def test_no_value_moves_by_more_than_a_step(how):
    x = weights(2)
    codes, scales, biases = pack(x, how)
    step = np.repeat(from_bf16(scales), how.group_size, axis=1)
    assert (np.abs(unpack(codes, from_bf16(scales), from_bf16(biases), how) - x) <= step).all()


def test_equal_values_and_zeros_stay_what_they_are():
    x = np.concatenate([np.zeros((1, 64)), np.full((1, 64), -0.375)]).astype(np.float32)
    codes, scales, biases = pack(x, Affine(4, 64))
    np.testing.assert_array_equal(unpack(codes, from_bf16(scales), from_bf16(biases), Affine(4, 64)), x)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_value_that_is_not_finite_is_refused(bad):
    x = weights()
    x[3, 77] = bad
    with pytest.raises(ValueError, match="finite"):
        pack(x, Affine(4, 64))


def test_bf16_is_rounded_as_mlx_rounds_it():
    rng = np.random.default_rng(3)
    ties = (np.arange(65_536, dtype=np.uint32) << 16 | 0x8000).view(np.float32)
    x = np.concatenate([rng.standard_normal(10_000).astype(np.float32), ties[np.isfinite(ties)][:60_000]])
    x = x[np.isfinite(from_bf16(to_bf16(x)))]
    mlx = np.array(mx.array(x).astype(mx.bfloat16).view(mx.uint16))
    np.testing.assert_array_equal(to_bf16(x), mlx)
