"""Mimi against moshi 0.2.13 on the same random weights (context 24, so most of the 2.4 s case lies past it).

fixtures/mimi_tiny: the reference's arrays, channels first; published_shapes.json is the real checkpoint's.
"""

import copy
import json
import shutil
import struct
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from misod.miso.mimi import (
    MimiConfig,
    concat_states,
    expected_tensors,
    load_mimi,
    merge_new_states,
    take_rows,
)
from misod.weights.check import MAX_LISTED, compare, read_header

TINY = Path(__file__).parent / "fixtures" / "mimi_tiny"
CASES = ["d15_plus1", "one_frame", "one_sample", "short_1919", "long_2s4"]
STAGED = CASES[:-1]
FRAME = 1920
BINS = 64


@pytest.fixture(scope="module")
def mimi():
    return load_mimi(TINY)


def golden(case: str) -> dict[str, np.ndarray]:
    with np.load(TINY / f"golden_{case}.npz", allow_pickle=False) as file:
        return dict(file)


def pcm_of(case: dict) -> mx.array:
    return mx.array(case["wav_in_int16"].astype(np.float32) / 32768)[None]


def codes_of(case: dict) -> mx.array:
    return mx.array(case["codes"].astype(np.int32))[None]


def random_codes(frames: int, seed: int) -> mx.array:
    return mx.array(np.random.default_rng(seed).integers(0, BINS, (1, 32, frames)).astype(np.int32))


def assert_close(x: mx.array, reference: np.ndarray, atol: float = 1e-4) -> None:
    np.testing.assert_allclose(np.array(x), reference, rtol=0, atol=atol)


# against the reference


@pytest.mark.parametrize("case", STAGED)
def test_each_encoder_stage_equals_the_reference(mimi, case):
    g = golden(case)
    pcm = pcm_of(g)
    pcm = mx.pad(pcm, [(0, 0), (0, -pcm.shape[1] % FRAME)])
    state = merge_new_states([mimi.encoder, mimi.encoder_transformer], 1)
    x = mimi.encoder(pcm[..., None], state)
    assert_close(x[0].T, g["enc_seanet"])
    assert_close(mimi.encoder_transformer(x, state)[0].T, g["enc_transformer"])


@pytest.mark.parametrize("case", STAGED)
def test_each_decoder_stage_equals_the_reference(mimi, case):
    g = golden(case)
    state = mimi.new_state()
    x = mimi.quantizer.decode(codes_of(g))
    assert_close(x[0].T, g["dec_latent"])
    x = mimi.upsample(x, state)
    assert_close(x[0].T, g["upsampled"])
    x = mimi.decoder_transformer(x, state)
    assert_close(x[0].T, g["dec_transformer"])
    assert_close(mimi.decoder(x, state)[0, :, 0], g["wav_out"])


