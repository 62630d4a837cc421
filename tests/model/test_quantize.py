"""Weights stored in 8 bits are the numbers they stand for, and a file that holds others is refused by name."""

import json

import mlx.core as mx
import numpy as np
import pytest

from misod.miso.engine import bundled_voice, load_model, read_config
from misod.weights.dims import expected_shapes
from misod.weights.quantize import Quantization

NANO = bundled_voice()


def test_the_bundled_voice_loads_as_code_times_scale_plus_bias():
    args, _, quantization = read_config(NANO / "config.json")
    assert quantization == Quantization(group_size=64, bits=8)
    stored = mx.load(str(NANO / "model.safetensors"))
    model = load_model(NANO / "model.safetensors", args, quantization)
    for base, module in (
        ("codebook0_head", model.codebook0_head),
        ("backbone.layers.6.mlp.w2", model.backbone.layers[6].mlp.w2),
        ("text_embeddings", model.text_embeddings),
    ):
        codes = np.array(stored[f"{base}.weight"]).view(np.uint8).astype(np.float32)
        scales, biases = (np.array(stored[f"{base}.{part}"]).astype(np.float32) for part in ("scales", "biases"))
        value = codes * np.repeat(scales, 64, axis=1) + np.repeat(biases, 64, axis=1)
        np.testing.assert_allclose(np.array(module.weight), value, rtol=0, atol=2e-3)


def test_what_is_stored_is_asked_for_by_name_and_shape():
    args, _, quantization = read_config(NANO / "config.json")
    shapes = quantization.shapes(expected_shapes(args))
    stored = mx.load(str(NANO / "model.safetensors"))
    assert shapes == {name: w.shape for name, w in stored.items()}


@pytest.mark.parametrize("change", ["bits", "group_size"])
def test_a_file_of_other_bits_or_groups_is_refused_with_its_tensors_named(tmp_path, change):
    config = json.loads((NANO / "config.json").read_text())
    config["quantization"][change] //= 2
    (tmp_path / "config.json").write_text(json.dumps(config))
    args, _, quantization = read_config(tmp_path / "config.json")
    with pytest.raises(ValueError, match="misshapen") as error:
        load_model(NANO / "model.safetensors", args, quantization)
    assert str(NANO / "model.safetensors") in str(error.value)


def test_a_dense_config_over_a_quantised_file_is_refused():
    args, _, _ = read_config(NANO / "config.json")
    with pytest.raises(ValueError, match=r"extra audio_embeddings\.|misshapen audio_embeddings\.weight"):
        load_model(NANO / "model.safetensors", args)
