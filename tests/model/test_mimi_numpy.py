"""The codec's decoder in numpy: against the reference as Mimi is, and against Mimi where the reference has no case."""

from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from misod.miso import streams
from misod.miso.mimi import load_mimi
from misod.miso.mimi_numpy import NumpyDecoder, gelu

TINY = Path(__file__).parent / "fixtures" / "mimi_tiny"
FRAME = 1920


@pytest.fixture(scope="module")
def mimi():
    return load_mimi(TINY)


@pytest.fixture(scope="module")
def ours(mimi):
    return NumpyDecoder(mimi)


def golden(case: str) -> dict[str, np.ndarray]:
    with np.load(TINY / f"golden_{case}.npz", allow_pickle=False) as file:
        return dict(file)


def decoded(decoder: NumpyDecoder, codes: np.ndarray, split: list[int]) -> np.ndarray:
    """codes (B, K, T), so many frames a step -> (B, samples)"""
    state, pieces, start = decoder.new_state(len(codes)), [], 0
    for n in split:
        pcm, state = decoder.step(codes[..., start : start + n], state)
        assert pcm.shape == (len(codes), n * FRAME) and pcm.dtype == np.float32
        pieces.append(pcm)
        start += n
    return np.concatenate(pieces, axis=1)


@pytest.mark.parametrize("split", [[1] * 30, [1, 2, 7, 13, 1, 6], [30]])
def test_a_stream_equals_the_reference_however_it_is_split(ours, split):
    g = golden("long_2s4")
    pcm = decoded(ours, g["codes"].astype(np.int32)[None], split)
    np.testing.assert_allclose(pcm[0], g["wav_out"], rtol=0, atol=1e-4)


@pytest.mark.parametrize("k", [8, 1])
def test_fewer_codebooks_decode_as_the_reference(ours, k):
    g = golden("long_2s4")
    pcm = decoded(ours, g["codes"].astype(np.int32)[None, :k, :10], [1] * 10)
    np.testing.assert_allclose(pcm[0], g[f"wav_out_k{k}"], rtol=0, atol=1e-4)


def test_rows_at_different_positions_and_depths_are_as_mimi_has_them(mimi, ours):
    """30 frames: past the context of 24 positions, 2 a frame. The last row is 9 frames younger."""
    random = np.random.default_rng(1)
    there = np.arange(32) < np.array([[32], [32], [5]])
    theirs, state = mimi.new_state(3), ours.new_state(3)
    for frame in range(30):
        if frame == 9:
            for name, fresh in ours.new_state(1).items():
                state[name] = np.concatenate([state[name][:2], fresh])
            theirs = {name: mx.array(array) for name, array in state.items()}
        codes = random.integers(0, 64, (3, 32, 1)).astype(np.int32)
        pcm, theirs = mimi.step(mx.array(codes), theirs, mx.array(there))
        made, state = ours.step(codes, state, there)
        np.testing.assert_allclose(made, np.array(pcm), rtol=0, atol=2e-5)
    for name, array in theirs.items():
        np.testing.assert_allclose(state[name], np.array(array), rtol=0, atol=2e-4, err_msg=name)


def test_a_step_leaves_its_input_state(ours):
    state = ours.new_state(2)
    for frame in range(3):
        codes = np.full((2, 32, 1), frame)
        before = {name: array.copy() for name, array in state.items()}
        first, after = ours.step(codes, state)
        again, _ = ours.step(codes, state)
        assert np.array_equal(first, again)
        assert all(np.array_equal(state[name], array) for name, array in before.items())
        assert {name: (array.shape, array.dtype) for name, array in after.items()} == {
            name: (array.shape, array.dtype) for name, array in before.items()
        }
        state = after


def test_gelu_is_exact():
    x = np.linspace(-9, 9, 2001, dtype=np.float32)
    exact = np.array(x * (0.5 + 0.5 * mx.erf(mx.array(x) * np.sqrt(0.5))))
    np.testing.assert_allclose(gelu(x), exact, rtol=0, atol=1e-6)


def test_on_a_cpu_it_is_what_decodes(mimi):
    there = streams.Streams.of(mimi)
    codes = np.zeros((1, 32, 1), np.int32)
    pcm, _ = there.begin(codes, [there.open()])()
    assert np.array_equal(pcm, NumpyDecoder(mimi).step(codes, NumpyDecoder(mimi).new_state())[0])
