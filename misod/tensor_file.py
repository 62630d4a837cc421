"""Tensors and their metadata as the bytes of a safetensors file. Format: https://huggingface.co/docs/safetensors"""

import json
import math

import numpy as np

NUMPY = {"I16": "<i2", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # bf16 as bit patterns: numpy has no such type

Tensors = dict[str, tuple[str, np.ndarray]]  # name -> (dtype, array)


def pack(tensors: Tensors, metadata: dict[str, str]) -> bytes:
    """They lie in the order given."""
    entries, parts, end = {}, [], 0
    for name, (dtype, array) in tensors.items():
        data = np.ascontiguousarray(array, NUMPY[dtype])
        begin, end = end, end + data.nbytes
        entries[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
        parts.append(data.data.cast("B"))
    whole = {"__metadata__": metadata} | entries
    header = json.dumps(whole, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    return b"".join([len(header).to_bytes(8, "little"), header, *parts])


def unpack(data: bytes) -> tuple[Tensors, dict[str, str]]:
    """The tensors (views of `data`) and the metadata. Raises ValueError unless that is all there is, and whole."""
    try:
        start = 8 + int.from_bytes(data[:8], "little")
        header = json.loads(data[8:start].decode())
        metadata, tensors, at = header.pop("__metadata__"), {}, start
        for name, entry in header.items():
            dtype, shape = entry["dtype"], entry["shape"]
            if not all(type(n) is int and n > 0 for n in shape):
                raise ValueError("malformed header")
            count, kind = math.prod(shape), np.dtype(NUMPY[dtype])
            begin, at = at, at + count * kind.itemsize
            if entry != {"dtype": dtype, "shape": shape, "data_offsets": [begin - start, at - start]}:
                raise ValueError("malformed header")
            tensors[name] = dtype, np.frombuffer(data, kind, count, begin).reshape(shape)
        if at != len(data):
            raise ValueError("longer than its header says")
        if not all(isinstance(text, str) and text.encode() is not None for text in metadata.values()):
            raise ValueError("its metadata are not all text")
        return tensors, metadata
    except (TypeError, KeyError, AttributeError, RecursionError, OverflowError) as error:
        raise ValueError(f"malformed header: {type(error).__name__}") from None
