"""Prefix cache: what the backbone has read of a voice, or of a dialogue's past, kept for the next request.

A prefix is one array (2 layers, Hkv, T, d), every layer's keys and then every layer's values, which nobody writes to:
rows fork it, and copy what they share when they write (cache.py). Its key is the digest of the segments it has read
(misod.voices.digests). In memory the least recently used go where there are more bytes than the limit. Those of voices
are kept on disk, too: <model>-<voice>.safetensors, 16 hex digits of each digest, and all of both within. One that is
stale, torn or another's is never used but made anew. At most one file is read or written in a prefill.
"""

import logging
import os
import zlib
from contextlib import suppress
from pathlib import Path

import mlx.core as mx
import numpy as np

from misod import tensor_file
from misod.engine import PrefixRoom
from misod.miso.cache import KVCache
from protocol.errors import UnsafePath
from protocol.paths import make_directories

log = logging.getLogger(__name__)

MAX_HEADER_BYTES = 4096
DTYPES = {"F32": mx.float32, "F16": mx.float16, "BF16": mx.bfloat16}


class Prefixes:
    """Of one model. `model`: the digest of all that decides what it makes of a text. `layout`: (2 layers, Hkv, d)."""

    def __init__(self, room: PrefixRoom, model: str, layout: tuple[int, int, int], dtype: mx.Dtype):
        self._room, self._model, self._layout = room, model, layout
        self._dtype = next(name for name, each in DTYPES.items() if each == dtype)
        self._kept: dict[str, mx.array] = {}  # the least recently used first
        self.bytes = self.hits = self.misses = self.evictions = 0

    def find(self, digests: list[str], voice: int = 0) -> tuple[int, KVCache | None]:
        """How many segments the longest prefix has of a context with these digests, and a fork of it.

        `voice`: positions of the first segment, where that may be on disk; else 0.
        """
        for count in range(len(digests), 0, -1):
            digest = digests[count - 1]
            kv = self._kept.pop(digest, None)
            if kv is not None:
                self._kept[digest] = kv
            elif count == 1 and voice and (kv := self._load(digest, voice)) is not None:
                self.add(digest, kv)
            if kv is not None:
                self.hits += 1
                return count, KVCache.fork(kv)
        self.misses += 1
        return 0, None

    def forget(self, digest: str) -> None:
        """Also on disk: a row may have written it after the voice's files were removed."""
        self._drop(digest)
        if path := self._path(digest):
            with suppress(OSError):
                path.unlink()

    def close(self) -> None:
        self._kept.clear()
        self.bytes = 0

    def add(self, digest: str, kv: mx.array) -> None:
        """In memory, unless it alone is over the limit: others that are of use would go for nothing."""
        self._drop(digest)
        if kv.nbytes > self._room.limit_bytes:
            return
        self._kept[digest] = kv
        self.bytes += kv.nbytes
        while self.bytes > self._room.limit_bytes:
            self._drop(next(iter(self._kept)))
            self.evictions += 1

    def _drop(self, digest: str) -> None:
        if (kv := self._kept.pop(digest, None)) is not None:
            self.bytes -= kv.nbytes

    # ---- on disk

    def _path(self, digest: str) -> Path | None:
        return self._room.directory and self._room.directory / f"{self._model[:16]}-{digest[:16]}.safetensors"

    def _about(self, digest: str, data: np.ndarray) -> dict[str, str]:
        return {"model": self._model, "context": digest, "crc32": str(zlib.crc32(data.data.cast("B")))}

    def _load(self, digest: str, positions: int) -> mx.array | None:
        if (path := self._path(digest)) is None:
            return None
        try:
            layers, heads, dim = self._layout
            with path.open("rb") as file:  # no more of it than there can be
                most = layers * heads * positions * dim * DTYPES[self._dtype].size + MAX_HEADER_BYTES
                tensors, about = tensor_file.unpack(file.read(most))
            ((name, (dtype, data)),) = tensors.items()
            if (name, dtype, data.shape) != ("kv", self._dtype, (layers, heads, positions, dim)):
                raise ValueError(f"of shape {data.shape} and type {dtype}")
            if about != self._about(digest, data):
                raise ValueError("of another model or voice, or not as it was written")
            os.utime(path)  # used now
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("%s is not used: %s", path, error)
            return None
        kv = mx.array(data)
        return kv.view(mx.bfloat16) if dtype == "BF16" else kv

    def store(self, digest: str, kv: mx.array | None = None) -> None:
        """On disk; kv None: the one in memory, if it is there.

        A file that cannot be written is no harm: it is made anew, and tried again, the next time.
        """
        path, kv = self._path(digest), self._kept.get(digest) if kv is None else kv
        if path is None or kv is None or kv.nbytes > self._room.disk_limit_bytes:
            return
        data = np.array(kv.view(mx.uint16) if self._dtype == "BF16" else kv)
        partial = path.with_name(f".{path.name}.partial")
        try:
            make_directories(path.parent)
            self._clear_disk(path, data.nbytes)
            partial.write_bytes(tensor_file.pack({"kv": (self._dtype, data)}, self._about(digest, data)))
            partial.replace(path)
        except UnsafePath as error:
            log.warning("%s", error)
        except OSError as error:
            log.warning("%s: %s", error.filename or path, error.strerror)
            with suppress(OSError):
                partial.unlink()

    def _clear_disk(self, path: Path, more_bytes: int) -> None:
        """Remove those used least recently, of any model, until there is room; and what a killed daemon left."""
        for left in path.parent.glob(".*.partial"):
            left.unlink(missing_ok=True)
        files = [(each.stat(), each) for each in path.parent.glob("*.safetensors") if each != path]
        total_bytes = more_bytes + sum(info.st_size for info, _ in files)
        for info, each in sorted(files, key=lambda file: file[0].st_mtime_ns):
            if total_bytes <= self._room.disk_limit_bytes:
                return
            each.unlink(missing_ok=True)
            total_bytes -= info.st_size
