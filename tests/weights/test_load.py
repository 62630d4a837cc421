"""Large models stay packed and speak the same; a load holds the model once; what does not fit is one line."""

import re

import mlx.core as mx
import numpy as np
import pytest

from misod.miso.load import check_tensors, load_model, read_config
from misod.weights.budget import PRECISIONS
from misod.weights.convert import Parts, convert
from misod.weights.manifest import check
from misod.weights.plan import stored_shapes
from tests.weights.conftest import MIDDLING

ORIGIN = {"repo": "fixture", "revision": None, "licence": None}


def made(parts: Parts, models, precision: str, embeddings: str | None = None):
    return convert(parts, models, precision, precision, embeddings, origin=ORIGIN, card="A fixture.\n")


def load(folder, **room):
    args, _, quantization = read_config(folder / "config.json")
    return load_model([folder / name for name in check(folder).weights], args, quantization, **room)


def spoken(model, frames: np.ndarray) -> np.ndarray:
    """All logits (F, K, V) after a prompt of ten rows, where the codes drawn are `frames` (F, K)."""
    K, rng = model.args.audio_num_codebooks, np.random.default_rng(1)
    tokens = rng.integers(1, 90, (10, K + 1)).astype(np.int32)
    x, cache, logits = model.embed_prompt(mx.array(tokens), mx.ones((10, K + 1), mx.bool_)), model.new_cache(), []
    for codes in frames:
        drawn = []

        def draw(k: int, row: mx.array, codes=codes, drawn=drawn) -> mx.array:
            drawn.append(row)
            return mx.array(codes[k : k + 1])

        frame, finite = model.frame(model.read(x, cache), draw)
        assert finite.item()
        logits.append(np.array(mx.concatenate(drawn)))
        x = model.embed_frame(frame)
    return np.stack(logits)


@pytest.mark.parametrize("embeddings", ["q8", "bf16"])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_model_kept_packed_says_what_it_says_unpacked(tiny, models, precision, embeddings):
    """On the CPU activations are fp32 both ways: what differs is the table of depth inputs, kept in bf16."""
    folder = made(tiny, models, precision, embeddings)
    packed, unpacked = load(folder, room_bytes=0), load(folder)
    assert packed.backbone.layers[1].mlp.w13.weight.dtype == (mx.bfloat16 if precision == "bf16" else mx.uint32)
    assert unpacked.backbone.layers[1].mlp.w13.weight.dtype == mx.float32
    frames = np.random.default_rng(2).integers(1, 90, (4, 32)).astype(np.int32)
    ours, reference = spoken(packed, frames), spoken(unpacked, frames)
    np.testing.assert_allclose(ours[:, 0], reference[:, 0], rtol=0, atol=3e-4)
    share = 0.04 if precision == "q4-d3" else 0.02  # a depth decoder so coarse makes more of a small difference
    np.testing.assert_allclose(ours, reference, rtol=0, atol=share * np.abs(reference).max())


def test_packed_tensors_are_those_the_config_names(tiny, models):
    folder = made(tiny, models, "mixed")
    model, quantization = load(folder, room_bytes=0), read_config(folder / "config.json")[2]
    found = {
        f"{path}.{part}".removesuffix(".weight"): module
        for path, module in model.named_modules()
        for part in ["weight"]
        if "scales" in module
    }
    fused = {
        re.sub(r"\.[qkv]_proj$", ".qkv_proj", re.sub(r"\.w[13]$", ".w13", name)): how
        for name, how in quantization.items()
    }
    assert found.keys() == fused.keys()
    for name, how in fused.items():
        if name != "audio_head":
            assert (found[name].bits, found[name].group_size) == (how.bits, how.group_size), name


@pytest.fixture(scope="module")
def middling(middling_source, tmp_path_factory):
    """A q8 model of about 110 MB in several shards."""
    source, models = middling_source, tmp_path_factory.mktemp("models")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("misod.weights.convert.SHARD_BYTES", 30_000_000)
        parts = Parts(source, source / "codec" / "model.safetensors", source / "tokenizer.json")
        return made(parts, models, "q8")


def test_the_peak_of_a_load_is_the_model_its_table_and_little_else(middling):
    manifest = check(middling)
    size = sum(manifest.files[name].bytes for name in manifest.weights)
    table = MIDDLING.audio_num_codebooks * MIDDLING.audio_vocab_size * MIDDLING.decoder.embed_dim * 2
    assert len(manifest.weights) > 2 and size > 80 << 20
    mx.clear_cache()
    mx.reset_peak_memory()
    before = mx.get_active_memory()
    model = load(middling, room_bytes=0)
    assert mx.get_active_memory() - before <= size + table + (1 << 20)
    assert mx.get_peak_memory() - before <= size + table + (24 << 20), "a second copy of anything large"
    assert mx.get_cache_memory() == 0
    assert model.args == MIDDLING


def test_nothing_is_read_until_all_headers_agree(middling, monkeypatch):
    args, _, quantization = read_config(middling / "config.json")
    files = [middling / name for name in check(middling).weights]
    monkeypatch.setattr(mx, "load", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(ValueError, match=rf"^{middling}: \d+ tensors are not as the config demands: missing ") as error:
        load_model(files[1:], args, quantization)
    assert "\n" not in str(error.value)


def test_a_tensor_that_is_in_two_shards_is_refused(middling):
    args, _, quantization = read_config(middling / "config.json")
    files = [middling / name for name in check(middling).weights]
    with pytest.raises(ValueError, match=r"is in model-00001-of-.* too"):
        check_tensors([*files, middling / "codec" / "model.safetensors", files[0]], args, quantization)


@pytest.mark.parametrize(("part", "dtype"), [("weight", mx.int32), ("scales", mx.uint32)])
def test_codes_must_be_codes_and_scales_floats(tiny, models, part, dtype):
    folder = made(tiny, models, "q8")
    path = folder / "model.safetensors"
    weights = mx.load(str(path))
    weights[f"projection.{part}"] = mx.zeros(weights[f"projection.{part}"].shape, dtype)
    mx.save_safetensors(str(path), weights)
    args, _, quantization = read_config(folder / "config.json")
    assert stored_shapes(args, quantization).keys() == weights.keys()
    with pytest.raises(ValueError, match=rf"model\.safetensors: 1 tensors .*wrong type projection\.{part} "):
        check_tensors([path], args, quantization)
