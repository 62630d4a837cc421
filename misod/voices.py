"""Voices: what they are, and the directory they are kept in. Loads neither zmq nor mlx.

A voice is a file, <name>.safetensors: its codes, and in the metadata the words and where both are from.
"""

import hashlib
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

FORMAT = "1"
SUFFIX = ".safetensors"
FRAME_HZ = 12.5  # of every codec that there is
MAX_FRAMES = 375  # 30 s
MAX_CODEBOOKS = 64
MAX_SPOKEN_BYTES = 24_000  # numbers grow when written out
MAX_VOICES = 500
CUT_CHARACTERS = 60  # of text and licence, in a list of all


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
class Voice:
    """codes (K, T) int16. `spoken`: the transcript as a model reads it. A one-off has no name."""

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

    @property
    def segment(self) -> Segment:
        return Segment(self.speaker, self.spoken, self.codes)

    @property
    def digest(self) -> str:
        """Of all that is heard of it: the same under another name."""
        return digests([self.segment])[0]

    def check(self) -> None:
        """Raises ValueError: what is wrong with it."""
        if not m.is_name(self.name):
            raise ValueError(m.NAME_RULE)
        K, T = self.codes.shape
        if K > MAX_CODEBOOKS or T > MAX_FRAMES:
            raise ValueError(f"codes of {K} codebooks and {T} frames: at most {MAX_CODEBOOKS} and {MAX_FRAMES}")
        if self.codes.min() < 0 or not self.codes.any(axis=0).all():
            raise ValueError("a frame of codes that no recording gives")
        sizes = (self.text, m.MAX_CLIP_TEXT_BYTES), (self.spoken, MAX_SPOKEN_BYTES), (self.licence, 1000)
        if any(len(text.encode()) > most for text, most in sizes):
            raise ValueError("its words are too long")
        if not all(re.fullmatch("[0-9a-f]{64}", digest) for digest in (self.codec_digest, self.clip_digest)):
            raise ValueError("a digest that is none")

    def pack(self) -> bytes:
        """The bytes of its file."""
        words = {name: getattr(self, name) for name in _WORDS}
        numbers = {"speaker": str(self.speaker), "permission": str(self.permission).lower()}
        about = {"format": FORMAT, **words, **numbers, "digest": self.digest}
        return tensor_file.pack("codes", "I16", self.codes, about)

    def about(self, cut: bool) -> dict:
        """For a listing."""
        end = CUT_CHARACTERS if cut else None
        return {
            "name": self.name,
            "text": self.text[:end],
            "speaker": self.speaker,
            "seconds": self.codes.shape[1] / FRAME_HZ,
            "created": self.created,
            "clip_digest": self.clip_digest,
            "codec_digest": self.codec_digest,
            "digest": self.digest,
            "licence": self.licence[:end],
            "permission": self.permission,
        }


_WORDS = ("name", "text", "spoken", "codec_digest", "clip_digest", "created", "licence")


def unpack(data: bytes) -> Voice:
    """The voice in the bytes of a file. Raises ValueError: why they are none."""
    if len(data) > m.MAX_VOICE_BYTES:
        raise ValueError(f"over {m.MAX_VOICE_BYTES} bytes")
    dtype, codes, about = tensor_file.unpack(data, "codes")
    keys = {"format", *_WORDS, "speaker", "permission", "digest"}
    if about.get("format") != FORMAT or about.keys() != keys:
        raise ValueError("not a voice, or one of a newer miso")
    if dtype != "I16" or codes.ndim != 2:
        raise ValueError("its codes are not int16 of (codebooks, frames)")
    if not re.fullmatch("[0-9]{1,2}", about["speaker"], re.ASCII) or about["permission"] not in ("true", "false"):
        raise ValueError("its speaker or its permission is none")
    numbers = {"speaker": int(about["speaker"]), "permission": about["permission"] == "true"}
    voice = Voice(codes=codes, **{name: about[name] for name in _WORDS}, **numbers)
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
        self._read: dict[str, tuple[tuple[int, int], Voice]] = {}  # by name: the file's time and size, what it held
        with suppress(OSError):  # who cannot write here can still speak
            for left in directory.glob(".*.partial"):
                left.unlink(missing_ok=True)  # of a daemon that was killed

    def names(self) -> list[str]:
        """Of the first MAX_VOICES files, in order."""
        found = (path.name.removesuffix(SUFFIX) for path in self._directory.glob(f"*{SUFFIX}"))
        return sorted(filter(m.is_name, found))[:MAX_VOICES]

    def read(self, name: str) -> Voice:
        path = self._path(name)
        try:
            info = path.stat()
            if not stat.S_ISREG(info.st_mode):
                raise ValueError("not a file")
            seen = info.st_mtime_ns, info.st_size
            if name not in self._read or self._read[name][0] != seen:
                with path.open("rb") as file:
                    voice = unpack(file.read(m.MAX_VOICE_BYTES + 1))
                if voice.name != name:
                    raise ValueError(f"it calls itself {voice.name}: `misoctl import` takes a voice's file")
                self._read[name] = seen, voice
        except FileNotFoundError:
            raise ProtocolError("no_voice", f"there is no voice {name}") from None
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise ProtocolError("bad_voice", f"the voice {name} cannot be used: {path}: {why}") from None
        return self._read[name][1]

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
            self._read.pop(voice.name, None)  # a file system's clock may not tell the two apart
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
            self._read.pop(name, None)
            sync(self._directory)
        return about

    def listing(self, name: str = "") -> list[dict]:
        """Of one voice, or of all; raises where that one cannot be used."""
        if name:
            return [self.read(name).about(cut=False)]
        return [self._about(each) for each in self.names()]

    def _about(self, name: str) -> dict:
        try:
            return self.read(name).about(cut=True)
        except ProtocolError as error:
            return {"name": name, "problem": error.message.encode(errors="replace").decode()[:400]}

    def _path(self, name: str) -> Path:
        """Raises where the name is none: nothing that a client sends becomes a path but through here."""
        if not m.is_name(name):
            raise ProtocolError("bad_value", m.NAME_RULE)
        return self._directory / (name + SUFFIX)

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


@contextmanager
def _refused(path: Path) -> Iterator[None]:
    """What the file system will not do is told to the client."""
    try:
        yield
    except OSError as error:
        raise ProtocolError("storage", f"{error.filename or path}: {error.strerror}") from None
    except errors.UnsafePath as error:
        raise ProtocolError("storage", error.message) from None
