"""Every message on the wire, one frozen dataclass each, its limits beside each field.

README.md in this folder is the same in words; tests/unit/test_wire_spec.py holds the two together.
"""

import re
from dataclasses import MISSING, FrozenInstanceError, dataclass, field, fields
from typing import ClassVar

VERSION = (1, 2)

MAX_MESSAGE_BYTES = 2 << 20  # `learn` carries a clip
CLIP_HZ = 24_000  # of a clip, mono s16: clients convert
MAX_CLIP_BYTES = 30 * CLIP_HZ * 2  # 30 s = 1.44 MB
MIN_CLIP_BYTES = 3840  # 80 ms, a frame
MAX_CLIP_TEXT_BYTES = 6000  # what is said in it: 200 a second
MAX_VOICE_BYTES = 640 << 10  # a voice's file: of KittenTTS 2 10 s of its recording, 480,000 bytes, and words
MAX_LISTING_BYTES = 1 << 20
MAX_TEXT_BYTES = 60_000  # about 10,000 words, over an hour of speech
MAX_SPOKEN_BYTES = 1 << 20  # numbers grow several times when written out
MAX_SPANS_BYTES = 900_000
MAX_FRAME_BYTES = 64 << 10
# 3.2 s of speech the daemon may send ahead of the last ack. Linux takes 44 such messages into a Unix socket's buffer:
# one more, and no heartbeat gets past them, so that a stopped client would not be noticed.
WINDOW_FRAMES = 40
ACK_FRAMES = 16  # the client acknowledges at least this often
UINT32 = 2**32 - 1


def speakable(text: str) -> bool:
    """Whether there is a letter or a digit in it: without one there is nothing to say, and `say` is refused."""
    return any(c.isalnum() for c in text)


def is_name(text: str) -> bool:
    """Whether it may be a voice's or a session's name: a slug, so that no file system takes it for another."""
    return re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,63}", text, re.ASCII) is not None


NAME_RULE = "a name is 1 to 64 of a-z, 0-9, '.', '_' and '-', and begins with a letter or a digit"


@dataclass(frozen=True)
class Limit:
    """What one field may hold. `low`..`high`: value of a number, UTF-8 or raw bytes of a str or bin.

    `since`: the minor version that brought it, where that was a later one than its message's: it is not sent where it
    is nil, for an older side would refuse the message.
    """

    kind: str  # int, float, str, bin, bool
    low: float = 0
    high: float = 0
    optional: bool = False
    since: int = 0

    def __str__(self) -> str:
        span = {"bool": "", "int": f" {self.low}..{self.high}", "float": f" {self.low:g}..{self.high:g}"}
        text = self.kind + span.get(self.kind, f" {self.low}..{self.high} bytes")
        return (
            text + (" or nil" if self.optional else "") + (f", since {VERSION[0]}.{self.since}" if self.since else "")
        )


def _int(low: int, high: int, optional: bool = False):
    return _field(Limit("int", low, high, optional))


def _float(low: float, high: float, optional: bool = False):
    return _field(Limit("float", low, high, optional))


def _str(low: int, high: int, optional: bool = False, default: str | None = None, since: int = 0):
    return _field(Limit("str", low, high, optional or since > 0, since), default)


def _bin(low: int, high: int, default: bytes | None = None):
    return _field(Limit("bin", low, high), default)


def _bool(optional: bool = False, since: int = 0):
    return _field(Limit("bool", optional=optional or since > 0, since=since))


def _field(limit: Limit, default=None):
    """A default is the sender's; on the wire every key is there, but see Limit.since."""
    optional = limit.optional or default is not None
    return field(metadata={"limit": limit}, **({"default": default} if optional else {}))


class Message:
    """Base of all: `t` is the type on the wire, `id` names the request it belongs to. Fields by name, frozen."""

    t: ClassVar[str]

    def __init__(self, **values):
        known = self.__dataclass_fields__
        given = {name: values.pop(name, known[name].default) for name in self.limits()}
        if wrong := [*values, *(name for name, value in given.items() if value is MISSING)]:
            raise TypeError(f"{type(self).__name__}: {', '.join(wrong)} unknown or missing")
        vars(self).update(given)

    def __setattr__(self, name: str, value):
        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def __delattr__(self, name: str):
        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def __eq__(self, other) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *vars(self).values()))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{name}={value!r}' for name, value in vars(self).items())})"

    @classmethod
    def limits(cls) -> dict[str, Limit]:
        return {f.name: f.metadata["limit"] for f in fields(cls)}


