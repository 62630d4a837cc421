"""Tiny checkpoints in each spelling, from the fixtures with the reference's goldens."""

import json
import re
from dataclasses import asdict
from pathlib import Path

import misod.miso  # noqa: F401  before mlx, for OpenBLAS

# isort: split
import mlx.core as mx
import pytest

from benchmarks.full_size import write_source, write_tokenizer
from misod.weights.convert import Parts
from misod.weights.dims import ModelArgs, TransformerArgs

FIXTURES = Path(__file__).parents[1] / "model" / "fixtures"
TINY = FIXTURES / "miso_tiny" / "v99_fp32"
MIMI = FIXTURES / "mimi_tiny"
MIDDLING = ModelArgs(  # 100 million weights; the table of depth inputs, scalar work on a CPU, is narrow
    backbone=TransformerArgs(num_layers=2, num_heads=16, num_kv_heads=4, embed_dim=2048, intermediate_dim=4096),
    decoder=TransformerArgs(num_layers=2, num_heads=3, num_kv_heads=1, embed_dim=192, intermediate_dim=512),
    text_vocab_size=4096,
    audio_vocab_size=515,
    audio_num_codebooks=16,
)


MLX_AUDIO = (  # reference -> mlx-audio, as its loader renames: written down apart from layout.py, to check that
    (r"\.attn\.output_proj", ".self_attn.o_proj"),
    (r"\.attn\.", ".self_attn."),
    (r"\.w1\.", ".gate_proj."),
    (r"\.w2\.", ".down_proj."),
    (r"\.w3\.", ".up_proj."),
    (r"\.sa_norm\.scale", ".input_layernorm.weight"),
    (r"\.mlp_norm\.scale", ".post_attention_layernorm.weight"),
    (r"\.norm\.scale", ".norm.weight"),
)


@pytest.fixture
def tokenizer(tmp_path) -> Path:
    write_tokenizer(tmp_path / "llama_tokenizer.json")
    return tmp_path / "llama_tokenizer.json"


@pytest.fixture
def tiny(tokenizer) -> Parts:
    """96 and 64 wide, fp32."""
    return Parts(TINY, MIMI / "model.safetensors", tokenizer)


@pytest.fixture
def models(tmp_path) -> Path:
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


@pytest.fixture(scope="session")
def middling_source(tmp_path_factory) -> Path:
    """A random bf16 checkpoint of 190 MB, a codec and a tokenizer."""
    folder = tmp_path_factory.mktemp("middling") / "source"
    write_source(folder, MIDDLING, json.loads((MIMI / "config.json").read_text())["mimi_config"])
    (folder / "config.json").write_text(json.dumps(asdict(MIDDLING)))
    return folder


def mlx_audio_name(name: str) -> str:
    for pattern, spelled in MLX_AUDIO:
        name = re.sub(pattern, spelled, name)
    return f"model.{name}"


def write_mlx_audio(source: Path, folder: Path, bits: int | None = None) -> Path:
    """The checkpoint as mlx-audio's converter writes it: its names and config; `bits` in groups of 64 or 32."""
    folder.mkdir()
    out = {}
    for name, w in mx.load(str(source / "model.safetensors")).items():
        base = mlx_audio_name(name).removesuffix(".weight")
        group = next((size for size in (64, 32) if w.shape[-1] % size == 0), None)
        if bits and w.ndim == 2 and group:
            parts = mx.quantize(w.astype(mx.bfloat16), group, bits)
            out |= dict(zip((f"{base}.{part}" for part in ("weight", "scales", "biases")), parts, strict=True))
        else:
            out[mlx_audio_name(name)] = w
    mx.save_safetensors(str(folder / "model.safetensors"), out, metadata={"format": "mlx"})
    (folder / "config.json").write_text(json.dumps(mlx_audio_config(json.loads((source / "config.json").read_text()))))
    return folder


def mlx_audio_config(ours: dict) -> dict:
    def llama(part: dict) -> dict:
        scaling = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_type": "llama3"}
        return {
            "num_hidden_layers": part["num_layers"],
            "num_attention_heads": part["num_heads"],
            "num_key_value_heads": part["num_kv_heads"],
            "hidden_size": part["embed_dim"],
            "intermediate_size": part["intermediate_dim"],
            "head_dim": part["head_dim"],
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000,
            "rope_scaling": scaling | {"original_max_position_embeddings": 8192},
        }

    sizes = {key: ours[key] for key in ("text_vocab_size", "audio_vocab_size", "audio_num_codebooks")}
    return {"model_type": "sesame", **llama(ours["backbone"]), "depth_decoder_config": llama(ours["decoder"]), **sizes}
