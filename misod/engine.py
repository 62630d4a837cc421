"""What the daemon asks of a speech model. Two engines, two ifs: no registry."""

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np

from misod.dialogues import Dialogue
from misod.style import Style
from misod.voices import Heard, Segment, Voice
from misod.weights.models import BUNDLED, bundled, default_name, mend
from protocol.words import PULLABLE

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # of a model: no path


@dataclass(frozen=True)
class Say:
    """One request as an engine sees it; every choice is made."""

    text: str
    seed: int
    speaker: int = 0
    preset: str | None = None  # None: natural
    sampling: dict[str, float] = field(default_factory=dict)  # fields of misod.style.Style in place of the preset's
    options: dict[str, float | str] = field(default_factory=dict)  # what one engine alone takes: misod.options
    max_seconds: float | None = None
    normalize: bool = True  # False: the text is read as it is written
    emoji: str = ""  # drop or name; "": drop
    script: bool = False  # a turn a line, `[speaker] words`: `speaker` is not looked at
    level: bool = True  # False: as loud as the model makes it
    voice: Voice | None = None
    own_voice: str = ""  # the name of one of the model's own
    dialogue: Dialogue | None = None  # to follow, and to be kept for
    quick: str | None = None  # the voice of KittenTTS 2 that says the first sentence, "" its default; None: none does


@dataclass
class Row:
    """One request's place in the batch. Engines extend it; the daemon reads these fields for the receipt."""

    say: Say
    style: Style
    spoken: list[str] = field(default_factory=list)  # the pieces of text read so far, as the model read them
    sentences: list[int] = field(default_factory=list)  # of each piece, which it belongs to; none: each is its own
    spans: list[tuple[int, int, int, int]] = field(default_factory=list)  # of " ".join(spoken), and of say.text
    unread: int = 0  # letters and digits of the text that the model has none for
    pause_s: float = 0.0  # to wait after the piece that is spoken now
    usual_lufs: float | None = None  # how loud this voice is
    voice_digest: str = ""  # of the voice it speaks as
    said: list[Segment] = field(default_factory=list)  # each piece that was spoken to its end, for a dialogue
    dropped: int = 0  # pieces that no longer fitted into the context of those after them
    kept: str = ""  # digest of what an engine has kept of its dialogue, for what is said next
    mended: list[str] = field(default_factory=list)  # what went wrong and was drawn anew: "silence at frame 31"
    due: Callable[[], None] | None = None  # to be called before its next step, at its own risk
    quick_digest: str = ""  # of the weights that said the first sentence, where they are not the model's
    not_quick: str = ""  # why they are, where others were asked for

    def spans_of(self, piece: int) -> list[tuple[int, int, int, int]]:
        """Those of one piece, and of its own text."""
        shift = sum(len(text) + 1 for text in self.spoken[:piece])
        first = bisect_left(self.spans, shift, key=lambda span: span[0])
        last = bisect_left(self.spans, shift + len(self.spoken[piece]), key=lambda span: span[0])
        return [(start - shift, end - shift, *source) for start, end, *source in self.spans[first:last]]


@dataclass(frozen=True)
class Chunk:
    """What one step made for one row: mono float32 pcm (n,), and `end` (eos or cap) once nothing follows."""

    pcm: np.ndarray
    end: str | None = None
    turn: int = 0  # of a script, from 0
    piece: int = 0  # whose sound it is: of Row.spoken
    seam: bool = False  # another voice goes on after it, as loud as Row.usual_lufs says now


@dataclass(frozen=True)
class Fault:
    """In a Chunk's place: this row cannot go on. The other rows can. `code` is of protocol.errors."""

    message: str
    code: str = "engine"


@dataclass(frozen=True)
class Info:
    """What an engine is, for status and receipts."""

    engine: str
    model: str
    digest: str
    backend: str
    codec: str = ""  # its digest: voices are of one codec
    voices: Mapping[str, int] = field(default_factory=dict)  # its own by name, in lower case -> the speaker's number
    quick_digest: str = ""  # of the weights that are loaded beside it, to say first sentences


@dataclass(frozen=True)
class Memory:
    active_bytes: int = 0
    cache_bytes: int = 0
    peak_bytes: int = 0
    prefix_bytes: int = 0  # what the model has read of voices and dialogues, kept for the next request
    prefix_hits: int = 0
    prefix_misses: int = 0
    prefix_evictions: int = 0
    graphs: int = 0  # made of compiled frames, where frames are compiled
    graphs_s: float = 0.0  # of time, in all


@dataclass(frozen=True)
class PrefixRoom:
    """Where, and in how many bytes, an engine keeps what it has read of voices. No directory: in memory only."""

    limit_bytes: int = 1 << 30
    directory: Path | None = None
    disk_limit_bytes: int = 4 << 30


