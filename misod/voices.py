"""Voices: what they are, and the directory they are kept in. Loads neither zmq nor mlx.

A voice is a file, <name>.safetensors: its codes, and in the metadata the words and where both are from. One of
KittenTTS 2 has its speaker's embedding, too, and as much of the recording as the decoder hears.
"""

import hashlib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from misod import tensor_file
from misod.weights.manifest import sync, write_synced
from protocol import errors, paths
from protocol import messages as m
from protocol.errors import ProtocolError

FORMAT, NAMELESS = "2", "1"  # the older one does not name the model
SUFFIX = ".safetensors"
FRAME_HZ, TOKEN_HZ = 12.5, 25.0  # of miso's codecs, and of KittenTTS 2's
MAX_SECONDS = 30
MAX_CODEBOOKS = 64
MAX_EMBEDDING = 1024
MAX_RECORDING = 10 * m.CLIP_HZ  # samples: a decoder of KittenTTS 2 hears no more
MAX_SPOKEN_BYTES = 24_000  # numbers grow when written out
MAX_VOICES = 500
MAX_IN_MEMORY = 32  # voices, the last that were read
CUT_CHARACTERS = 60  # of text and licence, in a list of all

Stamp = tuple[int, int]  # a file's time and size


@dataclass(frozen=True)
class Segment:
    """A unit of context: what was said, by whom, and how it sounded. codes (K, T)."""

    speaker: int
    text: str
    codes: np.ndarray


def digests(segments: Iterable[Segment]) -> list[str]:
    """Of the first, of the first two, ...: sha256 in hex, each of the one before and what is new."""
    chain, made = b"", []
    for segment in segments:
        text, codes = segment.text.encode(), np.ascontiguousarray(segment.codes, "<i2")
        head = f"{segment.speaker} {len(text)} {codes.shape}".encode()
        chain = hashlib.sha256(b"\0".join([chain, head, text, codes.tobytes()])).digest()
        made.append(chain.hex())
    return made


@dataclass(frozen=True)
class Heard:
    """A recording as a model takes it: codes (K, T) int16, and its transcript as it is read.

    embedding (n,) float32, recording (n,) int16 at CLIP_HZ, its beginning: where the model needs them.
    """

    codes: np.ndarray
    spoken: str
    codec_digest: str
    model: str = ""  # the name of it
    embedding: np.ndarray | None = None
    recording: np.ndarray | None = None


@dataclass(frozen=True)
class Voice:
    """What was heard, under a name; fields as in Heard. A one-off has no name."""

    name: str
    codes: np.ndarray
    text: str
    spoken: str
    speaker: int
    codec_digest: str
    clip_digest: str = ""
    created: str = ""  # ISO 8601, UTC
    licence: str = ""
    permission: bool = False
    model: str = ""  # "": not known
    embedding: np.ndarray | None = None
    recording: np.ndarray | None = None

    @property
    def segment(self) -> Segment:
        return Segment(self.speaker, self.spoken, self.codes)

    @property
    def digest(self) -> str:
        """Of all that is heard of it: the same under another name."""
        (digest,) = digests([self.segment])
        if self.embedding is None:
            return digest
        more = np.ascontiguousarray(self.embedding, "<f4"), np.ascontiguousarray(self.recording, "<i2")
        return hashlib.sha256(b"".join([bytes.fromhex(digest), *(array.tobytes() for array in more)])).hexdigest()

    @property
    def codes_hz(self) -> float:
        return FRAME_HZ if self.embedding is None else TOKEN_HZ

    def check(self) -> None:
        """Raises ValueError: what is wrong with it."""
        if not m.is_name(self.name):
            raise ValueError(m.NAME_RULE)
        (K, T), longest = self.codes.shape, int(MAX_SECONDS * self.codes_hz)
        if K > MAX_CODEBOOKS or longest < T:
            raise ValueError(f"codes of {K} codebooks and {T} frames: at most {MAX_CODEBOOKS} and {longest}")
        if self.codes.min() < 0 or (self.embedding is None and not self.codes.any(axis=0).all()):
            raise ValueError("a frame of codes that no recording gives")
        embedding = np.zeros(0) if self.embedding is None else self.embedding
        if len(embedding) > MAX_EMBEDDING or not np.isfinite(embedding).all():
            raise ValueError(f"its embedding is not at most {MAX_EMBEDDING} finite numbers")
        if self.recording is not None and len(self.recording) > MAX_RECORDING:
            raise ValueError(f"a recording of {len(self.recording)} samples: at most {MAX_RECORDING} are kept")
        sizes = (self.text, m.MAX_CLIP_TEXT_BYTES), (self.spoken, MAX_SPOKEN_BYTES), (self.licence, 1000)
        if any(len(text.encode()) > most for text, most in sizes):
            raise ValueError("its words are too long")
        if not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in (self.codec_digest, self.clip_digest)):
            raise ValueError("a digest that is none")
        if not re.fullmatch("([A-Za-z0-9][A-Za-z0-9._-]{0,63})?", self.model):
            raise ValueError("a model's name that is none")

    def pack(self) -> bytes:
        """The bytes of its file."""
        words = {name: getattr(self, name) for name in _WORDS}
        numbers = {"speaker": str(self.speaker), "permission": str(self.permission).lower()}
        about = {"format": FORMAT, **words, **numbers, "digest": self.digest}
        arrays = {name: (dtype, getattr(self, name)) for name, (dtype, _) in _ARRAYS.items()}
        return tensor_file.pack({name: each for name, each in arrays.items() if each[1] is not None}, about)

    def about(self, cut: bool) -> dict:
        """For a listing."""
        end = CUT_CHARACTERS if cut else None
        return {
            "name": self.name,
            "text": self.text[:end],
            "model": self.model,
            "speaker": self.speaker,
            "seconds": self.codes.shape[1] / self.codes_hz,
            "created": self.created,
            "clip_digest": self.clip_digest,
            "codec_digest": self.codec_digest,
            "digest": self.digest,
            "licence": self.licence[:end],
            "permission": self.permission,
        }


