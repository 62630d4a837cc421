"""Speech by libsndfile: files, streams and what HTTP sends, all with the same settings.

Imported where such a format is asked for, and soundfile with it, before anything is spoken.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from misoctl import sink
from protocol import errors
from protocol.errors import Failure

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # the last is the floor's: see Watch there
PAGE_MS = 80.0  # of a stream of Ogg, a frame: libsndfile would gather a second
SET_OGG_PAGE_LATENCY_MS = 0x1302  # of libsndfile's sndfile.h; soundfile has no name for it
ENCODED = {  # libsndfile's names of container and codec
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
}
SETTINGS = {"mp3": {"compression_level": 0.4}}  # 96 kbit/s where the rate is constant, about 50 where it is not
STREAMED = {"mp3": {"bitrate_mode": "CONSTANT"}}  # of a stream with a varying rate no player knows the length


def check(kind: str) -> None:
    """Raises Failure unless this machine can write the format."""
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise Failure(
            errors.NO_PROGRAM, f"cannot write {kind}: {error}", "`pip install soundfile`, or use WAV"
        ) from None
    if not soundfile.check_format(*ENCODED[kind]):
        version = soundfile.__libsndfile_version__
        raise Failure(errors.NO_PROGRAM, f"libsndfile {version} writes no {kind}", "use another --format")


def encoder(name: str, rate_hz: int) -> "Plain | Encoded":
    """Mono s16le to one of ENCODED, wav or pcm, a piece at a time."""
    if name in ENCODED:
        return Encoded(name, rate_hz)
    return Plain(sink.wav_header(rate_hz, None) if name == "wav" else b"")


class Plain:
    """The samples, after a header."""

    def __init__(self, header: bytes):
        self._header = header

    def feed(self, pcm: bytes) -> bytes:
        header, self._header = self._header, b""
        return header + pcm

    def finish(self) -> bytes:
        return b""


class Encoded:
    """What was given out is never changed, so it may go down a pipe: headers hold the lengths of a stream without end.

    Raises OSError.
    """

    def __init__(self, kind: str, rate_hz: int):
        self._tail = Tail()
        self._encoder = Encoder(self._tail, kind, rate_hz)

    def feed(self, pcm: bytes) -> bytes:
        self._encoder.write(pcm)
        return self._tail.take()

    def finish(self) -> bytes:
        """The last of it."""
        self._encoder.close()
        return self._tail.take()


class Encoder:
    """s16 samples into a file's descriptor, or into a Tail. Raises OSError.

    No signal comes in between: raised in what C called it would be lost, and a freed handle be closed again.
    """

    def __init__(self, out: "int | Tail", kind: str, rate_hz: int):
        import soundfile

        self._error = soundfile.SoundFileError
        container, codec = ENCODED[kind]
        streams = isinstance(out, Tail)
        how = SETTINGS.get(kind, {}) | (STREAMED.get(kind, {}) if streams else {})
        with self._undisturbed():
            self._sound = soundfile.SoundFile(out, "w", rate_hz, 1, codec, format=container, closefd=False, **how)
            if streams and container == "OGG":
                latency = soundfile._ffi.new("double *", PAGE_MS)
                soundfile._snd.sf_command(self._sound._file, SET_OGG_PAGE_LATENCY_MS, latency, 8)

    def write(self, pcm: bytes) -> None:
        with self._undisturbed():
            self._sound.buffer_write(pcm, "int16")

    def close(self) -> None:
        """May be called again."""
        with self._undisturbed():
            self._sound.close()

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        try:
            with _signals_held():
                yield
        except self._error as error:  # it keeps no errno
            raise OSError(0, str(error).rstrip(".")) from None


@contextmanager
def _signals_held() -> Iterator[None]:
    """What comes meanwhile comes after. Not by a mask: numpy's threads, which have none, would take it."""
    if threading.current_thread() is not threading.main_thread():  # no handler runs in it
        yield
        return
    came: set[int] = set()
    before = {number: signal.getsignal(number) for number in HELD}
    before = {number: handler for number, handler in before.items() if callable(handler)}
    for number in before:
        signal.signal(number, lambda number, _frame: came.add(number))
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in (number for number in before if number in came):  # the first that raises counts
            before[number](number, None)


class Tail:
    """A file as libsndfile needs it, of which only what was not taken yet is kept.

    At the end it goes back to write lengths into its header: into one that was taken they are dropped.
    """

    def __init__(self):
        self._kept = bytearray()
        self._taken = self._at = 0  # offsets in the whole file

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._taken + len(self._kept))[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, data: bytes) -> int:
        late = max(0, self._taken - self._at)
        start = self._at + late - self._taken
        self._kept[start : start + len(data[late:])] = data[late:]
        self._at += len(data)
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._kept)
        self._taken += len(data)
        self._kept.clear()
        return data


class EncodedFile(sink.WavFile):
    """As WavFile, in another format."""

    def __init__(self, path: Path, raw: bool = False, *, kind: str):
        super().__init__(path, raw)
        self._kind, self._encoder = kind, None

    def _begin(self, rate_hz: int) -> None:
        self._encoder = Encoder(self._file.fileno(), self._kind, rate_hz)

    def _put(self, pcm: bytes) -> None:
        self._encoder.write(pcm)

    def _finish(self) -> None:
        self._encoder.close()

    def _discard(self) -> None:
        try:
            if self._encoder:
                self._encoder.close()
        except OSError:  # the disk is still full
            pass
        super()._discard()


class EncodedStream(sink.Stream):
    """As Stream. Lengths in the head stay unknown, as in any stream."""

    def __init__(self, *arguments, kind: str):
        super().__init__(*arguments)
        self._kind, self._encoded = kind, None

    def write(self, pcm: bytes, rate_hz: int) -> None:
        self._encoded = self._encoded or Encoded(self._kind, rate_hz)
        self._send(self._encoded.feed(pcm))

    def close(self, whole: bool) -> None:
        encoded, self._encoded = self._encoded, None
        try:
            if encoded:
                last = encoded.finish()
                if whole:
                    self._send(last)
        finally:
            super().close(whole)