# Message has the methods: written out anew for each class, as dataclass does, they took 20 ms of every start
message = dataclass(init=False, repr=False, eq=False)


def _id():
    return _int(0, UINT32)


# ---- client to daemon


@message
class Hello(Message):
    t: ClassVar[str] = "hello"
    id: int = _id()
    major: int = _int(0, 999)
    minor: int = _int(0, 999)


@message
class Say(Message):
    t: ClassVar[str] = "say"
    id: int = _id()
    text: str = _str(1, MAX_TEXT_BYTES)
    speaker: int | None = _int(0, 99, optional=True)
    voice: str | None = _str(1, 64, optional=True)
    session: str | None = _str(1, 64, optional=True)
    clip: bytes = _bin(0, MAX_CLIP_BYTES, b"")
    clip_text: str = _str(0, MAX_CLIP_TEXT_BYTES, default="")
    seed: int | None = _int(0, UINT32, optional=True)
    preset: str | None = _str(1, 32, optional=True)
    temperature: float | None = _float(0, 2, optional=True)
    min_temperature: float | None = _float(0, 2, optional=True)
    decay_frames: int | None = _int(1, 10_000, optional=True)
    top_k: int | None = _int(1, 4096, optional=True)
    top_p: float | None = _float(0.01, 1, optional=True)
    min_p: float | None = _float(0, 1, optional=True)
    guidance: float | None = _float(0, 10, optional=True)
    depth: int | None = _int(1, 32, optional=True)
    max_seconds: float | None = _float(0.08, 7200, optional=True)
    normalize: bool | None = _bool(optional=True)
    emoji: str | None = _str(1, 16, optional=True)
    level: bool | None = _bool(optional=True)
    script: bool | None = _bool(optional=True)
    repetition_penalty: float | None = _float(1, 5, optional=True)  # from here to decoder: KITTENS
    repetition_window: int | None = _int(0, 4096, optional=True)
    run_penalty: float | None = _float(0, 10, optional=True)
    run_grace: int | None = _int(1, 1000, optional=True)
    use_emotion: bool | None = _bool(optional=True)
    use_reference: bool | None = _bool(optional=True)
    chunk_chars: int | None = _int(150, 2000, optional=True)
    chunk_min_chars: int | None = _int(0, 150, optional=True)
    gap_s: float | None = _float(0, 5, optional=True)
    decoder: str | None = _str(1, 32, optional=True)
    pieces: bool | None = _bool(optional=True)
    model: str | None = _str(1, 64, optional=True)
    keep_alive_s: float | None = _float(0.1, 1e8, optional=True)
    quick_start: str | None = _str(0, 64, since=2)


@message
class Cancel(Message):
    t: ClassVar[str] = "cancel"
    id: int = _id()


@message
class Ack(Message):
    t: ClassVar[str] = "ack"
    id: int = _id()
    seq: int = _int(0, UINT32)


@message
class Load(Message):
    t: ClassVar[str] = "load"
    id: int = _id()
    model: str | None = _str(1, 64, optional=True)
    keep_alive_s: float | None = _float(0.1, 1e8, optional=True)
    quick_start: bool | None = _bool(since=2)


@message
class Unload(Message):
    t: ClassVar[str] = "unload"
    id: int = _id()


@message
class Learn(Message):
    """A voice from a recording and its words. `clip`: mono s16le at CLIP_HZ."""

    t: ClassVar[str] = "learn"
    id: int = _id()
    name: str = _str(1, 64)
    clip: bytes = _bin(MIN_CLIP_BYTES, MAX_CLIP_BYTES)
    text: str = _str(0, MAX_CLIP_TEXT_BYTES)
    speaker: int = _int(0, 99)
    clip_digest: str = _str(64, 64)
    permission: bool = _bool()
    licence: str = _str(0, 1000)
    replace: bool = _bool()
    model: str | None = _str(1, 64, optional=True)


@message
class VoicesRequest(Message):
    t: ClassVar[str] = "voices"
    id: int = _id()
    name: str = _str(0, 64)
    model: str = _str(0, 256, default="")


@message
class Forget(Message):
    t: ClassVar[str] = "forget"
    id: int = _id()
    name: str = _str(1, 64)


@message
class Export(Message):
    t: ClassVar[str] = "export"
    id: int = _id()
    name: str = _str(1, 64)


