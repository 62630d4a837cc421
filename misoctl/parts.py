"""A file of each part of a speech, in a directory beside or instead of the whole: a turn of a script, or a sentence."""

import os
import re
from pathlib import Path

from misoctl.formats import check, new_file
from protocol import errors
from protocol import messages as m
from protocol.errors import Failure


class Parts:
    """The directory is made with the first file. Raises Failure at once where no file could be made there, or none of
    this format; leaves nothing behind for it.
    """

    option = ""

    def __init__(self, directory: str, kind: str = "wav"):
        import tempfile  # 4 ms

        check(kind)
        self._directory, self._kind = Path(directory).absolute(), kind
        self._file = None
        there = next(path for path in (self._directory, *self._directory.parents) if os.path.lexists(path))
        try:
            tempfile.TemporaryFile(dir=there).close()
        except OSError as error:
            message = f"cannot write to {directory}: {there}: {error.strerror}"
            raise Failure(errors.CANT_CREATE, message, f"choose another {self.option}") from None

    def see(self, message: m.Piece | m.Pcm) -> None:
        """Before what is in it is written: a file may begin with it."""
        raise NotImplementedError

    def _begin(self, name: str) -> None:
        self.close(whole=True)
        self._directory.mkdir(parents=True, exist_ok=True)
        self._file = new_file(self._directory / f"{name}.{self._kind}", self._kind)

    def write(self, pcm: bytes, rate_hz: int) -> None:
        self._file.write(pcm, rate_hz)

    def close(self, whole: bool) -> None:
        if self._file:
            self._file.close(whole)
        self._file = None


class Stems(Parts):
    """A file a turn: 01-anna.wav."""

    option = "--stems"

    def __init__(self, directory: str, names: list[str], kind: str = "wav"):
        super().__init__(directory, kind)
        self._names, self._turn = names, -1

    def see(self, message: m.Piece | m.Pcm) -> None:
        if isinstance(message, m.Pcm) and message.turn != self._turn:
            self._turn = message.turn
            label = re.sub(r"\W+", "-", self._names[self._turn]).strip("-")
            self._begin(f"{self._turn + 1:02}-{label}")


class Sentences(Parts):
    """A file a sentence: 0001.wav; of several requests they are counted on."""

    option = "--split-sentences"

    def __init__(self, directory: str, kind: str = "wav"):
        super().__init__(directory, kind)
        self._count, self._sentence = 0, (-1, -1)

    def see(self, message: m.Piece | m.Pcm) -> None:
        if isinstance(message, m.Piece) and (message.id, message.sentence) != self._sentence:
            self._sentence = message.id, message.sentence
            self._count += 1
            self._begin(f"{self._count:04}")