@pytest.mark.parametrize("case", CASES)
def test_encode_equals_the_reference(mimi, case):
    g = golden(case)
    pcm = pcm_of(g)
    codes = mimi.encode(pcm)
    assert codes.shape == (1, 32, g["padded_len"] // FRAME)
    assert codes.dtype == mx.int32
    clear = g["nn_margin_rel"] > 1e-4  # elsewhere two entries are as near as rounding
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(np.array(codes)[0][clear], g["codes"][clear])
    pcm = mx.pad(pcm, [(0, 0), (0, -pcm.shape[1] % FRAME)])
    latent = mimi.latent(pcm, merge_new_states([mimi.encoder, mimi.encoder_transformer], 1))
    assert_close(latent[0].T, g["latent"])


@pytest.mark.parametrize("case", CASES)
def test_decode_equals_the_reference(mimi, case):
    g = golden(case)
    pcm = mimi.decode(codes_of(g))
    assert pcm.dtype == mx.float32
    assert_close(pcm[0], g["wav_out"])


@pytest.mark.parametrize("k", [8, 1])
def test_fewer_codebooks_decode_as_the_reference(mimi, k):
    g = golden("long_2s4")
    assert_close(mimi.decode(codes_of(g)[:, :k, :10])[0], g[f"wav_out_k{k}"])


def test_fewer_codebooks_encode_to_a_prefix(mimi):
    pcm = pcm_of(golden("d15_plus1"))
    assert mx.array_equal(mimi.encode(pcm, num_codebooks=8), mimi.encode(pcm)[:, :8])


def test_rows_of_a_batch_do_not_mix(mimi):
    codes = [random_codes(20, seed) for seed in (1, 2)]
    both = mimi.decode(mx.concatenate(codes))
    for row, alone in enumerate(codes):
        assert_close(both[row], np.array(mimi.decode(alone))[0], atol=2e-5)
    pcm = both[:, : 3 * FRAME + 5]
    assert mx.array_equal(mimi.encode(pcm)[1:], mimi.encode(pcm[1:]))


# streaming


@pytest.mark.parametrize("split", [[1] * 30, [1, 2, 7, 13, 1, 6], [30], [19, 11]])
def test_a_stream_equals_the_reference_however_it_is_split(mimi, split):
    g = golden("long_2s4")
    codes, state, pieces, start = codes_of(g), mimi.new_state(), [], 0
    for n in split:
        pcm, state = mimi.step(codes[..., start : start + n], state)
        assert pcm.shape == (1, n * FRAME)
        pieces.append(pcm)
        start += n
    pcm = mx.concatenate(pieces, axis=1)
    assert_close(pcm[0], np.array(mimi.decode(codes))[0], atol=2e-5)
    assert_close(pcm[0], g["wav_out"])


def test_rows_join_and_leave_at_any_frame(mimi):
    """a starts, b joins 7 frames in, c joins at 20 ahead of both, a leaves at 45, b and c go on, swapped."""
    codes = {name: random_codes(70, seed) for seed, name in enumerate("abc")}
    plan = [(7, "a"), (13, "ab"), (25, "cab"), (24, "bc")]
    states, at, heard = {}, dict.fromkeys("abc", 0), {name: [] for name in "abc"}
    for frames, names in plan:
        state = concat_states([states.get(name) or mimi.new_state() for name in names])
        for _ in range(frames):
            batch = mx.concatenate([codes[name][..., at[name] : at[name] + 1] for name in names])
            pcm, state = mimi.step(batch, state)
            for row, name in enumerate(names):
                heard[name].append(pcm[row])
                at[name] += 1
        states = {name: take_rows(state, [row]) for row, name in enumerate(names)}
    assert at == {"a": 45, "b": 62, "c": 49}
    for name, pieces in heard.items():
        alone = mimi.decode(codes[name][..., : at[name]])
        assert_close(mx.concatenate(pieces), np.array(alone)[0], atol=2e-5)


def test_take_rows_drops_and_reorders(mimi):
    _, state = mimi.step(mx.concatenate([random_codes(2, seed) for seed in range(3)]), mimi.new_state(3))
    state = take_rows(state, [2, 0])
    next_codes = mx.concatenate([random_codes(1, 8), random_codes(1, 9)])
    pcm, _ = mimi.step(next_codes, state)
    for row, seed in enumerate([2, 0]):
        whole = mx.concatenate([random_codes(2, seed), next_codes[row : row + 1]], axis=-1)
        assert_close(pcm[row], np.array(mimi.decode(whole))[0, 2 * FRAME :], atol=2e-5)


def test_a_step_keeps_shapes_and_leaves_its_input_state(mimi):
    state = mimi.new_state(2)
    shapes = {name: (array.shape, array.dtype) for name, array in state.items()}
    for frame in range(30):  # past the context of 24 positions, 2 a frame
        codes = mx.concatenate([random_codes(1, frame), random_codes(1, 100 + frame)])
        first, after = mimi.step(codes, state)
        again, _ = mimi.step(codes, state)
        assert mx.array_equal(first, again)
        assert {name: (array.shape, array.dtype) for name, array in after.items()} == shapes
        state = after


# the edges


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_sample_that_is_not_finite_is_refused(mimi, bad):
    pcm = np.zeros((1, 4000), np.float32)
    pcm[0, 3999] = bad
    with pytest.raises(ValueError, match="not finite"):
        mimi.encode(mx.array(pcm))


def test_nothing_gives_nothing(mimi):
    assert mimi.encode(mx.zeros((2, 0))).shape == (2, 32, 0)
    assert mimi.encode(mx.zeros((2, 0)), num_codebooks=4).shape == (2, 4, 0)
    assert mimi.decode(mx.zeros((2, 32, 0), mx.int32)).shape == (2, 0)


@pytest.mark.parametrize("bad", [-1, BINS, 2050])
def test_a_code_outside_the_codebook_is_refused(mimi, bad):
    codes = np.zeros((1, 32, 3), np.int32)
    codes[0, 31, 2] = bad
    with pytest.raises(ValueError, match=r"outside 0\.\.63"):
        mimi.decode(mx.array(codes))


def test_wrong_shapes_are_refused(mimi):
    for codes in (mx.zeros((32, 3), mx.int32), mx.zeros((1, 33, 3), mx.int32), mx.zeros((1, 0, 3), mx.int32)):
        with pytest.raises(ValueError, match="decode needs codes"):
            mimi.decode(codes)
    with pytest.raises(ValueError, match="encode needs pcm"):
        mimi.encode(mx.zeros((100,)))
    for k in (0, 33):
        with pytest.raises(ValueError, match=r"1\.\.32 codebooks"):
            mimi.encode(mx.zeros((1, 100)), num_codebooks=k)


# loading


@pytest.fixture
def directory(tmp_path):
    """A copy of the tiny Mimi to damage."""
    for name in ("config.json", "model.safetensors"):
        shutil.copyfile(TINY / name, tmp_path / name)
    return tmp_path


def rewrite(directory: Path, change) -> None:
    path = directory / "model.safetensors"
    weights = mx.load(str(path))
    change(weights)
    mx.eval(weights)
    mx.save_safetensors(str(directory / "changed"), weights)
    (directory / "changed.safetensors").rename(path)


def test_the_published_checkpoint_is_what_its_config_demands():
    raw = copy.deepcopy(json.loads((TINY / "config.json").read_text())["mimi_config"])
    widths = {"input_dimension": 512, "output_dimensions": [512]}
    raw["seanet"] |= {"dimension": 512, "n_filters": 64}
    raw["quantizer"] |= {"dimension": 256, "bins": 2048, "input_dimension": 512, "output_dimension": 512}
    raw["transformer"] |= {"d_model": 512, "num_heads": 8, "num_layers": 8, "dim_feedforward": 2048, **widths}
    published = json.loads((TINY / "published_shapes.json").read_text())
    expected = expected_tensors(MimiConfig.from_dict(raw))
    assert {name: list(shape) for name, shape in expected.items()} == published


@pytest.mark.parametrize("dtype", [mx.float16, mx.bfloat16])
def test_half_precision_files_load_and_compute_in_float32(mimi, directory, dtype):
    rewrite(directory, lambda w: w.update({name: array.astype(dtype) for name, array in w.items()}))
    half = load_mimi(directory)
    codes = random_codes(3, 0)
    pcm = half.decode(codes)
    assert half.decoder.model[0].weight.dtype == mx.float32
    assert pcm.dtype == mx.float32
    assert_close(pcm, np.array(mimi.decode(codes)), atol=0.1)


def test_missing_extra_and_misshapen_tensors_are_named(directory):
    def damage(weights):
        del weights["decoder.model.0.conv.conv.bias"]
        weights["decoder.model.0.conv.conv.weight_g"] = mx.zeros((3,))
        weights["downsample.conv.conv.conv.weight"] = mx.zeros((64, 64, 5))
        weights["upsample.convtr.convtr.convtr.weight"] = mx.zeros((64, 1, 4), mx.int32)

    rewrite(directory, damage)
    with pytest.raises(ValueError, match=r"model\.safetensors: 4 tensors") as error:
        load_mimi(directory)
    message = str(error.value)
    assert "missing decoder.model.0.conv.conv.bias [128]" in message
    assert "extra decoder.model.0.conv.conv.weight_g [3]" in message
    assert "misshapen downsample.conv.conv.conv.weight [64, 64, 5], should be [64, 64, 4]" in message
    assert "wrong type upsample.convtr.convtr.convtr.weight I32" in message


def test_a_long_list_of_wrong_tensors_ends_in_a_count():
    with pytest.raises(ValueError, match="and 5 more") as error:
        compare(Path("x"), {}, {f"t{i}": (1,) for i in range(MAX_LISTED + 5)})
    assert str(error.value).count("missing") == MAX_LISTED


@pytest.mark.parametrize("keep_bytes", [0, 5, 8, 1000, -1, -2_000_000])
def test_a_truncated_file_is_refused(directory, keep_bytes):
    path = directory / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep_bytes])
    with pytest.raises(ValueError, match=r"model\.safetensors: (truncated|not a safetensors file)"):
        load_mimi(directory)