@message
class Import(Message):
    t: ClassVar[str] = "import"
    id: int = _id()
    name: str = _str(0, 64)
    data: bytes = _bin(1, MAX_VOICE_BYTES)
    replace: bool = _bool()


@message
class SessionsRequest(Message):
    t: ClassVar[str] = "sessions"
    id: int = _id()


@message
class ForgetSession(Message):
    t: ClassVar[str] = "forget_session"
    id: int = _id()
    name: str = _str(0, 64)


@message
class AskFloor(Message):
    """To be heard: who plays asks before it does, and leaves once its player is silent."""

    t: ClassVar[str] = "floor"
    id: int = _id()
    when: str = _str(1, 16)
    priority: int = _int(0, 2)
    app: str = _str(0, 64)
    text_digest: str = _str(0, 64)
    resume: bool = _bool()


@message
class Hold(Message):
    t: ClassVar[str] = "hold"
    id: int = _id()
    seconds: float = _float(0, 7200)


@message
class Leave(Message):
    t: ClassVar[str] = "leave"
    id: int = _id()
    again: bool = _bool()


@message
class Hush(Message):
    t: ClassVar[str] = "hush"
    id: int = _id()


@message
class SpeakersRequest(Message):
    t: ClassVar[str] = "speakers"
    id: int = _id()


@message
class StatusRequest(Message):
    t: ClassVar[str] = "status"
    id: int = _id()
    quick_start: bool | None = _bool(since=2)


@message
class Drain(Message):
    t: ClassVar[str] = "drain"
    id: int = _id()


# ---- daemon to client


@message
class Welcome(Message):
    t: ClassVar[str] = "welcome"
    id: int = _id()
    major: int = _int(0, 999)
    minor: int = _int(0, 999)
    version: str = _str(1, 64)
    pid: int = _int(1, UINT32)
    state: str = _str(1, 32)  # as in Status


@message
class Accepted(Message):
    t: ClassVar[str] = "accepted"
    id: int = _id()
    seed: int = _int(0, UINT32)
    rtf: float | None = _float(0, 1e9, optional=True)


@message
class Progress(Message):
    """Why nothing is heard yet: `loading` the model, `queued` behind others, `parked` without credit, or
    the `floor` is another's."""

    t: ClassVar[str] = "progress"
    id: int = _id()
    state: str = _str(1, 32)


@message
class Piece(Message):
    """What the pcm after it says, up to the next of these. `number` counts from 0."""

    t: ClassVar[str] = "piece"
    id: int = _id()
    number: int = _int(0, UINT32)
    sentence: int = _int(0, UINT32)
    spoken: str = _str(0, MAX_SPOKEN_BYTES)
    spans: bytes = _bin(0, MAX_SPANS_BYTES)


@message
class Pcm(Message):
    """One frame of speech, mono signed 16-bit little-endian. `seq` counts from 0 without a gap."""

    t: ClassVar[str] = "pcm"
    id: int = _id()
    seq: int = _int(0, UINT32)
    rate: int = _int(8000, 192000)
    turn: int = _int(0, UINT32)
    data: bytes = _bin(2, MAX_FRAME_BYTES)


@message
class Done(Message):
    """The receipt. Nothing follows it for this id."""

    t: ClassVar[str] = "done"
    id: int = _id()
    end: str = _str(1, 32)  # eos, cap, cancelled, drained
    frames: int = _int(0, UINT32)
    samples: int = _int(0, UINT32)
    seconds: float = _float(0, 1e6)
    rate: int = _int(8000, 192000)
    seed: int = _int(0, UINT32)
    speaker: int = _int(0, 99)
    voice: str = _str(0, 64)
    voice_digest: str = _str(0, 64)
    session: str = _str(0, 64)
    temperature: float | None = _float(0, 2, optional=True)  # nil: it never came to speak
    min_temperature: float | None = _float(0, 2, optional=True)
    decay_frames: int | None = _int(1, 10_000, optional=True)
    top_k: int | None = _int(1, 4096, optional=True)
    top_p: float | None = _float(0.01, 1, optional=True)
    min_p: float | None = _float(0, 1, optional=True)
    guidance: float | None = _float(0, 10, optional=True)
    depth: int | None = _int(1, 32, optional=True)
    dropped: int = _int(0, UINT32)
    mended: str = _str(0, 4096)
    engine: str = _str(1, 64)
    model: str = _str(1, 256)
    digest: str = _str(1, 128)
    ttfa_ms: float | None = _float(0, 1e9, optional=True)
    rtf: float | None = _float(0, 1e9, optional=True)
    spoken: str = _str(0, MAX_SPOKEN_BYTES)
    spans: bytes = _bin(0, MAX_SPANS_BYTES)
    unread: int = _int(0, UINT32)
    lufs: float | None = _float(-200, 50, optional=True)
    gain_db: float | None = _float(-100, 100, optional=True)
    clipped: int = _int(0, UINT32)
    nonfinite: int = _int(0, UINT32)
    quick_digest: str | None = _str(1, 128, since=2)
    not_quick: str | None = _str(1, 1024, since=2)


