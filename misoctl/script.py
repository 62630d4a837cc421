"""A script for several speakers, as people write it, to the form the wire takes."""

import os
import re
import tempfile
from dataclasses import dataclass
from pathlib import Path

from misoctl.sink import WavFile
from protocol import errors
from protocol import messages as m
from protocol.errors import Failure

_TURN = re.compile(r"\s*(?:\[(\d{1,2})\]|([^\W\d][\w .'-]{0,30}):)\s+(\S.*)")
MAX_SPEAKERS = 100


@dataclass(frozen=True)
class Script:
    """`text`: for the wire. `names`: who speaks each turn, as the script calls them."""

    text: str
    names: list[str]


def parse(text: str, name: str) -> Script:
    """Names get the speakers 0, 1, 2, ... that no number takes, as they come. Raises Failure naming the line."""
    lines, speakers, names = [], {}, []
    parsed = [_parsed(line, f"{name}:{number}") for number, line in enumerate(text.splitlines(), 1)]
    taken = {int(turn[0]) for turn in parsed if turn and turn[0].isdigit()}
    free = (number for number in range(MAX_SPEAKERS) if number not in taken)
    for turn in parsed:
        if turn is None:
            lines.append("")
        elif turn[1]:
            label, words = turn
            if label not in speakers:
                speakers[label] = int(label) if label.isdigit() else next(free, None)
            if speakers[label] is None:
                raise Failure(errors.BAD_DATA, f"{name} has more than {MAX_SPEAKERS} speakers", "split it")
            names.append(label)
            lines.append(f"[{speakers[label]}] {words}")
    if not names:
        raise Failure(errors.BAD_DATA, f"{name} has no line to speak", "write `[0] words` or `anna: words`")
    return Script("\n".join(lines), names)


def _parsed(line: str, where: str) -> tuple[str, str] | None:
    """(who, words); None: a blank line; ("", ""): a comment."""
    if not line.strip():
        return None
    if line.lstrip().startswith("#"):
        return "", ""
    turn = _TURN.fullmatch(line.rstrip())
    if not turn or not m.speakable(turn[3]):
        raise Failure(errors.BAD_DATA, f"{where}: no turn", "write `[0] words` or `anna: words`; # begins a comment")
    return turn[1] or turn[2].strip(), turn[3]


class Stems:
    """A WAV a turn, 01-anna.wav, in a directory that is made with the first, if need be.

    Raises Failure at once where no file could be made there; leaves nothing behind for it.
    """

    def __init__(self, directory: str, names: list[str]):
        self._directory, self._names = Path(directory).absolute(), names
        self._turn, self._wav = -1, None
        there = next(path for path in (self._directory, *self._directory.parents) if os.path.lexists(path))
        try:
            tempfile.TemporaryFile(dir=there).close()
        except OSError as error:
            message = f"cannot write to {directory}: {there}: {error.strerror}"
            raise Failure(errors.CANT_CREATE, message, "choose another --stems") from None

    def turn(self, number: int) -> None:
        """What is written from now on is of this turn."""
        if number == self._turn:
            return
        self.close(whole=True)
        label = re.sub(r"\W+", "-", self._names[number]).strip("-")
        self._directory.mkdir(parents=True, exist_ok=True)
        self._turn, self._wav = number, WavFile(self._directory / f"{number + 1:02}-{label}.wav")

    def write(self, pcm: bytes, rate_hz: int) -> None:
        self._wav.write(pcm, rate_hz)

    def close(self, whole: bool) -> None:
        if self._wav:
            self._wav.close(whole)
        self._wav = None