class RowFault(Exception):
    """This request cannot be spoken; the message says why. The engine and its other rows are untouched.

    `code` is of protocol.errors: the text is at fault (unspeakable), or another choice of the request (bad_value).
    """

    def __init__(self, message: str, code: str = "unspeakable"):
        super().__init__(message)
        self.code = code


def check_codec(voice: Voice, info: Info) -> None:
    """Raises RowFault where the voice is of another codec than the model's: nothing in it means anything there."""
    if voice.codec_digest != info.codec:
        by = f"{voice.model} (--model {voice.model} says it)" if voice.model else "another model"
        raise RowFault(f"{_named(voice)} was learned with {by}: {info.model} has another codec", "bad_voice")


def no_sound(voice: Voice, info: Info) -> RowFault:
    return RowFault(f"{_named(voice)} holds what {info.model} has no sound for", "bad_voice")


def _named(voice: Voice) -> str:
    return f"the voice {voice.name}" if voice.name else "the clip"


class ModelError(Exception):
    """The model cannot be opened: the message names the file, what is wrong and what to do.

    `code` is of protocol.errors: no such model is here (no_model), it is not as it must be (model), or what it needs
    beside itself is not installed (no_extra).
    """

    def __init__(self, message: str, code: str = "model"):
        super().__init__(message)
        self.code = code


class Engine(Protocol):
    """Lives on the worker thread from open to release. Nothing else may touch it."""

    info: Info
    sample_rate: int
    frame_samples: int
    max_rows: int

    def hear(self, pcm: np.ndarray, words: str, speaker: int) -> Generator[None, None, Heard]:
        """Encode pcm (n,) float32, and read it and what is said in it, a small piece a step. Raises RowFault."""

    def prefill(self, say: Say) -> Row:
        """Read the prompt and be ready to step. Raises RowFault."""

    def step(self, rows: list[Row]) -> list[Chunk | Fault]:
        """One frame for every row, in the order given."""

    def release(self, row: Row) -> None:
        """The row leaves; what it held is free for the next."""

    def keep(self, digest: str) -> None:
        """What has been read of the voice is to be there after a restart, too."""

    def forget(self, digest: str) -> None:
        """Free what is kept of the voice, or of the dialogue."""

    def prepare(self) -> bool:
        """With nothing else to do, make a little of what a step may need; False: all of it is there."""

    def memory(self) -> Memory: ...

    def close(self) -> None:
        """Give the memory back."""


@dataclass(frozen=True)
class Models:
    """How the worker comes by an engine. The first two raise ModelError."""

    find: Callable[[str], Path]  # the directory of a model's name; of "", the default's
    open: Callable[[Path], Engine]
    room_bytes: Callable[[], int]  # memory that another may take


def returned(steps: Generator[object, None, T]) -> T:
    """What they come to, all at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def model_directory(model: str, models_dir: Path) -> Path:
    """Where `model` is; "auto" is the best one present. Raises ModelError where there is none of that name."""
    model = default_name(model, models_dir)
    if model == BUNDLED:
        return bundled()
    directory = models_dir / model
    if not NAME.fullmatch(model) or not directory.is_dir():
        where = f"`misoctl pull {model}` gets it" if model in PULLABLE else f"{BUNDLED} is bundled"
        raise ModelError(f"no model named {model!r}: {where}, others live in {models_dir}", "no_model")
    return directory


def find_model(name: str, models_dir: Path) -> Path:
    """The same, once what a pull left half done is mended. Where nobody can look, that is a ModelError, too."""
    try:
        mend(models_dir)
        return model_directory(name, models_dir)
    except OSError as error:
        raise ModelError(f"{error.filename}: {error.strerror}") from None


def open_engine(directory: Path, max_rows: int, prefixes: PrefixRoom | None = None) -> Engine:
    """The engine with the model in `directory` loaded and warm. Raises ModelError. Imports mlx on this thread."""
    config = _config(directory)
    if _of_kitten(config):
        from misod.kitten.engine import KittenEngine

        return KittenEngine.open(directory.name, directory, max_rows, config=config)
    from misod.miso.engine import MisoEngine

    return MisoEngine.open(directory.name, directory, max_rows, prefixes)


def is_kitten(directory: Path) -> bool:
    return _of_kitten(_config(directory))


def _of_kitten(config: dict) -> bool:
    return config.get("type") == "KITTEN2"


def _config(directory: Path) -> dict:
    """What config.json holds; what is wrong with one is for the engine to say."""
    try:
        return dict(json.loads((directory / "config.json").read_bytes()))
    except (OSError, ValueError, TypeError):
        return {}
