"""A model's dimensions, as config.json gives them, and the tensors that follow from them. Imports no mlx."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class TransformerArgs:
    num_layers: int
    num_heads: int
    num_kv_heads: int
    embed_dim: int
    intermediate_dim: int
    max_seq_len: int = 2048
    norm_eps: float = 1e-5
    rope_base: float = 500_000
    rope_scale_factor: float = 32
    rope_low_freq_factor: float = 1
    rope_high_freq_factor: float = 4
    rope_old_context_len: int = 8192

    @property
    def head_dim(self) -> int:
        return self.embed_dim // self.num_heads

    @classmethod
    def from_dict(cls, config: Mapping) -> "TransformerArgs":
        return cls(**{f.name: config[f.name] for f in fields(cls) if f.name in config})


@dataclass(frozen=True)
class ModelArgs:
    backbone: TransformerArgs
    decoder: TransformerArgs
    text_vocab_size: int
    audio_vocab_size: int
    audio_num_codebooks: int

    @classmethod
    def from_dict(cls, config: Mapping) -> "ModelArgs":
        return cls(
            backbone=TransformerArgs.from_dict(config["backbone"]),
            decoder=TransformerArgs.from_dict(config["decoder"]),
            text_vocab_size=config["text_vocab_size"],
            audio_vocab_size=config["audio_vocab_size"],
            audio_num_codebooks=config["audio_num_codebooks"],
        )


# MisoLabs/MisoTTS: 367 tensors, 8,188,122,112 parameters, 16,376,244,224 bytes in bf16
MISO_8B = ModelArgs(
    backbone=TransformerArgs(num_layers=32, num_heads=32, num_kv_heads=8, embed_dim=4096, intermediate_dim=14336),
    decoder=TransformerArgs(num_layers=8, num_heads=24, num_kv_heads=6, embed_dim=1536, intermediate_dim=6912),
    text_vocab_size=128_256,
    audio_vocab_size=2051,
    audio_num_codebooks=32,
)


def expected_shapes(args: ModelArgs) -> Shapes:
    """Name and shape of every tensor a dense checkpoint of these dims must hold, no more and no fewer."""
    D, Dd, K, V = args.backbone.embed_dim, args.decoder.embed_dim, args.audio_num_codebooks, args.audio_vocab_size
    shapes = {
        "text_embeddings.weight": (args.text_vocab_size, D),
        "audio_embeddings.weight": (K * V, D),
        "projection.weight": (Dd, D),
        "codebook0_head.weight": (V, D),
        "audio_head": (K - 1, Dd, V),
    }
    for part, t in (("backbone", args.backbone), ("decoder", args.decoder)):
        width, ff, q, kv = t.embed_dim, t.intermediate_dim, t.num_heads * t.head_dim, t.num_kv_heads * t.head_dim
        shapes[f"{part}.norm.scale"] = (width,)
        for i in range(t.num_layers):
            p = f"{part}.layers.{i}."
            shapes |= {p + "attn.q_proj.weight": (q, width), p + "attn.output_proj.weight": (width, q)}
            shapes |= {p + f"attn.{n}_proj.weight": (kv, width) for n in "kv"}
            shapes |= {p + "mlp.w1.weight": (ff, width), p + "mlp.w2.weight": (width, ff)}
            shapes |= {p + "mlp.w3.weight": (ff, width)}
            shapes |= {p + f"{n}_norm.scale": (width,) for n in ("sa", "mlp")}
    return shapes