def entry(**changes) -> dict:
    return {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]} | changes


GARBAGE = {
    "not json": b"{]",
    "not utf-8": b'{"\xff": 1}',
    "deep": b"[" * 100_000,
    "a list": b"[]",
    "duplicate": b'{"t": %s, "t": %s}' % ((json.dumps(entry()).encode(),) * 2),
    "no map": json.dumps({"t": 3}).encode(),
    "no dtype": json.dumps({"t": {"shape": [2], "data_offsets": [0, 8]}}).encode(),
    "odd dtype": json.dumps({"t": entry(dtype="F31")}).encode(),
    "list dtype": json.dumps({"t": entry(dtype=["F32"])}).encode(),
    "negative": json.dumps({"t": entry(shape=[-2])}).encode(),
    "bool": json.dumps({"t": entry(shape=[True, 2])}).encode(),
    "float": json.dumps({"t": entry(shape=[2.0])}).encode(),
    "huge": json.dumps({"t": entry(shape=[10**30])}).encode(),
    "size": json.dumps({"t": entry(shape=[3])}).encode(),
    "one offset": json.dumps({"t": entry(data_offsets=[8])}).encode(),
    "gap": json.dumps({"t": entry(shape=[1], data_offsets=[4, 8])}).encode(),
    "overlap": json.dumps({"t": entry(), "u": entry()}).encode(),
    "short": json.dumps({"t": entry(shape=[1], data_offsets=[0, 4])}).encode(),
}


