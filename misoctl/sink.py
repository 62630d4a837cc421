"""Where PCM goes: a file, standard output, a player. Each takes s16le bytes and is closed once.

close(whole=False) is for every way out but success: a file keeps the speech so far, with true sizes.
"""

import os
import stat
import struct
import sys
from pathlib import Path
from typing import BinaryIO, TextIO

from protocol import errors
from protocol.errors import Failure
from protocol.exits import forget

UNKNOWN = 0xFFFFFFFF  # sizes in the header of a stream that cannot seek
HEADER_BYTES = 44


def wav_header(rate_hz: int, data_bytes: int | None) -> bytes:
    """44 bytes of a mono 16-bit WAV; data_bytes None: not known yet."""
    riff = UNKNOWN if data_bytes is None else data_bytes + HEADER_BYTES - 8
    data = UNKNOWN if data_bytes is None else data_bytes
    fmt = struct.pack("<4sIHHIIHH", b"fmt ", 16, 1, 1, rate_hz, rate_hz * 2, 2, 16)
    return struct.pack("<4sI4s", b"RIFF", riff, b"WAVE") + fmt + struct.pack("<4sI", b"data", data)


class WavFile:
    """Written beside `path` under a temporary name, sizes patched, then renamed: never half a file at `path`.

    `raw`: without a header.
    """

    def __init__(self, path: Path, raw: bool = False):
        import tempfile  # 4 ms, which a pipe need not wait for

        self.path, self._raw = path, raw
        try:
            self._target = path.resolve()  # written through a link, as by any program
            if path.is_dir():
                raise IsADirectoryError(0, "is a directory")
            if self._target.exists() and not os.access(self._target, os.W_OK):
                raise PermissionError(0, "it is write-protected")
            handle, name = tempfile.mkstemp(prefix=".miso-", suffix=".part", dir=self._target.parent)
        except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
            raise Failure(
                errors.CANT_CREATE, f"cannot write {path}: {getattr(error, 'strerror', error)}", "choose another place"
            ) from None
        self._temporary = Path(name)
        self._file = os.fdopen(handle, "wb")
        self._data_bytes = 0
        self._rate_hz = 0
        self._over = False  # renamed, or discarded

    def write(self, pcm: bytes, rate_hz: int) -> None:
        try:
            if not self._rate_hz:
                self._begin(rate_hz)
            self._rate_hz = rate_hz
            self._put(pcm)
            self._file.flush()
        except OSError as error:
            self._discard()
            raise Failure(errors.IO_ERROR, f"writing {self.path}: {error.strerror}", "free some space") from None
        self._data_bytes += len(pcm)

    def _begin(self, rate_hz: int) -> None:
        if not self._raw:
            self._file.write(wav_header(rate_hz, None))

    def _put(self, pcm: bytes) -> None:
        self._file.write(pcm)

    def _finish(self) -> None:
        """May be called again, where a signal cut it short."""
        if not self._raw:
            self._file.seek(0)
            self._file.write(wav_header(self._rate_hz, self._data_bytes))

    def close(self, whole: bool) -> None:
        """May be called again, where a signal cut it short."""
        if self._over:
            return
        if not self._data_bytes:
            self._discard()
            return
        try:
            if not self._file.closed:
                self._finish()
                self._file.flush()
                os.fsync(self._file.fileno())
                self._file.close()
            self._temporary.chmod(0o666 & ~_umask())  # mkstemp's 0600 is not what a new file of the user's has
            self._temporary.replace(self._target)
            self._over = True
        except OSError as error:
            self._discard()
            raise Failure(errors.IO_ERROR, f"writing {self.path}: {error.strerror}", "free some space") from None

    def _discard(self) -> None:
        self._over = True
        try:
            self._file.close()
        except OSError:  # what was buffered cannot be written: that is why we are here
            pass
        self._temporary.unlink(missing_ok=True)


class Stream:
    """Standard output, or a path that is not a regular file: a header with unknown sizes, or none (raw)."""

    def __init__(self, out: BinaryIO, name: str, raw: bool):
        self._out, self._name, self._raw = out, name, raw
        self._started = False

    def write(self, pcm: bytes, rate_hz: int) -> None:
        header = b"" if self._started or self._raw else wav_header(rate_hz, None)
        self._started = True
        self._send(header + pcm)

    def _send(self, data: bytes) -> None:
        send(self._out, self._name, data)

    def close(self, whole: bool) -> None:
        self._out.close()  # nothing is left in it; a reader of a named pipe waits for this


def send(out: BinaryIO | TextIO, name: str, data: bytes | str) -> None:
    """Raises Failure where it takes no more."""
    try:
        out.write(data)
        out.flush()
    except BrokenPipeError:
        forget(out)
        raise Failure(errors.BROKEN_PIPE, "") from None
    except OSError as error:
        forget(out)
        raise Failure(errors.IO_ERROR, f"writing to {name}: {error.strerror}") from None


def open_output(output: str, raw: bool, in_file: type = WavFile, in_stream: type = Stream) -> WavFile | Stream:
    """`output` is a path, or - for standard output. Raises Failure before anything is spoken."""
    if output == "-":
        if sys.stdout is None:
            raise Failure(errors.CANT_CREATE, "standard output is closed", "pipe it, or name a file")
        if sys.stdout.isatty():
            raise Failure(errors.USAGE, "standard output is a terminal", "pipe it, or name a file")
        # not sys.stdout.buffer: under PYTHONUNBUFFERED that may write less than it was given
        return in_stream(open(sys.stdout.fileno(), "wb", closefd=False), "standard output", raw)
    path = Path(output)
    try:
        special = path.exists() and not stat.S_ISREG(path.stat().st_mode) and not path.is_dir()
        if special:  # a named pipe or a device cannot be renamed over
            return in_stream(path.open("wb"), output, raw)
    except OSError as error:
        raise Failure(errors.CANT_CREATE, f"cannot write {output}: {error.strerror}", "choose another place") from None
    return in_file(path, raw)


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
