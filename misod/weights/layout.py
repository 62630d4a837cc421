"""Where weights come from: the names other tools give to the tensors, and the dims their configs state.

The language model is known in three spellings: the reference's (torchtune), mlx-audio's (its `sesame` model; 8-bit
files hold .scales and .biases beside .weight) and our own, which is the reference's with packed tensors. mlx-audio
rotates interleaved pairs as the reference does, so the rows of q and k are the same in all three.
Mimi is known in two: moshi's, which is the published one and ours, and transformers', whose q and k rows are
sorted for rotating halves.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np

from misod.weights.check import naming
from misod.weights.dims import MISO_8B, ModelArgs, TransformerArgs

MLX_AUDIO = {
    "self_attn.q_proj": "attn.q_proj",
    "self_attn.k_proj": "attn.k_proj",
    "self_attn.v_proj": "attn.v_proj",
    "self_attn.o_proj": "attn.output_proj",
    "mlp.gate_proj": "mlp.w1",
    "mlp.down_proj": "mlp.w2",
    "mlp.up_proj": "mlp.w3",
}
MLX_AUDIO_NORMS = {
    "input_layernorm.weight": "sa_norm.scale",
    "post_attention_layernorm.weight": "mlp_norm.scale",
    "norm.weight": "norm.scale",
}
FLAVORS = {  # of mlx-audio's older configs
    "llama-8B": MISO_8B.backbone,
    "llama-300M": MISO_8B.decoder,
}


def reference_name(name: str) -> str:
    """A tensor's name in the reference's spelling; one that no spelling knows comes back as it is."""
    name = name.removeprefix("model.")
    match = re.fullmatch(r"((?:backbone|decoder)\.(?:layers\.\d+\.)?)(.+)", name)
    if not match:
        return name
    layer, rest = match.groups()
    if rest in MLX_AUDIO_NORMS:
        return layer + MLX_AUDIO_NORMS[rest]
    module, _, part = rest.rpartition(".")
    return f"{layer}{MLX_AUDIO.get(module, module)}.{part}"


def read_args(path: Path) -> ModelArgs:
    """The dims a config.json states, ours or mlx-audio's; the 8B's where it states none or there is none.

    Whoever reads tensors by them compares every shape. Raises ValueError naming the file and what it lacks.
    """
    config = read_config(path)
    with naming(path, "a model's config"):
        if "backbone" in config:
            return ModelArgs.from_dict(config)
        if config.get("depth_decoder_config"):
            backbone, decoder = _llama(config), _llama(config["depth_decoder_config"])
        elif "backbone_flavor" in config:
            backbone, decoder = FLAVORS[config["backbone_flavor"]], FLAVORS[config["decoder_flavor"]]
        else:
            return MISO_8B
        sizes = {key: config[key] for key in ("text_vocab_size", "audio_vocab_size", "audio_num_codebooks")}
        return ModelArgs(backbone, decoder, **sizes)


def read_config(path: Path) -> dict:
    """What a config.json says, of model or codec; nothing where there is none. Raises ValueError naming the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    with naming(path, "a config"):
        config = json.loads(data)
        if not isinstance(config, dict):
            raise ValueError("no map")
        return config


def _llama(config: Mapping) -> TransformerArgs:
    args = TransformerArgs(
        num_layers=config["num_hidden_layers"],
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        embed_dim=config["hidden_size"],
        intermediate_dim=config["intermediate_size"],
        norm_eps=config["rms_norm_eps"],
        rope_base=config["rope_theta"],
    )
    if config.get("head_dim", args.head_dim) != args.head_dim:
        raise ValueError(f"head_dim {config['head_dim']} is not hidden_size / num_attention_heads")
    rope = config.get("rope_scaling") or {}
    # mlx-audio's attention takes only the factor from the config; the rest are its constants, and the reference's
    return replace(args, rope_scale_factor=rope.get("factor", args.rope_scale_factor))


# ---- Mimi

MIMI_CONFIG = {
    "sample_rate": 24000,
    "channels": 1,
    "frame_rate": 12.5,
    "seanet": {
        "channels": 1, "dimension": 512, "causal": True, "n_filters": 64, "n_residual_layers": 1, "activation": "ELU",
        "compress": 2, "dilation_base": 2, "disable_norm_outer_blocks": 0, "kernel_size": 7,
        "residual_kernel_size": 3, "last_kernel_size": 3, "norm": "none", "pad_mode": "constant",
        "ratios": [8, 6, 5, 4], "true_skip": True,
    },
    "quantizer": {"dimension": 256, "n_q": 32, "bins": 2048, "input_dimension": 512, "output_dimension": 512},
    "transformer": {
        "d_model": 512, "num_heads": 8, "num_layers": 8, "causal": True, "layer_scale": 0.01, "context": 250,
        "conv_layout": True, "max_period": 10000, "gating": "none", "norm": "layer_norm",
        "positional_embedding": "rope", "dim_feedforward": 2048, "input_dimension": 512, "output_dimensions": [512],
    },
}  # fmt: skip

