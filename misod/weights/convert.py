"""A checkpoint of any known spelling -> a model directory in the precision asked for, tensor by tensor.

Never more than a block of rows is held, so a 16 GB file takes some hundred megabytes. Nothing depends on time,
machine or order of threads: the same source gives the same bytes. A conversion that is killed leaves a directory
that nothing loads and the next one removes.
"""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

import misod
from misod.weights import layout
from misod.weights.check import DTYPE_BYTES, Header, Tensor, compare, read_header, read_headers
from misod.weights.dims import ModelArgs, expected_shapes
from misod.weights.manifest import Counter, File, Manifest, new_directory, write_manifest, write_synced
from misod.weights.plan import Affine, Quantization, grouped_axis, is_packed, plan, stored_shapes
from misod.weights.quantize import PACKABLE, pack, to_bf16, unpack
from misod.weights.tensors import Writer, blocks, find_weights, into_shards, read, read_floats

SHARD_BYTES = 4_000_000_000
PACK_BYTES = 1 << 20  # float32 packed at a time: about a core's second-level cache


@dataclass(frozen=True)
class Parts:
    """What a model is made of. `weights`: a folder of safetensors, or one file; its config.json may be beside it."""

    weights: Path
    codec: Path
    tokenizer: Path


@dataclass(frozen=True)
class Stored:
    """One of the model's tensors in the source: dense, or packed with `how`."""

    weight: Tensor
    how: Affine | None = None
    scales: Tensor | None = None
    biases: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        return [t for t in (self.weight, self.scales, self.biases) if t]

    def block(self, start: int, stop: int) -> np.ndarray:
        """Rows start..stop as float32."""
        if self.how is None:
            return read_floats(self.weight, start, stop)
        parts = read(self.weight, start, stop), *(read_floats(t, start, stop) for t in (self.scales, self.biases))
        return unpack(*parts, self.how)


