"""What a file of speech may be, by its name: WAV and bare samples by sink.py, the rest by encode.py."""

from functools import partial
from pathlib import Path

from misoctl import sink
from misoctl.options import FORMATS
from protocol import errors
from protocol.errors import Failure

PLAIN = ("wav", "raw")  # the others need encode.py, and libsndfile
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
    if kind in PLAIN:
        return sink.open_output(output, kind == "raw")
    from misoctl import encode

    encode.check(kind)
    file, stream = partial(encode.EncodedFile, kind=kind), partial(encode.EncodedStream, kind=kind)
    return sink.open_output(output, False, file, stream)


def new_file(path: Path, kind: str) -> sink.WavFile:
    """A file of a format that was checked."""
    if kind in PLAIN:
        return sink.WavFile(path, kind == "raw")
    from misoctl.encode import EncodedFile

    return EncodedFile(path, kind=kind)


def check(kind: str) -> None:
    """Raises Failure unless this machine can write the format."""
    if kind not in PLAIN:
        from misoctl import encode

        encode.check(kind)