_WORDS = ("name", "text", "spoken", "codec_digest", "clip_digest", "created", "licence", "model")
_ARRAYS = {"embedding": ("F32", 1), "codes": ("I16", 2), "recording": ("I16", 1)}  # type and dimensions


def unpack(data: bytes) -> Voice:
    """The voice in the bytes of a file. Raises ValueError: why they are none."""
    if len(data) > m.MAX_VOICE_BYTES:
        raise ValueError(f"over {m.MAX_VOICE_BYTES} bytes")
    tensors, about = tensor_file.unpack(data)
    keys = {"format", *_WORDS, "speaker", "permission", "digest"}
    if about.get("format") == NAMELESS and "model" not in about:
        about |= {"format": FORMAT, "model": ""}
    if about.get("format") != FORMAT or about.keys() != keys:
        raise ValueError("not a voice, or one of a newer miso")
    if tensors.keys() not in ({"codes"}, set(_ARRAYS)):
        raise ValueError(f"it holds {', '.join(tensors) or 'nothing'}")
    for name, (dtype, array) in tensors.items():
        if (dtype, array.ndim) != _ARRAYS[name]:
            raise ValueError(f"its {name} are not {_ARRAYS[name][0]} of {_ARRAYS[name][1]} dimensions")
    if not re.fullmatch("[0-9]{1,2}", about["speaker"], re.ASCII) or about["permission"] not in ("true", "false"):
        raise ValueError("its speaker or its permission is none")
    numbers = {"speaker": int(about["speaker"]), "permission": about["permission"] == "true"}
    arrays = {name: array for name, (_, array) in tensors.items()}
    voice = Voice(**arrays, **{name: about[name] for name in _WORDS}, **numbers)
    voice.check()
    datetime.fromisoformat(voice.created)
    if voice.digest != about["digest"]:
        raise ValueError("it is not as it was written")
    return voice


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


