"""What a safetensors file holds, read from its header alone, and how that differs from what a model needs.

Nothing here reads tensor data: a wrong file is refused before it costs memory. Every error is a
ValueError that starts with the file's path. Format: https://huggingface.co/docs/safetensors
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

MAX_HEADER_BYTES = 16 << 20  # MisoTTS, 367 tensors, has about 40 KB
MAX_LISTED = 20  # tensors named in one error; the rest are counted
DTYPE_BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
    "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
FLOATS = ("BF16", "F16", "F32")


class Tensor(NamedTuple):
    """One tensor of a file; `begin` is where its bytes start, counted from the file's start."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    path: Path

    @property
    def row_bytes(self) -> int:
        return math.prod(self.shape[1:]) * DTYPE_BYTES[self.dtype]


@contextmanager
def naming(path: Path, what: str) -> Iterator[None]:
    """What goes wrong in reading the JSON of `path` as `what` becomes one ValueError that names both."""
    try:
        yield
    except KeyError as error:
        raise ValueError(f"{path}: no {error} in it") from error
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path}: not {what}: {error}") from error


Header = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]


def read_header(path: Path) -> Header:
    """Name -> Tensor, in the order of the file. Raises ValueError unless the data tile the file exactly."""
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if size_bytes < 8 or header_bytes > MAX_HEADER_BYTES:
            raise ValueError(f"{path}: not a safetensors file")
        if header_bytes > size_bytes - 8:
            raise ValueError(f"{path}: truncated: a header of {header_bytes} bytes in {size_bytes} bytes")
        entries = _parse(path, file.read(header_bytes))
    spans = sorted(_span(path, name, entry) for name, entry in entries.items())
    end = 0
    for begin, stop, name in spans:
        if begin != end:
            raise ValueError(f"{path}: malformed header: a gap or an overlap before tensor {name!r}")
        end = stop
    data_bytes = size_bytes - 8 - header_bytes
    if end > data_bytes:
        raise ValueError(f"{path}: truncated: the tensors take {end} bytes, {data_bytes} are there")
    if end < data_bytes:
        raise ValueError(f"{path}: {data_bytes - end} stray bytes after the last tensor")
    start = 8 + header_bytes
    return {
        name: Tensor(entries[name]["dtype"], tuple(entries[name]["shape"]), start + begin, path)
        for begin, _, name in spans
    }


def read_headers(paths: Iterable[Path]) -> Header:
    """All tensors of a checkpoint in several files. Raises ValueError on one that is in two of them."""
    found: Header = {}
    for path in paths:
        for name, tensor in read_header(path).items():
            if name in found:
                raise ValueError(f"{path}: tensor {name!r} is in {found[name].path.name} too")
            found[name] = tensor
    return found


def read_metadata(path: Path) -> dict[str, str]:
    """What its maker wrote into a file whose header `read_header` has found in order."""
    with path.open("rb") as file:
        return json.loads(file.read(int.from_bytes(file.read(8), "little"))).get("__metadata__") or {}


def compare(
    path: Path,
    found: Header,
    expected: Shapes,
    packed: Callable[[str], bool] = lambda name: False,
    codes: tuple[str, ...] = ("U32",),
    floats: tuple[str, ...] = FLOATS,
) -> None:
    """Raises ValueError, one line that names missing, extra, misshapen and wrongly typed tensors, if there are any.

    `packed`: whether the tensor of this name holds codes, of one of these types, and no floats.
    """
    problems = [f"missing {name} {list(expected[name])}" for name in expected if name not in found]
    for name, (dtype, shape, *_) in found.items():
        if name not in expected:
            problems.append(f"extra {name} {list(shape)}")
        elif shape != tuple(expected[name]):
            problems.append(f"misshapen {name} {list(shape)}, should be {list(expected[name])}")
        elif dtype not in (wanted := codes if packed(name) else floats):
            problems.append(f"wrong type {name} {dtype}, should be {' or '.join(wanted)}")
    if problems:
        more = [f"and {len(problems) - MAX_LISTED} more"] if len(problems) > MAX_LISTED else []
        listed = ", ".join(problems[:MAX_LISTED] + more)
        raise ValueError(f"{path}: {len(problems)} tensors are not as the config demands: {listed}")


def _parse(path: Path, header: bytes) -> dict:
    try:
        entries = json.loads(header, object_pairs_hook=_no_duplicates)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}: malformed header: {type(error).__name__}") from error
    if not isinstance(entries, dict):
        raise ValueError(f"{path}: malformed header: not a map")
    entries.pop("__metadata__", None)
    return entries


def _no_duplicates(pairs: list[tuple]) -> dict:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("duplicate key")
    return dict(pairs)


def _span(path: Path, name: str, entry: object) -> tuple[int, int, str]:
    """(begin, end, name) of a tensor's bytes, after checking them against its dtype and shape."""
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"{path}: malformed header: tensor {name!r} needs dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
        raise ValueError(f"{path}: tensor {name!r} has an unknown dtype")
    if not _is_counts(shape) or not _is_counts(offsets) or len(offsets) != 2:
        raise ValueError(f"{path}: malformed header: tensor {name!r} has a bad shape or offsets")
    begin, end = offsets
    if end - begin != math.prod(shape) * DTYPE_BYTES[dtype]:
        raise ValueError(f"{path}: malformed header: tensor {name!r}: its shape and its offsets disagree")
    return begin, end, name


def _is_counts(value: object) -> bool:
    return isinstance(value, list) and all(type(n) is int and 0 <= n < 1 << 48 for n in value)
