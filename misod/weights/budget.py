"""What a precision costs: bytes on disk, bytes read a frame, the speed that memory bandwidth allows. Imports no mlx.

Decoding is bound by reading weights: every frame reads the backbone once and the depth decoder once for each
codebook but the first. All figures here are arithmetic; docs/precision.md sets them beside what was measured.
"""

import math

from misod.weights.dims import MISO_8B, ModelArgs
from misod.weights.plan import PRECISIONS, Quantization, is_packed, plan, stored_shapes
from misod.weights.progress import size
from misod.weights.sources import CODEC, TOKENIZER, WEIGHTS

FRAME_S = 0.08
FLOAT_BYTES = 2  # bf16: weights that are not packed, scales, biases, activations
CODEC_BYTES = 384_605_572  # Mimi as published: 96,151,393 fp32 values in 318 tensors
POOL_BYTES = 512 << 20  # freed buffers that the engine lets MLX keep
CONTEXT = 500  # positions of a middling utterance, for the keys and values a frame reads
SPARE = 1.1  # room that must be free on the disk, over what is needed
SHARE = 0.6  # of a machine's memory that a model may take: the rest is the system's and the listener's


def disk_bytes(args: ModelArgs, precision: str, embeddings: str | None = None) -> int:
    """Of the language model's tensors. The codec is CODEC_BYTES more."""
    quantization = plan(args, precision, embeddings)
    return sum(_tensor_bytes(args, quantization).values())


def frame_bytes(args: ModelArgs, precision: str, codebooks: int | None = None) -> int:
    """Weights read for one frame: the backbone once, the depth decoder K - 1 times, each head once.

    `codebooks`: of `say --depth`, in K's place.
    """
    sizes, K = _tensor_bytes(args, plan(args, precision)), args.audio_num_codebooks
    depth = (codebooks or K) - 1
    rows = K * args.backbone.embed_dim + depth * args.decoder.embed_dim  # looked up
    total = rows * FLOAT_BYTES
    for name, count in sizes.items():
        if name.startswith("decoder."):
            total += depth * count
        elif name.startswith("audio_head"):
            total += depth * count // (K - 1)
        elif "_embeddings." not in name:
            total += count
    return total


def predicted_rtf(args: ModelArgs, precision: str, bandwidth_bytes_per_s: float) -> float:
    """Synthesis time over audio time at which memory alone limits a single speaker; less than 1 is real time.

    The true figure is higher: launches and arithmetic are not in it.
    """
    read = frame_bytes(args, precision) + kv_bytes(args, CONTEXT)
    return read / bandwidth_bytes_per_s / FRAME_S


def pull_bytes(precision: str) -> int:
    """Room on the disk for `misoctl pull miso`: what it fetches and what it writes lie there together, for a while."""
    beside = CODEC.about_bytes + TOKENIZER.about_bytes
    return int(SPARE * (WEIGHTS[0].about_bytes + disk_bytes(MISO_8B, precision) + 2 * beside))


def kv_bytes(args: ModelArgs, positions: int) -> int:
    """Keys and values of one speaker's past in the backbone."""
    b = args.backbone
    return b.num_layers * 2 * b.num_kv_heads * b.head_dim * positions * FLOAT_BYTES


def resident_bytes(args: ModelArgs, precision: str) -> int:
    """Memory of the model ready to speak: weights, depth table, codec, one speaker's full context, MLX's pool."""
    table = args.audio_num_codebooks * args.audio_vocab_size * args.decoder.embed_dim * FLOAT_BYTES
    return disk_bytes(args, precision) + table + CODEC_BYTES + kv_bytes(args, args.backbone.max_seq_len) + POOL_BYTES


def choose(memory_bytes: int) -> tuple[str, str]:
    """The 8B's precision for a machine of this much memory, and why in one sentence."""
    room = SHARE * memory_bytes
    needs = {precision: resident_bytes(MISO_8B, precision) for precision in PRECISIONS}
    have = f"{size(room)}, {SHARE:.0%} of this machine's memory"
    if needs["q8"] <= room:
        return (
            "q8",
            f"q8 needs {size(needs['q8'])} of {have}, and 8-bit weights were measured to sound like bf16",
        )
    if needs["mixed"] <= room:
        return "mixed", (
            f"q8 needs {size(needs['q8'])}, more than {have}; mixed needs {size(needs['mixed'])} "
            "and keeps the depth decoder, the heads and the outer layers in 8 bits"
        )
    fit = "fits" if needs["q4"] <= room else f"needs {size(needs['q4'])} and may swap, but smaller is worse yet"
    return "q4", (
        f"mixed needs {size(needs['mixed'])}, more than {have}; q4 {fit}, and was measured to sound worse "
        "(word error rate 0.26 against about 0.1, UTMOS 2.9 against 3.9)"
    )


def _tensor_bytes(args: ModelArgs, quantization: Quantization) -> dict[str, int]:
    return {
        name: math.prod(shape) * (4 if is_packed(name, quantization) else FLOAT_BYTES)
        for name, shape in stored_shapes(args, quantization).items()
    }