class Store:
    """<home>/voices. Every error is a ProtocolError: the client is told, and the daemon lives. `dropped` is told
    the digest of each voice that goes."""

    def __init__(self, directory: Path, prefixes: Path, dropped: Callable[[str], None]):
        self._directory, self._prefixes, self._dropped = directory, prefixes, dropped
        self._read: dict[str, tuple[Stamp, Voice]] = {}  # by name: what the file held, the one read last at the end
        self._rows: dict[str, tuple[Stamp, dict]] = {}  # the same for lists, of all that were read
        with suppress(OSError):  # who cannot write here can still speak
            for left in directory.glob(".*.partial"):
                left.unlink(missing_ok=True)  # of a daemon that was killed

    def names(self) -> list[str]:
        """Of the first MAX_VOICES files, in order. Where nobody can look, that is no empty list."""
        try:
            files = os.listdir(self._directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise ProtocolError("storage", f"the voices cannot be read: {self._directory}: {error.strerror}") from None
        found = (name.removesuffix(SUFFIX) for name in files if name.endswith(SUFFIX))
        return sorted(filter(m.is_name, found))[:MAX_VOICES]

    def read(self, name: str) -> Voice:
        path = self._path(name)
        try:
            seen = _stamp(path)
            before, voice = self._read.pop(name, (None, None))
            if before != seen:
                with path.open("rb") as file:
                    voice = unpack(file.read(m.MAX_VOICE_BYTES + 1))
                if voice.name != name:
                    raise ValueError(f"it calls itself {voice.name}: `misoctl voices import` takes a voice's file")
                self._rows[name] = seen, voice.about(cut=True)
            self._read[name] = seen, voice
            if len(self._read) > MAX_IN_MEMORY:
                del self._read[next(iter(self._read))]
        except FileNotFoundError:
            raise ProtocolError("no_voice", f"there is no voice {name}") from None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ProtocolError("bad_voice", f"the voice {name} cannot be used: {path}: {why}") from None
        return voice

    def check_room(self, name: str, replace: bool) -> None:
        """Raises ProtocolError where a voice of this name could not be written."""
        names = self.names()
        if not m.is_name(name):
            raise ProtocolError("bad_value", m.NAME_RULE)
        if name in names:
            if not replace:
                raise ProtocolError("voice_exists", f"there is a voice {name} already")
        elif len(names) >= MAX_VOICES:
            raise ProtocolError("storage", f"there are {MAX_VOICES} voices, and no room for more: forget one")

    def write(self, voice: Voice, replace: bool) -> None:
        """Whole or not at all, whenever we are killed."""
        self.check_room(voice.name, replace)
        try:
            voice.check()
        except ValueError as error:
            raise ProtocolError("bad_voice", f"the voice {voice.name} cannot be kept: {error}") from None
        path = self._path(voice.name)
        partial = path.with_name(f".{voice.name}.partial")
        with _refused(partial):
            self._drop_prefixes(voice.name, but=voice.digest)
            paths.make_directories(self._directory)
            try:
                partial.unlink(missing_ok=True)
                write_synced(partial, voice.pack())
                partial.rename(path)
            except OSError:
                with suppress(OSError):
                    partial.unlink()
                raise
            self._drop(voice.name)  # a file system's clock may not tell the two apart
            sync(self._directory)

    def forget(self, name: str) -> dict:
        """What it was, as in a list of all."""
        path = self._path(name)
        about = self._about(name)
        with _refused(path):
            self._drop_prefixes(name)
            try:
                path.unlink()
            except FileNotFoundError:
                raise ProtocolError("no_voice", f"there is no voice {name}") from None
            self._drop(name)
            sync(self._directory)
        return about

    def listing(self, name: str = "") -> list[dict]:
        """Of one voice, or of all; raises where that one cannot be used."""
        if name:
            return [self.read(name).about(cut=False)]
        return [self._about(each) for each in self.names()]

    def _about(self, name: str) -> dict:
        try:
            with suppress(OSError, ValueError):
                seen, row = self._rows.get(name, (None, None))
                if seen == _stamp(self._path(name)):
                    return row
            return self.read(name).about(cut=True)
        except ProtocolError as error:
            return {"name": name, "problem": error.message.encode(errors="replace").decode()[:400]}

    def _path(self, name: str) -> Path:
        """Raises where the name is none: nothing that a client sends becomes a path but through here."""
        if not m.is_name(name):
            raise ProtocolError("bad_value", m.NAME_RULE)
        return self._directory / (name + SUFFIX)

    def _drop(self, name: str) -> None:
        """What is known of its file."""
        self._read.pop(name, None)
        self._rows.pop(name, None)

    def _drop_prefixes(self, name: str, but: str = "") -> None:
        """What models have made of a voice that goes, unless that has the digest `but`."""
        try:
            digest = self.read(name).digest
        except ProtocolError:  # nobody could have made anything of it
            return
        if digest == but:
            return
        self._dropped(digest)
        for path in self._prefixes.glob(f"*-{digest[:16]}{SUFFIX}"):
            path.unlink(missing_ok=True)


def _stamp(path: Path) -> Stamp:
    """Of a file. Raises OSError, or ValueError where it is none."""
    info = path.stat()
    if not stat.S_ISREG(info.st_mode):
        raise ValueError("not a file")
    return info.st_mtime_ns, info.st_size


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """What the file system will not do is told to the client."""
    try:
        yield
    except OSError as error:
        raise ProtocolError("storage", f"{error.filename or path}: {error.strerror}") from None
    except errors.UnsafePath as error:
        raise ProtocolError("storage", error.message) from None
