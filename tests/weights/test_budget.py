"""The arithmetic of a precision against figures from elsewhere: the reference's names, a roofline made by hand."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from misod.weights.budget import PRECISIONS, choose, disk_bytes, frame_bytes, kv_bytes, predicted_rtf
from misod.weights.dims import MISO_8B, ModelArgs, expected_shapes
from misod.weights.plan import Affine, plan, read_quantization, stored_shapes

NAMES = Path(__file__).parents[1] / "model" / "fixtures" / "real_names.json"


def test_the_8bs_tensors_are_the_references():
    real = json.loads(NAMES.read_text())
    assert expected_shapes(MISO_8B) == {name: tuple(t["shape"]) for name, t in real["tensors"].items()}
    assert disk_bytes(MISO_8B, "bf16") == real["bytes_bf16"]


def test_bytes_a_frame_are_those_of_a_roofline_made_by_hand():
    backbone = 32 * (2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336)
    depth = 8 * (2 * 1536 * 1536 + 2 * 1536 * 384 + 3 * 1536 * 6912)
    once = backbone + 31 * 1536 * 2051 + 2051 * 4096 + 1536 * 4096
    for precision, bits in (("q4", 4.5), ("q8", 8.5), ("bf16", 16)):
        by_hand = (once + 31 * depth) * bits / 8
        assert frame_bytes(MISO_8B, precision) == pytest.approx(by_hand, rel=1e-3)  # norms and looked-up rows are rest
    d3 = once * 4.5 / 8 + 31 * depth * 3.5 / 8
    assert frame_bytes(MISO_8B, "q4-d3") == pytest.approx(d3, rel=1e-3)
    shallow = once - 16 * 1536 * 2051 + 15 * depth  # of 16 codebooks: 15 heads, and as many steps
    assert frame_bytes(MISO_8B, "q4", 16) == pytest.approx(shallow * 4.5 / 8, rel=1e-3)
    inner = backbone * 30 / 32
    mixed = inner * 5 / 8 + (once - inner + 31 * depth) * 8.5 / 8
    assert frame_bytes(MISO_8B, "mixed") == pytest.approx(mixed, rel=1e-3)


def test_predicted_rtf_is_bytes_over_bandwidth_over_a_frame_of_80_ms():
    read = frame_bytes(MISO_8B, "q4") + kv_bytes(MISO_8B, 500)
    assert predicted_rtf(MISO_8B, "q4", read / 0.08) == pytest.approx(1)
    assert predicted_rtf(MISO_8B, "q4", 1e11) == pytest.approx(0.093 / 0.08, rel=0.01)  # 93 ms at 100 GB/s


def test_a_small_model_is_smaller_in_fewer_bits():
    config = ModelArgs.from_dict(json.loads((NAMES.parent / "miso_tiny" / "v99_fp32" / "config.json").read_text()))
    sizes = [disk_bytes(config, precision) for precision in PRECISIONS]
    assert sizes == sorted(sizes) and sizes[0] > 0


@pytest.mark.parametrize(
    ("memory_gb", "precision"), [(4, "q4"), (8, "q4"), (12, "mixed"), (16, "q8"), (24, "q8"), (192, "q8")]
)
def test_a_machine_gets_what_fits_into_its_memory_and_hears_why(memory_gb, precision):
    chosen, why = choose(memory_gb << 30)
    assert chosen == precision and "GB" in why and "\n" not in why
    assert ("sound worse" in why) == (precision == "q4")


def test_mixed_keeps_the_outer_layers_the_depth_decoder_and_the_heads_in_8_bits():
    mixed = plan(MISO_8B, "mixed")
    assert mixed["backbone.layers.0.mlp.w1"] == mixed["backbone.layers.31.attn.q_proj"] == Affine(8, 64)
    assert mixed["backbone.layers.1.mlp.w1"] == mixed["backbone.layers.30.attn.q_proj"] == Affine(4, 32)
    assert mixed["decoder.layers.3.mlp.w2"] == mixed["audio_head"] == mixed["codebook0_head"] == Affine(8, 64)


def test_q4_d3_keeps_the_depth_decoders_layers_in_3_bits_and_all_else_as_q4():
    d3, q4 = plan(MISO_8B, "q4-d3"), plan(MISO_8B, "q4")
    deep = {name for name in q4 if name.startswith("decoder.")}
    assert {d3[name] for name in deep} == {Affine(3, 64)} and len(deep) == 8 * 7
    assert d3.keys() == q4.keys() and all(d3[name] == q4[name] for name in q4.keys() - deep)
    assert disk_bytes(MISO_8B, "q4") - disk_bytes(MISO_8B, "q4-d3") > 35e6


def test_embeddings_are_q8_or_bf16_by_choice():
    for precision in PRECISIONS:
        for embeddings, how in (("q8", Affine(8, 64)), ("bf16", None)):
            assert plan(MISO_8B, precision, embeddings).get("text_embeddings") == how
    assert "text_embeddings" not in plan(MISO_8B, "bf16") and "text_embeddings" in plan(MISO_8B, "q4")


def test_vectors_are_never_packed_and_the_audio_head_is_grouped_along_its_width():
    for precision in PRECISIONS:
        assert not [name for name in plan(MISO_8B, precision) if "norm" in name]
    shapes = stored_shapes(MISO_8B, plan(MISO_8B, "q4"))
    assert shapes["audio_head.weight"] == (31, 2051, 1536 // 8) and shapes["audio_head.scales"] == (31, 2051, 24)
    assert sum(math.prod(s) for s in shapes.values()) < 8_188_122_112 / 4


@pytest.mark.parametrize(
    ("entry", "words"),
    [({"bits": 8}, "bits and group_size"), ({"bits": 7, "group_size": 64}, "7 bits"), (3, "bits and group_size")],
)
def test_an_entry_that_is_no_quantization_is_named(entry, words):
    with pytest.raises(ValueError, match=f"projection.*{words}"):
        read_quantization({"projection": entry})


def test_a_plan_for_other_dims_is_refused_by_name():
    with pytest.raises(ValueError, match=r"no_such.*no such tensor"):
        stored_shapes(MISO_8B, {"no_such": Affine(8, 64)})
    with pytest.raises(ValueError, match=r"backbone.norm.scale.*does not divide"):
        stored_shapes(MISO_8B, {"backbone.norm.scale": Affine(8, 64)})


def test_the_arithmetic_loads_no_mlx():
    code = "import sys, misod.weights.budget; print('mlx' in sys.modules, 'numpy' in sys.modules)"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert child.stdout.split() == ["False", "False"]