@pytest.mark.parametrize("header", GARBAGE.values(), ids=GARBAGE.keys())
def test_a_garbage_header_is_refused_by_name(tmp_path, header):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    with pytest.raises(ValueError, match=r"^\S*model\.safetensors: "):
        read_header(path)


def test_a_header_of_a_terabyte_is_not_read(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 40) + bytes(100))
    with pytest.raises(ValueError, match="not a safetensors file"):
        read_header(path)


def test_metadata_is_no_tensor(tmp_path):
    header = json.dumps({"__metadata__": {"format": "pt"}, "t": entry()}).encode()
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header + bytes(8))
    assert read_header(path) == {"t": ("F32", (2,), 8 + len(header), path)}


@pytest.mark.parametrize(
    ("section", "key", "value", "message"),
    [
        ("seanet", "causal", False, "seanet.causal is False, only True"),
        ("transformer", "gating", "silu", "transformer.gating is 'silu', only 'none'"),
        ("transformer", "d_model", 32, "transformer.d_model is 32, only 64"),
        ("transformer", "context", 0, "context is 0, not a positive number"),
        ("transformer", "context", "24", "context is '24', not a positive number"),
        ("transformer", "num_layers", 10**9, "num_layers is 1000000000"),
        ("seanet", "ratios", [7, 6, 5, 4], "do not divide"),
        ("seanet", "ratios", 8, "malformed"),
        ("quantizer", "bins", None, "bins is missing"),
    ],
)
def test_an_odd_config_is_refused_by_key(directory, section, key, value, message):
    path = directory / "config.json"
    config = json.loads(path.read_text())
    if value is None:
        del config["mimi_config"][section][key]
    else:
        config["mimi_config"][section][key] = value
    path.write_text(json.dumps(config))
    with pytest.raises(ValueError, match="not a Mimi config") as error:
        load_mimi(directory)
    assert message in str(error.value)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"mimi_config": 3}', '{"mimi_config": {}}'])
def test_a_file_that_is_no_config_is_refused(directory, text):
    (directory / "config.json").write_text(text)
    with pytest.raises(ValueError, match="not a Mimi config"):
        load_mimi(directory)
