"""A model directory -> the model in memory: manifest, config, headers, and only then weights.

Small models are unpacked: MLX's CPU backend emulates bf16 and multiplies packed weights in scalar code. Large ones
stay as they are stored, on the CPU with fp32 activations, elsewhere with activations of the stored type.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import psutil

from misod import text
from misod.miso.mimi import Mimi
from misod.miso.model import Model
from misod.style import PRESETS, Style
from misod.weights.check import compare, naming, read_headers
from misod.weights.dims import ModelArgs, expected_shapes
from misod.weights.plan import Quantization, is_packed, read_quantization, stored_shapes

CPU_SHARE = 4  # on the CPU, unpacked fp32 weights may take a quarter of the machine's memory
GPU_BYTES = 256 << 20  # elsewhere packed weights are as fast as dense: only what is too small to matter is unpacked


@dataclass(frozen=True)
class Pace:
    """Words a second of the slowest and the fastest speech that is still taken for whole.

    The true model was heard to speak as slowly as 1.1; a cap made for faster speech cuts it off.
    """

    slowest: float = 1.1
    fastest: float = 7.0
    spare_s: float = 3.0  # beyond the slowest: pauses, breath

    def floor_s(self, words: int) -> float:
        return words / self.fastest

    def cap_s(self, words: int) -> float:
        return words / self.slowest + self.spare_s


@dataclass(frozen=True)
class Speech:
    """What config.json says beyond dims: how to draw, how fast it speaks, what text the model was taught to read."""

    presets: dict[str, Style]
    speakers: int
    limits: text.Limits
    pace: Pace
    segments: int  # of context that it was taught to follow
    loudness_lufs: dict[int, float]  # a speaker's usual

    @classmethod
    def from_dict(cls, config: dict) -> "Speech":
        own = {name: Style(**style) for name, style in config.get("presets", {}).items()}
        limits, speakers = text.Limits(**config.get("text", {})), config.get("speakers", 100)
        if speakers < 1 or limits.max_words < 1 or limits.max_characters < 2:
            raise ValueError("it has no speaker, or no room for a word")
        if "defaults" in config:
            own["natural"] = Style(**config["defaults"])
        return cls(
            presets=PRESETS | own,
            speakers=speakers,
            limits=limits,
            pace=Pace(**config.get("pace", {})),
            segments=config.get("context_segments", 64),
            loudness_lufs={int(speaker): lufs for speaker, lufs in config.get("loudness_lufs", {}).items()},
        )


def read_config(path: Path) -> tuple[ModelArgs, Speech, Quantization]:
    """Raises ValueError naming the file and what it lacks."""
    with naming(path, "a model's config"):
        config = json.loads(path.read_bytes())
        quantization = read_quantization(config.get("quantization", {}))
        return ModelArgs.from_dict(config), Speech.from_dict(config), quantization


def load_model(
    files: Sequence[Path], args: ModelArgs, quantization: Quantization, room_bytes: int | None = None
) -> Model:
    """The language model in `files`, which together hold exactly the tensors of `args`. Raises ValueError naming each.

    Unpacked where that takes at most `room_bytes`; None: what fits this machine. At most the model's own size and
    the depth decoder's table of inputs are in memory at any time, and one block of that table's arithmetic.
    """
    check_tensors(files, args, quantization)
    weights = {name: w for file in files for name, w in mx.load(str(file)).items()}
    model = Model(args)
    if unpacked_bytes(args) <= (room() if room_bytes is None else room_bytes):
        weights = unpack(weights, quantization)
    else:
        model.keep_packed(quantization)
        weights = {name: _wide(w) if w.ndim == 1 else w for name, w in weights.items()}
    model.load_weights(list(weights.items()), strict=True)
    del weights  # the packed ones, where they were unpacked
    mx.eval(model.parameters())
    model.prepare()
    mx.clear_cache()
    return model


def check_tensors(files: Sequence[Path], args: ModelArgs, quantization: Quantization) -> None:
    """Raises ValueError, one line, where the files hold anything else; reads headers only."""
    where = files[0] if len(files) == 1 else files[0].parent
    try:
        shapes = stored_shapes(args, quantization)
    except ValueError as error:
        raise ValueError(f"{where.parent if len(files) == 1 else where}/config.json: {error}") from None
    compare(where, read_headers(files), shapes, lambda name: is_packed(name, quantization))


def unpack(weights: dict[str, mx.array], quantization: Quantization) -> dict[str, mx.array]:
    """The model's own dense tensors, in the type of the scales; fp32 on the CPU."""
    dense = {}
    for name, w in weights.items():
        base, _, part = name.rpartition(".")
        if base not in quantization:
            dense[name] = _wide(w)
        elif part == "weight":
            how, (scales, biases) = quantization[base], (_exact(weights[f"{base}.{p}"]) for p in ("scales", "biases"))
            dense[name] = _wide(mx.dequantize(w, scales, biases, group_size=how.group_size, bits=how.bits))
    if "audio_head" in quantization:
        dense["audio_head"] = mx.contiguous(dense.pop("audio_head.weight").swapaxes(1, 2))
    return dense


def unpacked_bytes(args: ModelArgs) -> int:
    return sum(map(math.prod, expected_shapes(args).values())) * (4 if _on_cpu() else 2)


def room() -> int:
    return psutil.virtual_memory().total // CPU_SHARE if _on_cpu() else GPU_BYTES


def check_codec(directory: Path, args: ModelArgs, mimi: Mimi) -> None:
    """The model must speak codes that the codec has. Raises ValueError."""
    K, codec = args.audio_num_codebooks, mimi.config
    if codec.n_q < K or codec.bins > args.audio_vocab_size:
        ours, theirs = f"{K} codebooks of {args.audio_vocab_size}", f"{codec.n_q} of {codec.bins}"
        raise ValueError(f"{directory}: the model speaks {ours}, the codec knows {theirs}")


def _wide(w: mx.array) -> mx.array:
    return w.astype(mx.float32) if _on_cpu() else w


def _exact(w: mx.array) -> mx.array:
    """For code * scale + bias: bf16 would round it to 8 bits; fp16, the bundled voice's type, keeps 11."""
    return _wide(w) if w.dtype == mx.bfloat16 else w


def _on_cpu() -> bool:
    return mx.default_device() == mx.cpu
