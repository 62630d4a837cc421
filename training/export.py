"""Trained weights -> the files misod loads.

  python -m training.export --out W --tokenizer tokenizer.json --to FOLDER [--dense]

FOLDER: config.json (with each speaker's loudness, training/loudness.py), model.safetensors, tokenizer.json,
codec/config.json, codec/model.safetensors, and manifest.json with their digests (training/seal.py; run that again once
a MODEL_CARD.md is written). The codec is fp16 under the published moshi names. The language model has torchtune's
names; its 2-D weights are as mx.quantize packs them, in 8 bits the depth decoder's, in 6 the others, in groups of 64
with fp16 scales and biases; audio_head is transposed for it, (K-1, V, Dd). The norms stay fp16. --dense: all fp16.
"""

import argparse
import json
import pathlib
import shutil

import mlx.core as mx
import numpy as np
import torch
from safetensors.torch import save_file

from training.codec import CONFIG as CODEC
from training.codec import Mimi
from training.lm import CONFIG, Model
from training.loudness import add_loudness
from training.seal import seal
from training.text import MAX_CHARS, MAX_WORDS

GROUP = 64
DEFAULTS = {"temperature": 0.3, "top_k": 30}
PRESETS = {"stable": {"temperature": 0.2, "top_k": 20}, "expressive": {"temperature": 0.6, "top_k": 60}}


def bits(name, x):
    """In how many bits a tensor is stored; None: fp16. The depth decoder hears a lost bit first."""
    if x.dim() < 2:
        return None
    return 8 if name.startswith(("decoder.", "projection.", "codebook0_head.", "audio_head")) else 6


def dequantise(state, quantization):
    """The inverse of language_model, for evaluation: a full fp32 state dict."""
    out = {}
    for name, x in state.items():
        base = name.removesuffix(".weight")
        if base in quantization:
            parts = (mx.array(state[f"{base}.{part}"].numpy()) for part in ("weight", "scales", "biases"))
            dense = mx.dequantize(*parts, **quantization[base]).astype(mx.float32)
            turned = base == "audio_head"
            out[base if turned else name] = torch.from_numpy(np.array(dense.swapaxes(1, 2) if turned else dense))
        elif not name.endswith((".scales", ".biases")):
            out[name] = x.float()
    return out


def language_model(state, dense):
    """What model.safetensors holds, and config.json's account of it: an entry a quantised tensor, without .weight."""
    out, quantization = {}, {}
    for name, x in sorted(state.items()):
        if dense or not (how := bits(name, x)):
            out[name] = x.half().contiguous()
            continue
        base = name.removesuffix(".weight")
        quantization[base] = {"bits": how, "group_size": GROUP}
        rows = x.swapaxes(1, 2) if base == "audio_head" else x  # a vocabulary of 515 makes no groups of 64
        packed = mx.quantize(mx.array(rows.half().numpy()), **quantization[base])
        for part, values in zip(("weight", "scales", "biases"), packed):
            out[f"{base}.{part}"] = torch.from_numpy(np.array(values))
    return out, quantization


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
    tensors, quantization = language_model(weights, a.dense)
    if quantization:
        config["quantization"] = quantization
    write(a.to, tensors, config)
    write(a.to / "codec", codec(sound), {"mimi_config": CODEC})
    shutil.copy(a.tokenizer, a.to / "tokenizer.json")
    seal(a.to, "fp16" if a.dense else "mixed")
    add_loudness(a.to)
    for path in sorted(a.to.rglob("*.*")):
        print(path.relative_to(a.to), path.stat().st_size)


if __name__ == "__main__":
    main()
