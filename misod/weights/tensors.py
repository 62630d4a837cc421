"""Tensors in safetensors files by ranges of bytes: read a few rows at a time, written in order and hashed on the way.

A checkpoint is larger than memory may be, so nothing here holds more than the rows that are asked for.
"""

import hashlib
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import numpy as np

from misod.weights.check import DTYPE_BYTES, Tensor
from misod.weights.manifest import File
from misod.weights.quantize import from_bf16

# bf16 as bit patterns: numpy has no such type
NUMPY = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "U32": "<u4", "U8": "u1"}
BLOCK_BYTES = 64 << 20  # read at a time


def read(tensor: Tensor, start: int = 0, stop: int | None = None) -> np.ndarray:
    """Rows start..stop of the first axis, as the file has them. Raises ValueError where the file was cut."""
    stop = tensor.shape[0] if stop is None else stop
    with tensor.path.open("rb") as file:
        file.seek(tensor.begin + start * tensor.row_bytes)
        data = file.read((stop - start) * tensor.row_bytes)
    if len(data) != (stop - start) * tensor.row_bytes:
        raise ValueError(f"{tensor.path}: ended while it was read")
    return np.frombuffer(data, NUMPY[tensor.dtype]).reshape(stop - start, *tensor.shape[1:])


def read_floats(tensor: Tensor, start: int, stop: int) -> np.ndarray:
    """The same as float32."""
    rows = read(tensor, start, stop)
    return from_bf16(rows) if tensor.dtype == "BF16" else rows.astype(np.float32, copy=False)


def find_weights(path: Path) -> list[Path]:
    """The language model's files at `path`: itself, or the model*.safetensors in it. Raises ValueError."""
    if path.is_file():
        return [path]
    files = [path / "model.safetensors"] if (path / "model.safetensors").exists() else []
    files = files or sorted(path.glob("model-*-of-*.safetensors"))
    if not files:
        raise ValueError(f"{path}: no model.safetensors and no model-00001-of-0000N.safetensors in it")
    return files


def blocks(rows: int, row_bytes: int, block_bytes: int | None = None) -> Iterator[tuple[int, int]]:
    """Ranges of rows of about block_bytes; None: BLOCK_BYTES."""
    step = max(1, (block_bytes or BLOCK_BYTES) // max(1, row_bytes))
    return ((start, min(rows, start + step)) for start in range(0, rows, step))


class Writer:
    """One safetensors file, its header first; then the tensors' bytes, in the order they were declared."""

    def __init__(self, path: Path, tensors: Mapping[str, tuple[str, tuple[int, ...]]]):
        header, end = {"__metadata__": {"format": "mlx"}}, 0
        for name, (dtype, shape) in tensors.items():
            begin, end = end, end + math.prod(shape) * DTYPE_BYTES[dtype]
            header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":")).encode()
        text += b" " * (-len(text) % 8)
        self.path, self.bytes, self._data_bytes = path, 0, 8 + len(text) + end
        self._sha256, self._file = hashlib.sha256(), path.open("xb")
        self.write(len(text).to_bytes(8, "little") + text)

    def write(self, data: bytes | np.ndarray) -> None:
        data = memoryview(np.ascontiguousarray(data)).cast("B") if isinstance(data, np.ndarray) else data
        self._file.write(data)
        self._sha256.update(data)
        self.bytes += len(data)

    def finish(self) -> File:
        """On the disk, whole. Raises ValueError where what was written is not what was declared."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        if self.bytes != self._data_bytes:
            raise ValueError(f"{self.path}: {self.bytes} bytes were written, {self._data_bytes} were declared")
        return File(self.bytes, self._sha256.hexdigest())

    def close(self) -> None:
        self._file.close()


def into_shards(sizes: Iterable[tuple[str, int]], limit_bytes: int) -> list[list[str]]:
    """Names in order, in lists that stay within limit_bytes where a single one does."""
    shards: list[list[str]] = []
    room = 0
    for name, size in sizes:
        if not shards or size > room:
            shards.append([])
            room = limit_bytes
        shards[-1].append(name)
        room -= size
    return shards