class Source:
    """The language model's tensors as some tool wrote them, under the reference's names."""

    def __init__(self, weights: Path):
        files = find_weights(weights)
        self.args = layout.read_args(files[0].parent / "config.json")
        self._tensors: Header = {}
        for spelled, tensor in read_headers(files).items():
            name = layout.reference_name(spelled)
            if name in self._tensors:
                raise ValueError(f"{tensor.path}: {name} is in it in two spellings")
            self._tensors[name] = tensor
        self._how = how = self._packed(weights)
        compare(weights, self._tensors, stored_shapes(self.args, how), lambda name: is_packed(name, how))

    def _packed(self, weights: Path) -> Quantization:
        """Bits and group size of each packed tensor, from the shapes: a config may say less, or nothing."""
        shapes, packed = expected_shapes(self.args), {}
        for name in [name for name in self._tensors if name.endswith(".scales")]:
            base = name.removesuffix(".scales")
            weight, shape = self._tensors.get(f"{base}.weight"), shapes.get(f"{base}.weight") or shapes.get(base)
            if weight is None or shape is None:
                continue  # compare tells of it
            n = grouped_axis(base, shape)
            how = Affine(weight.shape[-1] * 32 // n, n // max(1, self._tensors[name].shape[-1]))
            if how.bits not in PACKABLE:
                raise ValueError(f"{weights}: {base} has {how.bits} bits, only {PACKABLE} can be read")
            packed[base] = how
        return packed

    def get(self, base: str) -> Stored:
        """`base`: a tensor's name without .weight."""
        if (how := self._how.get(base)) is None:
            return Stored(self._tensors.get(f"{base}.weight") or self._tensors[base])
        weight, scales, biases = (self._tensors[f"{base}.{part}"] for part in ("weight", "scales", "biases"))
        return Stored(weight, how, scales, biases)


def convert(
    parts: Parts,
    models: Path,
    name: str,
    precision: str,
    embeddings: str | None = None,
    *,
    origin: Mapping[str, str | None],
    card: str,
    count: Counter = lambda _: None,
) -> Path:
    """Make models/name from `parts`; what was there under this name is replaced once all is written and synced.

    `origin`: the manifest's source (repo, revision, licence); `card`: the text of MODEL_CARD.md.
    What is written goes to `count`, output_bytes in all. Raises ValueError naming a file that is not what it should
    be, and OSError (a full disk).
    """
    source = Source(parts.weights)
    quantization = plan(source.args, precision, embeddings)
    outputs = _outputs(source, quantization)
    codec = Codec(parts.codec)
    tokenizer = layout.templated(parts.tokenizer)
    with new_directory(models, name) as folder:
        files = _write_model(folder, source, quantization, outputs, count)
        files |= _write_codec(folder / "codec", codec, count)
        files["config.json"] = write_synced(folder / "config.json", _config(parts.weights, source.args, quantization))
        files["tokenizer.json"] = write_synced(folder / "tokenizer.json", tokenizer)
        count(parts.tokenizer.stat().st_size)
        files["MODEL_CARD.md"] = write_synced(folder / "MODEL_CARD.md", card.encode())
        made_by = f"miso-speech {misod.__version__}"
        write_manifest(folder, Manifest("miso", precision, origin, made_by, files))
    return models / name


def output_bytes(parts: Parts, precision: str, embeddings: str | None = None) -> int:
    """What convert would write but for a few kilobytes, and count, from the headers alone. Raises ValueError as it."""
    source = Source(parts.weights)
    outputs = _outputs(source, plan(source.args, precision, embeddings))
    sizes = sum(map(_entry_bytes, outputs.values())) + Codec(parts.codec).bytes
    return sizes + parts.tokenizer.stat().st_size


# ---- the language model

Outputs = dict[str, tuple[str, tuple[int, ...]]]  # name -> dtype, shape


def _outputs(source: Source, quantization: Quantization) -> Outputs:
    shapes = stored_shapes(source.args, quantization)
    return {name: ("U32" if is_packed(name, quantization) else "BF16", shape) for name, shape in shapes.items()}


def _entry_bytes(entry: tuple[str, tuple[int, ...]]) -> int:
    dtype, shape = entry
    return math.prod(shape) * DTYPE_BYTES[dtype]


def _base(name: str) -> str:
    return name.removesuffix(".weight").removesuffix(".scales").removesuffix(".biases")


def _write_model(
    folder: Path, source: Source, quantization: Quantization, outputs: Outputs, count: Counter
) -> dict[str, File]:
    bases: dict[str, int] = {}  # a packed tensor's three parts stay in one shard
    for name, entry in outputs.items():
        bases[_base(name)] = bases.get(_base(name), 0) + _entry_bytes(entry)
    shards, files = into_shards(bases.items(), SHARD_BYTES), {}
    for i, names in enumerate(shards):
        file = "model.safetensors" if len(shards) == 1 else f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        inside = {name: entry for name, entry in outputs.items() if _base(name) in set(names)}
        writer = Writer(folder / file, inside)
        try:
            for base in names:
                _write_tensor(writer, base, source.get(base), quantization.get(base), count)
            files[file] = writer.finish()
        finally:
            writer.close()
    return files


def _write_tensor(writer: Writer, base: str, stored: Stored, how: Affine | None, count: Counter) -> None:
    """Codes go out as they are made; scales and biases, a few megabytes, wait for their turn."""
    if how is not None and stored.how == how and stored.scales.dtype == stored.biases.dtype == "BF16":
        for tensor in stored.tensors:  # as it should be already
            _copy(writer, tensor, count)
        return
    rest: list[list[np.ndarray]] = [[], []]
    for x in _blocks(base, stored, how):
        try:
            codes, *fine = pack(x, how) if how else (to_bf16(_finite(x)),)
        except ValueError as error:
            raise ValueError(f"{stored.weight.path}: {base}: {error}") from None
        writer.write(codes)
        count(codes.nbytes)
        for held, part in zip(rest, fine, strict=False):
            held.append(part)
    for part in (p for held in rest for p in held):
        writer.write(part)
        count(part.nbytes)


def _copy(writer: Writer, tensor: Tensor, count: Counter) -> None:
    for start, stop in blocks(tensor.shape[0], tensor.row_bytes):
        rows = read(tensor, start, stop)
        writer.write(rows)
        count(rows.nbytes)


def _blocks(base: str, stored: Stored, how: Affine | None) -> Iterator[np.ndarray]:
    """The tensor as float32 in the orientation it is written in, a few rows at a time."""
    shape = stored.weight.shape
    turned = base == "audio_head" and (stored.how is None) != (how is None)
    row_bytes = stored.weight.row_bytes * (32 // stored.how.bits if stored.how else 1)
    for start, stop in blocks(shape[0], row_bytes):
        block = stored.block(start, stop)
        if turned:
            block = np.ascontiguousarray(block.swapaxes(1, 2))
        flat = block.reshape(-1, block.shape[-1]) if block.ndim > 1 else block
        for a, b in blocks(flat.shape[0], flat[0].nbytes, PACK_BYTES):
            yield flat[a:b]


def _finite(x: np.ndarray) -> np.ndarray:
    if not np.isfinite(x).all():
        raise ValueError("not all its values are finite")
    return x


def _config(weights: Path, args: ModelArgs, quantization: Quantization) -> bytes:
    """config.json: what the source's own says beyond dims, where it is in our spelling; the 8B's defaults elsewhere."""
    config = layout.read_config(find_weights(weights)[0].parent / "config.json")
    if "backbone" not in config:
        config = {"model_type": "miso", "sample_rate": 24000, "frame_rate": 12.5}
    config |= asdict(args) | {"dtype": "bfloat16"}
    config["quantization"] = {base: asdict(how) for base, how in quantization.items()}
    return (json.dumps(config, indent=1) + "\n").encode()


# ---- the codec


class Codec:
    """Mimi's tensors as moshi or transformers names them, and what it takes to write them as published."""

    def __init__(self, path: Path):
        """`path`: a safetensors file; a config.json in our form beside it, else Mimi's true dims."""
        from misod.miso.mimi import MimiConfig, expected_tensors

        beside = layout.read_config(path.parent / "config.json")
        self.raw = beside.get("mimi_config", layout.MIMI_CONFIG)
        config = MimiConfig.from_dict(self.raw)
        self.heads, self._path = config.num_heads, path
        found = read_header(path)
        self.shapes = expected_tensors(config)
        sources = {name: layout.mimi_sources(name, found) for name in self.shapes}
        self._check(found, sources)
        self.tensors = {name: [found[part] for part in parts] for name, parts in sources.items()}

    @property
    def bytes(self) -> int:
        return sum(_entry_bytes((self.dtype(name), shape)) for name, shape in self.shapes.items())

    def dtype(self, name: str) -> str:
        return self.tensors[name][0].dtype

    def value(self, name: str) -> np.ndarray:
        """As it is written: q, k and v in one, their rows sorted for interleaved pairs."""
        parts = [read(tensor) for tensor in self.tensors[name]]
        if len(parts) == 1:
            return parts[0]
        q, k, v = parts
        return np.concatenate([layout.interleave(q, self.heads), layout.interleave(k, self.heads), v])

    def _check(self, found: Header, sources: Mapping[str, list[str]]) -> None:
        expected = {}
        for name, parts in sources.items():
            first, *rest = self.shapes[name]
            expected |= {part: (first // len(parts), *rest) for part in parts}
        compare(self._path, found, expected)


def _write_codec(folder: Path, codec: Codec, count: Counter) -> dict[str, File]:
    writer = Writer(folder / "model.safetensors", {n: (codec.dtype(n), shape) for n, shape in codec.shapes.items()})
    try:
        for name in codec.shapes:
            value = codec.value(name)
            writer.write(value)
            count(value.nbytes)
        weights = writer.finish()
    finally:
        writer.close()
    config = (json.dumps({"mimi_config": codec.raw}, indent=1) + "\n").encode()
    return {"codec/model.safetensors": weights, "codec/config.json": write_synced(folder / "config.json", config)}
