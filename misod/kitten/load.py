"""A repository in the published layout -> the language model in memory: configs, the file's header, then weights."""

import json
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import chain, islice
from pathlib import Path

import mlx.core as mx
import numpy as np

from misod.kitten import ternary
from misod.kitten.model import Model, ModelArgs
from misod.kitten.tokens import Tokens
from misod.weights.check import Header, Tensor, compare, naming, read_header, read_metadata
from misod.weights.tensors import read

ALWAYS = {  # of lm/config.json, where it says anything else the model computes something else
    "model_type": "qwen3",
    "hidden_act": "silu",
    "attention_bias": False,
    "rope_scaling": None,
    "use_sliding_window": False,
    "tie_word_embeddings": True,
}
AHEAD = 4  # matrices that are unpacked before they are wanted, on as many threads
EMBEDDING = "model.embed_tokens.weight"
REFUSED = {
    "full": "their bf16 values are the packed ones, in almost four times the bytes",
    "emb4": "their embedding is rounded to 4 bits, and what is multiplied here is what was published",
}


def read_config(directory: Path) -> dict:
    """config.json. Raises ValueError naming it."""
    with naming(directory / "config.json", "the config of a KittenTTS 2"):
        return dict(json.loads((directory / "config.json").read_bytes()))


def read_args(directory: Path, config: dict | None = None) -> tuple[ModelArgs, Tokens, Path]:
    """Dims, token map and the file of packed weights. Raises ValueError naming the file and what is wrong."""
    config = read_config(directory) if config is None else config
    with naming(directory / "config.json", "the config of a KittenTTS 2"):
        if config["type"] != "KITTEN2":
            raise ValueError(f"its type is {config['type']!r}, not 'KITTEN2'")
        kind = "packed" if config.get("lm_packed") else config.get("default_weights", "full")
        tokens, speaker_dim = Tokens(**config["token_map"]), config["speaker_embedding_dim"]
    if kind != "packed":
        why = REFUSED.get(kind, "no such weights are known")
        raise ValueError(f"{directory}: its weights are {kind!r}: {why}. Pull the repository with its packed weights")
    path = directory / config.get("lm_dir", "lm") / "config.json"
    dims = [field.name for field in fields(ModelArgs) if field.name != "speaker_dim"]
    with naming(path, "the config of its language model"):
        lm = json.loads(path.read_bytes())
        for name, wanted in ALWAYS.items():
            if lm.get(name, wanted) != wanted:
                raise ValueError(f"{name} is {lm[name]!r}, only {wanted!r} is known")
        args = ModelArgs(**{name: lm[name] for name in dims}, speaker_dim=speaker_dim)
        if any(columns % ternary.GROUP_SIZE for _, columns in args.linears().values()):
            raise ValueError(f"its widths are not whole groups of {ternary.GROUP_SIZE}")
        if max(tokens.audio_id_end, *vars(tokens).values()) > args.vocab_size:
            raise ValueError(f"the token map goes beyond its vocabulary of {args.vocab_size}")
    return args, tokens, directory / config["lm_packed"]


def load_model(path: Path, args: ModelArgs, dtype: mx.Dtype | None = None) -> Model:
    """The model whose packed weights are in the file `path`. Raises ValueError naming what is not as it must be.

    Activations, and all but the embedding, take `dtype`; None: bf16, the published type, but fp32 on the CPU, where
    MLX emulates bf16. A tensor at a time, and AHEAD that are unpacked: at most the model and its largest tensor
    twice are in memory.
    """
    dtype = dtype or (mx.float32 if mx.default_device() == mx.cpu else mx.bfloat16)
    found = read_header(path)
    _check(path, found, args)
    model = Model(args)
    model.load_weights(list(_weights(path, found, args, dtype)), strict=True)
    mx.eval(model.parameters())
    mx.clear_cache()
    model.model.prepare()
    return model