@message
class Error(Message):
    """Nothing follows it for this id. `id` is nil where the offending message could not be read."""

    t: ClassVar[str] = "error"
    id: int | None = _int(0, UINT32, optional=True)
    code: str = _str(1, 32)
    message: str = _str(1, 4096)


@message
class Voices(Message):
    """`listing`: JSON, for the wire takes no lists."""

    t: ClassVar[str] = "voices"
    id: int = _id()
    listing: str = _str(2, MAX_LISTING_BYTES)


@message
class VoiceFile(Message):
    t: ClassVar[str] = "voice_file"
    id: int = _id()
    name: str = _str(1, 64)
    data: bytes = _bin(1, MAX_VOICE_BYTES)


@message
class Sessions(Message):
    """`listing`: JSON."""

    t: ClassVar[str] = "sessions"
    id: int = _id()
    listing: str = _str(2, MAX_LISTING_BYTES)


@message
class Floor(Message):
    """What became of a request for the floor: `yours`, or why it is not, or no longer."""

    t: ClassVar[str] = "floor"
    id: int = _id()
    state: str = _str(1, 32)  # yours, dropped, same, cut, paused, hushed, late


@message
class Speakers(Message):
    """`listing`: JSON."""

    t: ClassVar[str] = "speakers"
    id: int = _id()
    listing: str = _str(2, MAX_LISTING_BYTES)


@message
class Status(Message):
    t: ClassVar[str] = "status"
    id: int = _id()
    state: str = _str(1, 32)  # loading, ready, idle (weights freed), failed, draining
    detail: str = _str(0, 4096)  # why, where state is failed
    version: str = _str(1, 64)
    pid: int = _int(1, UINT32)
    uptime_s: float = _float(0, 1e10)
    engine: str = _str(0, 64)
    model: str = _str(0, 256)
    digest: str = _str(0, 128)
    backend: str = _str(0, 64)
    sample_rate: int = _int(0, 192000)
    load_s: float = _float(0, 1e6)
    keep_alive_s: float = _float(0, 1e9)
    queued: int = _int(0, UINT32)
    speaking: int = _int(0, UINT32)
    parked: int = _int(0, UINT32)
    max_rows: int = _int(0, 1024)
    requests: int = _int(0, UINT32)
    frames: int = _int(0, 2**53)
    spoken_s: float = _float(0, 1e12)
    drain_s: float = _float(0, 3600)
    active_bytes: int = _int(0, 2**53)
    cache_bytes: int = _int(0, 2**53)
    peak_bytes: int = _int(0, 2**53)
    rss_bytes: int = _int(0, 2**53)
    voices: int = _int(0, UINT32)
    sessions: int = _int(0, UINT32)
    prefix_bytes: int = _int(0, 2**53)
    prefix_limit_bytes: int = _int(0, 2**53)
    prefix_hits: int = _int(0, UINT32)
    prefix_misses: int = _int(0, UINT32)
    prefix_evictions: int = _int(0, UINT32)
    socket: str = _str(1, 4096)
    log: str = _str(0, 4096)
    quick_digest: str | None = _str(1, 128, since=2)


_FROM_CLIENT = [Hello, Say, Cancel, Ack, Load, Unload, Learn, VoicesRequest, Forget, Export, Import]
_FROM_CLIENT += [SessionsRequest, ForgetSession, AskFloor, Hold, Leave, Hush, SpeakersRequest, StatusRequest, Drain]
FROM_CLIENT = {m.t: m for m in _FROM_CLIENT}
_FROM_DAEMON = [Welcome, Accepted, Progress, Piece, Pcm, Done, Error, Voices, VoiceFile, Sessions, Floor]
_FROM_DAEMON += [Speakers, Status]
FROM_DAEMON = {m.t: m for m in _FROM_DAEMON}
