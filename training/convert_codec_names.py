"""The first nano codec, once: transformers' MimiModel names -> the published names, values unchanged.

    python training/convert_codec_names.py SOURCE_DIR TARGET_DIR

TARGET_DIR/config.json, the `mimi_config`, is written by hand and says how many heads there are. Besides
names, transformers keeps q, k and v apart and orders the q and k rows for half-split rotary pairs; the
published file fuses them and interleaves the pairs.
"""

import json
import re
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

RENAMED = [  # applied in this order
    (r"^(encoder|decoder)\.layers\.", r"\1.model."),
    (r"^(encoder|decoder)_transformer\.", r"\1_transformer.transformer."),
    (r"^decoder\.model\.(2|5|8|11)\.conv\.", r"decoder.model.\1.convtr.convtr."),
    (r"^downsample\.conv\.", "downsample.conv.conv.conv."),
    (r"^upsample\.conv\.", "upsample.convtr.convtr.convtr."),
    (r"^((?:encoder|decoder)\.model\..*)conv\.(weight|bias)$", r"\1conv.conv.\2"),
    (r"input_layernorm", "norm1"),
    (r"post_attention_layernorm", "norm2"),
    (r"mlp\.fc", "linear"),
    (r"self_attn_layer_scale", "layer_scale_1"),
    (r"mlp_layer_scale", "layer_scale_2"),
    (r"o_proj", "out_proj"),
    (r"semantic_residual_vector_quantizer", "rvq_first"),
    (r"acoustic_residual_vector_quantizer", "rvq_rest"),
    (r"\.layers\.(\d+)\.codebook\.", r".vq.layers.\1._codebook."),
    (r"_codebook\.initialized", "_codebook._initialized"),
    (r"embed_sum", "embedding_sum"),
]


def published_name(name: str) -> str:
    for pattern, new in RENAMED:
        name = re.sub(pattern, new, name)
    return name


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """(heads * d, D): within a head, rows (i, i + d / 2) become neighbours."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def convert(tensors: dict[str, np.ndarray], heads: int) -> dict[str, np.ndarray]:
    published = {}
    for name, tensor in tensors.items():
        if name.endswith("q_proj.weight"):
            k, v = (tensors[name.replace("q_proj", part)] for part in ("k_proj", "v_proj"))
            fused = np.concatenate([interleave(tensor, heads), interleave(k, heads), v])
            published[published_name(name).replace("q_proj.weight", "in_proj_weight")] = fused
        elif not name.endswith(("k_proj.weight", "v_proj.weight")):
            published[published_name(name)] = np.ascontiguousarray(tensor)
    return published


def main(source: Path, target: Path) -> None:
    heads = json.loads((target / "config.json").read_text())["mimi_config"]["transformer"]["num_heads"]
    save_file(convert(load_file(source / "model.safetensors"), heads), target / "model.safetensors")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