TRANSFORMERS_MIMI = (  # published spelling -> transformers'
    (r"^((?:en|de)coder)\.model\.(\d+)\.(?:conv|convtr)\.(?:conv|convtr)\.", r"\1.layers.\2.conv."),
    (r"^((?:en|de)coder)\.model\.(\d+)\.block\.(\d)\.conv\.conv\.", r"\1.layers.\2.block.\3.conv."),
    (r"^((?:en|de)coder_transformer)\.transformer\.", r"\1."),
    (r"\.self_attn\.out_proj\.", ".self_attn.o_proj."),
    (r"\.norm1\.", ".input_layernorm."),
    (r"\.norm2\.", ".post_attention_layernorm."),
    (r"\.linear(\d)\.", r".mlp.fc\1."),
    (r"\.layer_scale_1\.", ".self_attn_layer_scale."),
    (r"\.layer_scale_2\.", ".mlp_layer_scale."),
    (r"^quantizer\.rvq_first\.", "quantizer.semantic_residual_vector_quantizer."),
    (r"^quantizer\.rvq_rest\.", "quantizer.acoustic_residual_vector_quantizer."),
    (r"\.vq\.layers\.(\d+)\._codebook\.", r".layers.\1.codebook."),
    (r"\.codebook\._initialized$", ".codebook.initialized"),
    (r"\.codebook\.embedding_sum$", ".codebook.embed_sum"),
    (r"^downsample\.conv\.conv\.conv\.", "downsample.conv."),
    (r"^upsample\.convtr\.convtr\.convtr\.", "upsample.conv."),
)


def mimi_sources(name: str, found: Iterable[str]) -> list[str]:
    """Which tensors of a codec file with the names `found` make the published tensor `name`.

    One; or q, k and v of transformers' spelling, whose q and k rows need `interleave`.
    """
    newer = re.sub(r"\.(in|out)_proj(_weight|\.weight)$", r".\1_projs.0.weight", name)  # moshi's own since 0.2
    for spelling in (name, newer):
        if spelling in found:
            return [spelling]
    for pattern, spelled in TRANSFORMERS_MIMI:
        name = re.sub(pattern, spelled, name)
    if name.endswith(".in_proj_weight"):
        base = name.removesuffix("in_proj_weight")
        return [f"{base}{part}_proj.weight" for part in "qkv"]
    return [name]


def interleave(rows: np.ndarray, heads: int) -> np.ndarray:
    """Rows (H * d, n) of a projection that rotates halves -> of one that rotates interleaved pairs."""
    halves = rows.reshape(heads, 2, -1, rows.shape[-1])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(rows.shape)


# ---- the tokenizer

BOS, EOS = "<|begin_of_text|>", "<|end_of_text|>"  # Llama 3's


def templated(path: Path) -> bytes:
    """A tokenizer.json that puts BOS before a text and EOS after it, as the reference does; Llama's puts BOS only.

    Raises ValueError naming the file where it is none.
    """
    with naming(path, "a tokenizer"):
        raw = json.loads(path.read_bytes())
        ids = {token["content"]: token["id"] for token in raw["added_tokens"]}
        if not _puts_two(raw.get("post_processor")):
            raw["post_processor"] = _template(ids[BOS], ids[EOS])
    return (json.dumps(raw, ensure_ascii=False, indent=1) + "\n").encode()


def _puts_two(processor: Mapping | None) -> bool:
    single = processor.get("single") if processor else None
    return bool(single) and [next(iter(piece)) for piece in single] == ["SpecialToken", "Sequence", "SpecialToken"]


def _template(bos: int, eos: int) -> dict:
    def framed(part: str, type_id: int) -> list[dict]:
        frame = [{"SpecialToken": {"id": token, "type_id": type_id}} for token in (BOS, EOS)]
        return [frame[0], {"Sequence": {"id": part, "type_id": type_id}}, frame[1]]

    return {
        "type": "TemplateProcessing",
        "single": framed("A", 0),
        "pair": framed("A", 0) + framed("B", 1),
        "special_tokens": {t: {"id": t, "ids": [i], "tokens": [t]} for t, i in ((BOS, bos), (EOS, eos))},
    }
