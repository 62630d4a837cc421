"""One tensor and its metadata as the bytes of a safetensors file. Format: https://huggingface.co/docs/safetensors"""

import json
import math

import numpy as np

NUMPY = {"I16": "<i2", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # bf16 as bit patterns: numpy has no such type


def pack(name: str, dtype: str, array: np.ndarray, metadata: dict[str, str]) -> bytes:
    data = np.ascontiguousarray(array, NUMPY[dtype])
    entry = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [0, data.nbytes]}
    header = json.dumps({"__metadata__": metadata, name: entry}, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return b"".join([len(header).to_bytes(8, "little"), header, data.data.cast("B")])


def unpack(data: bytes, name: str) -> tuple[str, np.ndarray, dict[str, str]]:
    """dtype, the tensor (a view of `data`), metadata. Raises ValueError unless that is all there is, and whole."""
    try:
        size = int.from_bytes(data[:8], "little")
        header = json.loads(data[8 : 8 + size].decode())
        metadata, entry = header.pop("__metadata__"), header.pop(name)
        dtype, shape = entry.pop("dtype"), entry["shape"]
        if header or entry != {"shape": shape, "data_offsets": [0, math.prod(shape) * np.dtype(NUMPY[dtype]).itemsize]}:
            raise ValueError("malformed header")
        if not all(type(n) is int and n > 0 for n in shape):
            raise ValueError("malformed header")
        if not all(isinstance(text, str) and text.encode() is not None for text in metadata.values()):
            raise ValueError("its metadata are not all text")
        return dtype, np.frombuffer(data, NUMPY[dtype], offset=8 + size).reshape(shape), metadata
    except (TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"malformed header: {type(error).__name__}") from None
