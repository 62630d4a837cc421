"""What the I/O thread and the worker tell each other: orders one way, events the other. Plain objects, no mlx."""

from dataclasses import dataclass

from misod.engine import Heard, Info, Say
from misod.scheduler import Job, Key

# ---- orders, from the I/O thread


@dataclass(frozen=True)
class Submit:
    """`say` None: only have the model, or learn the clip. `model`: "" is whichever is loaded, else the default; None:
    free it. `clip`: s16 at the codec's rate, to be heard first; `speaker`: the number of the voice that is learned.
    `quick`: have what starts quickly, too.
    """

    key: Key
    say: Say | None
    model: str | None = ""
    keep_alive_s: float | None = None
    clip: bytes = b""
    clip_text: str = ""
    speaker: int = 0
    quick: bool = False


@dataclass(frozen=True)
class Credit:
    key: Key
    frames: int


@dataclass(frozen=True)
class Cancel:
    key: Key
    end: str  # cancelled, or drained


@dataclass(frozen=True)
class Keep:
    """The voice with this digest was learned."""

    digest: str


@dataclass(frozen=True)
class Forget:
    """What the engine keeps of the voice, or of the dialogue, with this digest."""

    digest: str


# ---- events, to the I/O thread


@dataclass(frozen=True)
class Loading:
    pass


@dataclass(frozen=True)
class Ready:
    info: Info
    sample_rate: int
    max_rows: int
    load_s: float


NOTHING = Ready(Info("none", "none", "none", "none"), 24_000, 1, 0.0)  # in the receipt of what was cancelled before


@dataclass(frozen=True)
class Unloaded:
    """`why` is empty where keep_alive ran out, else what kept the model from loading."""

    why: str = ""


@dataclass(frozen=True)
class Admitted:
    """It has a row: its prompt is read next."""

    key: Key


@dataclass(frozen=True)
class Piece:
    """`spans`: of its own text, and of say.text."""

    number: int
    sentence: int
    spoken: str
    spans: list[tuple[int, int, int, int]]


@dataclass(frozen=True)
class Frame:
    """`begins`: the piece whose first frame it is."""

    key: Key
    pcm: bytes
    turn: int = 0
    begins: Piece | None = None


@dataclass(frozen=True)
class Finished:
    key: Key
    job: Job  # no longer touched by this thread
    end: str


@dataclass(frozen=True)
class Changed:
    """The model that a `load` or an `unload` asked for is there, or gone."""

    key: Key


@dataclass(frozen=True)
class Learned:
    key: Key
    heard: Heard


@dataclass(frozen=True)
class Failed:
    key: Key
    code: str
    message: str


@dataclass(frozen=True)
class Crashed:
    message: str