def _weights(path: Path, found: Header, args: ModelArgs, dtype: mx.Dtype) -> Iterator[tuple[str, mx.array]]:
    """Each computed before the next is read; the largest, the embedding, first."""
    lazy = mx.load(str(path))  # reads a tensor when it is computed
    for name in sorted((n for n in found if "::" not in n), key=lambda n: -found[n].row_bytes * found[n].shape[0]):
        array = lazy.pop(name)
        array = array if name == EMBEDDING else array.astype(dtype)
        mx.eval(array)
        yield name, array
    products = {
        f"{layer}{product}": [f"{layer}{part}.weight" for part in parts]
        for layer in (f"model.layers.{i}." for i in range(args.num_hidden_layers))
        for product, parts in args.products().items()
    }
    unpacked = _unpacked(path, found, args, chain.from_iterable(products.values()))
    for product, parts in products.items():
        words = [mx.array(each) for each in islice(unpacked, len(parts))]
        scales = [lazy.pop(f"{name}::scale") for name in parts]
        for name, scale in zip(parts, scales, strict=True):
            if not mx.isfinite(scale).all().item():
                raise ValueError(f"{path}: {name} has a scale that is not finite")
        scale = mx.concatenate(scales).astype(dtype)
        arrays = mx.concatenate(words), scale, -scale
        mx.eval(arrays)
        yield from zip((f"{product}.{kind}" for kind in ("weight", "scales", "biases")), arrays, strict=True)


def _unpacked(path: Path, found: Header, args: ModelArgs, names: Iterable[str]) -> Iterator[np.ndarray]:
    """The codes of each, in this order: some threads' work, for numpy computes without Python's lock."""
    shapes, ahead = packed_shapes(args), deque()
    with ThreadPoolExecutor(AHEAD, "unpack") as pool:
        for name in names:
            ahead.append(pool.submit(_codes, path, name, found[f"{name}::codes"], shapes[name]))
            if len(ahead) > AHEAD:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()


def _codes(path: Path, name: str, tensor: Tensor, shape: tuple[int, int]) -> np.ndarray:
    codes = read(tensor)
    if problem := ternary.problem(codes, shape[0] * shape[1]):
        raise ValueError(f"{path}: {name} {problem}")
    return ternary.to_codes(codes, *shape)


def packed_shapes(args: ModelArgs) -> dict[str, tuple[int, int]]:
    """Name -> (out, in) of every ternary matrix."""
    return {
        f"model.layers.{i}.{name}.weight": shape
        for i in range(args.num_hidden_layers)
        for name, shape in args.linears().items()
    }


def _check(path: Path, found: Header, args: ModelArgs) -> None:
    """Format, group size, and every tensor's name, shape and type."""
    with naming(path, "packed ternary weights"):
        metadata = read_metadata(path)
        if metadata["format"] != ternary.FORMAT:
            raise ValueError(f"the format is {metadata['format']!r}, only {ternary.FORMAT!r} is known")
        if int(metadata["group_size"]) != ternary.GROUP_SIZE:
            raise ValueError(f"groups of {metadata['group_size']}, only {ternary.GROUP_SIZE} are known")
        listed = {name: tuple(spec["shape"]) for name, spec in json.loads(metadata["packed"]).items()}
        if listed != packed_shapes(args):
            raise ValueError("the matrices that its metadata list are not those of the config")
    compare(path, found, expected_shapes(args), lambda name: name.endswith("::codes"), codes=("U8",), floats=("BF16",))


def expected_shapes(args: ModelArgs) -> dict[str, tuple[int, ...]]:
    D, d = args.hidden_size, args.head_dim
    shapes = {EMBEDDING: (args.vocab_size, D), "model.norm.weight": (D,)}
    for i in range(args.num_hidden_layers):
        layer = f"model.layers.{i}."
        shapes |= {f"{layer}{norm}.weight": (D,) for norm in ("input_layernorm", "post_attention_layernorm")}
        shapes |= {f"{layer}self_attn.{norm}.weight": (d,) for norm in ("q_norm", "k_norm")}
    for name, (rows, columns) in packed_shapes(args).items():
        shapes[f"{name}::codes"] = (-(-rows * columns // ternary.DIGITS),)
        shapes[f"{name}::scale"] = (rows, columns // ternary.GROUP_SIZE)
    linear = {"weight": (D, args.speaker_dim), "bias": (D,)}
    return (
        shapes
        | {f"spk_proj.0.{part}": shape for part, shape in linear.items()}
        | {f"spk_proj.1.{part}": (D,) for part in linear}
    )
