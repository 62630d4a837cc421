"""What a file of speech may be, by its name: WAV and bare samples by sink.py, the rest by libsndfile as frames come.

soundfile is imported where such a file is opened, before anything is spoken.
"""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from misoctl import sink
from misoctl.encode import ENCODED, Tail
from misoctl.options import FORMATS
from protocol import errors
from protocol.errors import Failure

HELD = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # the last is the floor's: see Watch there
SUFFIXES = {f".{name}": name for name in FORMATS} | {".wave": "wav", ".oga": "ogg", ".pcm": "raw"}


def format_of(output: str) -> str:
    """By the name's ending; WAV where it has none. Raises Failure of one that no format has."""
    suffix = Path(output).suffix
    if suffix.lower() in SUFFIXES:
        return SUFFIXES[suffix.lower()]
    if suffix in ("", ".") or output == "-":
        return "wav"
    known = ", ".join(f".{name}" for name in FORMATS)
    message = f"-o {output}: {suffix} is no format that miso writes; it has {known}"
    raise Failure(errors.USAGE, message, "or say which with --format")


def open_output(output: str, kind: str) -> sink.WavFile | sink.Stream:
    """`output` is a path, or - for standard output. Raises Failure before anything is spoken."""
    if kind not in ENCODED:
        return sink.open_output(output, kind == "raw")
    check(kind)
    return sink.open_output(output, False, partial(EncodedFile, kind=kind), partial(EncodedStream, kind=kind))


def new_file(path: Path, kind: str) -> sink.WavFile:
    """A file of a format that was checked."""
    return EncodedFile(path, kind=kind) if kind in ENCODED else sink.WavFile(path, kind == "raw")


def check(kind: str) -> None:
    """Raises Failure unless this machine can write the format."""
    if kind not in ENCODED:
        return
    try:
        import soundfile
    except (ImportError, OSError) as error:
        raise Failure(
            errors.NO_PROGRAM, f"cannot write {kind}: {error}", "`pip install soundfile`, or use WAV"
        ) from None
    if not soundfile.check_format(*ENCODED[kind]):
        version = soundfile.__libsndfile_version__
        raise Failure(errors.NO_PROGRAM, f"libsndfile {version} writes no {kind}", "use another --format")


class Encoder:
    """s16 samples into a file's descriptor, or into a Tail. Raises OSError.

    No signal comes in between: raised in what C called it would be lost, and a freed handle be closed again.
    """

    def __init__(self, out: "int | Tail", kind: str, rate_hz: int, **how):
        import soundfile

        self._error = soundfile.SoundFileError
        container, subtype = ENCODED[kind]
        with self._undisturbed():
            self._sound = soundfile.SoundFile(out, "w", rate_hz, 1, subtype, format=container, closefd=False, **how)

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
        self._kind, self._tail, self._encoder = kind, Tail(), None

    def write(self, pcm: bytes, rate_hz: int) -> None:
        if self._encoder is None:
            # of a constant rate: a reader tells the length from the size, where the head cannot say it
            how = {"bitrate_mode": "CONSTANT", "compression_level": 0.5} if self._kind == "mp3" else {}
            self._encoder = Encoder(self._tail, self._kind, rate_hz, **how)
        self._encoder.write(pcm)
        self._send(self._tail.take())

    def close(self, whole: bool) -> None:
        encoder, self._encoder = self._encoder, None
        try:
            if encoder:
                encoder.close()
                if whole:
                    self._send(self._tail.take())
        finally:
            super().close(whole)
