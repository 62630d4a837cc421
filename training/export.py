"""Trained weights -> the files misod loads.

  python -m training.export --out W --tokenizer tokenizer.json --to FOLDER [--dense]

FOLDER: config.json (with each speaker's loudness, training/loudness.py), model.safetensors, tokenizer.json,
codec/config.json, codec/model.safetensors, and manifest.json with their digests (training/seal.py; run that again once
a MODEL_CARD.md is written). The codec is fp16 under the published moshi names. The language model has torchtune's
names; its 2-D weights are 8-bit in MLX's affine layout (mx.quantize, group_size 64): for X.weight [rows, n]
  X.weight   uint32 [rows, n / 4]: four codes q each, the first in the lowest byte
  X.scales   fp16 [rows, n / 64]
  X.biases   fp16 [rows, n / 64]
and weight = q * scale + bias, as mx.dequantize gives it. audio_head and the norms stay fp16. --dense: all fp16.
"""

import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import save_file

from training.codec import CONFIG as CODEC
from training.codec import Mimi
from training.lm import CONFIG, Model
from training.loudness import add_loudness
from training.seal import seal
from training.text import MAX_CHARS, MAX_WORDS

GROUP, BITS = 64, 8
DEFAULTS = {"temperature": 0.3, "top_k": 30}
PRESETS = {"stable": {"temperature": 0.2, "top_k": 20}, "expressive": {"temperature": 0.6, "top_k": 60}}


def quantise(w):
    """w [rows, n] -> packed uint32, scales, biases, as mx.quantize(w, 64, 8) lays them out."""
    rows, n = w.shape
    groups = w.float().view(rows, n // GROUP, GROUP)
    low, high = groups.amin(-1), groups.amax(-1)
    scale = ((high - low) / (2**BITS - 1)).clamp(min=1e-7).half()
    bias = low.half()
    q = ((groups - bias.float()[..., None]) / scale.float()[..., None]).round().clamp(0, 2**BITS - 1)
    return q.to(torch.uint8).view(rows, n).contiguous().view(torch.uint32), scale, bias


def dequantise(state):
    """The inverse, for evaluation: a full fp32 state dict from an exported one."""
    out = {}
    for name, x in state.items():
        if name.endswith((".scales", ".biases")):
            continue
        if x.dtype != torch.uint32:
            out[name] = x.float()
        else:
            base = name.removesuffix(".weight")
            scale, bias = (state[f"{base}.{part}"].float().repeat_interleave(GROUP, 1) for part in ("scales", "biases"))
            out[name] = x.view(torch.uint8).float() * scale + bias
    return out


def language_model(state, dense):
    out = {}
    for name, x in state.items():
        if dense or x.dim() != 2:
            out[name] = x.half().contiguous()
        else:
            base = name.removesuffix(".weight")
            out[name], out[f"{base}.scales"], out[f"{base}.biases"] = quantise(x)
    return out


def quantization(state):
    """config.json's account of language_model: one entry a quantised tensor, by its name without .weight."""
    names = [name.removesuffix(".weight") for name, x in state.items() if x.dim() == 2]
    return {name: {"bits": BITS, "group_size": GROUP} for name in sorted(names)}


def codec(state):
    """fp16, with each codebook's centroids in embedding_sum and a usage of 1 (their quotient is what counts)."""
    out = dict(state)
    for name in [n for n in state if n.endswith("embedding_sum")]:
        usage = name.replace("embedding_sum", "cluster_usage")
        out[name] = state[name] / state[usage].clamp(min=1e-5)[:, None]
        out[usage] = torch.ones_like(state[usage])
    return {name: x.half().contiguous() for name, x in out.items()}


def write(folder, state, config):
    folder.mkdir(parents=True, exist_ok=True)
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--out", type=pathlib.Path), p.add_argument("--tokenizer", type=pathlib.Path)
    p.add_argument("--to", type=pathlib.Path), p.add_argument("--dense", action="store_true")
    a = p.parse_args()
    weights = {n: x.float() for n, x in torch.load(a.out / "lm.pt", map_location="cpu").items()}
    Model().load_state_dict(weights)
    sound = torch.load(a.out / "codec.pt", map_location="cpu")
    Mimi().load_state_dict(sound)
    config = {
        "model_type": "miso",
        **CONFIG,
        "dtype": "float16",
        "sample_rate": 24000,
        "frame_rate": 12.5,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "text": {"max_words": MAX_WORDS, "max_characters": MAX_CHARS, "letters": True},
        "speakers": 2,
        "defaults": DEFAULTS,
        "context_segments": 1,
        "presets": PRESETS,
    }
    if not a.dense:
        config["quantization"] = quantization(weights)
    write(a.to, language_model(weights, a.dense), config)
    write(a.to / "codec", codec(sound), {"mimi_config": CODEC})
    shutil.copy(a.tokenizer, a.to / "tokenizer.json")
    seal(a.to, "fp16" if a.dense else "q8")
    add_loudness(a.to)
    for path in sorted(a.to.rglob("*.*")):
        print(path.relative_to(a.to), path.stat().st_size)


if __name__ == "__main__":
    main()
