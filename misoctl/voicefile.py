"""A recording to what a voice is learned from, decoded in a child that may crash, hang or want too much memory."""

import hashlib
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from protocol import errors
from protocol import messages as m
from protocol.errors import Failure

DECODE_S = 30.0  # half a second is usual
MAX_FILE_BYTES = 400_000_000  # 30 s of 8 channels of doubles at 192 kHz are 369 MB
CURE = "convert it with `ffmpeg -i CLIP clip.wav`"
AFCONVERT = ("afconvert", "-f", "WAVE", "-d", "LEI16")


@dataclass(frozen=True)
class Clip:
    pcm: bytes  # mono 24 kHz s16le, at most 30 s
    digest: str  # sha256 of the recording's own bytes
    warnings: list[str] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return len(self.pcm) / 2 / m.CLIP_HZ


def read_clip(path: str) -> Clip:
    """The recording in `path`; - is standard input. Raises Failure in one line that names it."""
    name = "standard input" if path == "-" else path
    try:
        with open(0 if path == "-" else path, "rb", closefd=path != "-") as given, _regular(given) as file:
            size = os.fstat(file.fileno()).st_size
            if not 0 < size <= MAX_FILE_BYTES:
                why = f"is over {MAX_FILE_BYTES / 1e6:.0f} MB, more than 30 s" if size else "is empty"
                raise Failure(errors.BAD_DATA, f"{name} {why}")
            answer, pcm = _decode(file, name)
            file.seek(0)
            digest = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise Failure(errors.NO_INPUT, f"cannot read {name}: {error.strerror}") from None
    if why := answer.get("refused"):
        raise Failure(errors.BAD_DATA, f"{name}: {why}")
    return Clip(pcm, digest, [f"{name}: {warning}" for warning in answer["warnings"]])


def _regular(given: BinaryIO) -> BinaryIO:
    """`given`, or what a pipe brings: decoders seek."""
    if stat.S_ISREG(os.fstat(given.fileno()).st_mode):
        return given
    file = tempfile.TemporaryFile()
    while file.tell() <= MAX_FILE_BYTES and (block := given.read(1 << 20)):
        file.write(block)
    file.flush()
    return file


def _decode(file: BinaryIO, name: str) -> tuple[dict, bytes]:
    """What the child says of `file`, and the samples."""
    head = os.pread(file.fileno(), 12, 0)
    adts = head[:1] == b"\xff" and head[1:2] and head[1] & 0xF6 == 0xF0
    if not adts and head[4:8] != b"ftyp":
        return _decode_in_child(file, name)
    if sys.platform != "darwin":
        raise Failure(errors.BAD_DATA, f"{name} is AAC or MP4 (.m4a), which is read on macOS only", CURE)
    with tempfile.TemporaryDirectory() as directory:
        source, target = Path(directory, "clip.aac" if adts else "clip.m4a"), Path(directory, "clip.wav")
        file.seek(0)
        with source.open("wb") as copy:
            shutil.copyfileobj(file, copy)
        _run(["sh", "-c", f'ulimit -f {MAX_FILE_BYTES // 512}; exec "$@"', "sh", *AFCONVERT, source, target], name)
        with target.open("rb") as converted:
            return _decode_in_child(converted, name)


def _decode_in_child(file: BinaryIO, name: str) -> tuple[dict, bytes]:
    os.lseek(file.fileno(), 0, os.SEEK_SET)  # which the child shares
    with tempfile.TemporaryFile() as answer:  # no pipe: the child's limit is on the size of files
        _run([sys.executable, "-P", "-m", "misoctl.recording"], name, stdin=file, stdout=answer)
        answer.seek(0)
        head, pcm = answer.readline(), answer.read(m.MAX_CLIP_BYTES)
    try:
        return json.loads(head), pcm
    except ValueError:  # it ended well and said nothing
        raise Failure(errors.BAD_DATA, f"{name}: its decoder failed", CURE) from None


def _run(command: list, name: str, **streams) -> None:
    """Raises Failure where the child ends otherwise than well, or not in time."""
    environ = os.environ | {"OPENBLAS_NUM_THREADS": "1"}  # each thread of it takes addresses, which are limited
    with tempfile.TemporaryFile() as said:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": said} | streams
        try:
            code = subprocess.run(command, env=environ, timeout=DECODE_S, check=False, **quiet).returncode
            why = f"its decoder ended with signal {-code}" if code < 0 else f"its decoder failed ({code})"
        except subprocess.TimeoutExpired:
            code, why = None, f"its decoder took over {DECODE_S:g} s"
        said.seek(0)
        lines = said.read(m.MAX_CLIP_BYTES).decode(errors="replace").split("\n")
    if code != 0:
        last = next((f": {line}" for line in reversed(lines) if line.isprintable() and line.strip()), "")
        raise Failure(errors.BAD_DATA, f"{name}: {why}{last}", CURE)
