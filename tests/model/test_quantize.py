"""Weights stored in fewer bits are the numbers they stand for, and a file that holds others is refused by name."""

import json

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from misod.miso.load import load_model, read_config
from misod.miso.products import fused
from misod.weights.dims import expected_shapes
from misod.weights.models import bundled
from misod.weights.plan import Affine, stored_shapes

NANO = bundled()
WEIGHTS = NANO / "model.safetensors"


def test_the_bundled_voice_loads_as_code_times_scale_plus_bias():
    args, _, quantization = read_config(NANO / "config.json")
    matrices = {name.removesuffix(".weight") for name, shape in expected_shapes(args).items() if len(shape) > 1}
    deep = ("decoder.", "projection", "codebook0_head", "audio_head")
    assert quantization == {name: Affine(8 if name.startswith(deep) else 6, 64) for name in matrices}
    stored = mx.load(str(WEIGHTS))
    model = load_model([WEIGHTS], args, quantization)
    for base, module in (
        ("codebook0_head", model.codebook0_head),
        ("backbone.layers.6.mlp.w2", model.backbone.layers[6].mlp.w2),
        ("text_embeddings", model.text_embeddings),
    ):
        codes = unpacked(np.array(stored[f"{base}.weight"]), quantization[base].bits)
        scales, biases = (np.array(stored[f"{base}.{part}"]).astype(np.float32) for part in ("scales", "biases"))
        value = codes * np.repeat(scales, 64, axis=1) + np.repeat(biases, 64, axis=1)
        np.testing.assert_allclose(np.array(module.weight), value, rtol=0, atol=2e-3)


def unpacked(words: np.ndarray, bits: int) -> np.ndarray:
    """uint32 (rows, n * bits / 32) -> codes (rows, n): one row's bits are one stream, the lowest first."""
    stream = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
    return stream.reshape(len(words), -1, bits) @ (1 << np.arange(bits)).astype(np.float32)


def test_what_is_stored_is_asked_for_by_name_and_shape():
    args, _, quantization = read_config(NANO / "config.json")
    stored = mx.load(str(WEIGHTS))
    assert stored_shapes(args, quantization) == {name: w.shape for name, w in stored.items()}


@pytest.mark.parametrize("change", ["bits", "group_size"])
def test_a_file_of_other_bits_or_groups_is_refused_with_its_tensor_named(tmp_path, change):
    config = json.loads((NANO / "config.json").read_text())
    config["quantization"]["projection"][change] //= 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    args, _, quantization = read_config(tmp_path / "config.json")
    with pytest.raises(ValueError, match=r"^\S*model\.safetensors: \d tensors .*misshapen projection\.\w+ \[") as error:
        load_model([WEIGHTS], args, quantization)
    assert "\n" not in str(error.value) and "codebook0" not in str(error.value)


def test_a_dense_config_over_a_quantised_file_is_refused():
    args, _, _ = read_config(NANO / "config.json")
    with pytest.raises(ValueError, match=r"extra audio_embeddings\.|misshapen audio_embeddings\.weight"):
        load_model([WEIGHTS], args, {})


def test_a_config_that_names_a_tensor_the_model_lacks_is_refused(tmp_path):
    args, _, quantization = read_config(NANO / "config.json")
    with pytest.raises(ValueError, match=r"config\.json: quantization of 'projector'"):
        load_model([WEIGHTS], args, quantization | {"projector": Affine(8, 64)})


@pytest.mark.parametrize("table", [{"bits": 8, "group_size": 64}, {"projection": {"bits": 8}}, []])
def test_a_quantization_of_another_form_is_refused_naming_the_file(tmp_path, table):
    config = json.loads((NANO / "config.json").read_text()) | {"quantization": table}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"config\.json: not a model's config"):
        read_config(tmp_path / "config.json")


@pytest.mark.parametrize("bits", [(8, 8, 8), (4, 8, 4), (None, None, None), (None, 8, None)])
def test_layers_of_one_input_are_one_product_however_each_is_stored(bits):
    x, parent, wanted = mx.random.normal((3, 64), key=mx.random.key(0)), nn.Module(), []
    for name, each in zip("qkv", bits, strict=True):
        layer = nn.Linear(64, 32, bias=False)
        parent[name] = layer if each is None else layer.to_quantized(64, each)
        wanted.append(parent[name](x))
    product = fused(parent, ["q", "k", "v"], "qkv")
    np.testing.assert_allclose(np.array(product(x)), np.array(mx.concatenate(wanted, axis=1)), rtol=0, atol=1e-6)
    assert list(parent) == (["qkv"] if len(set(bits)) == 1 else ["q", "k", "v"])
