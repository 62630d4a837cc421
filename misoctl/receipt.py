"""The receipt that --json prints: the daemon's `done`, and what the client alone knows. Enough to render it again."""

import json
import struct
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import cached_property

from protocol import codec, errors
from protocol import messages as m
from protocol.errors import Failure
from protocol.words import KITTENS

SHAPES_SOUND = (
    "seed",
    "speaker",
    "temperature",
    "min_temperature",
    "decay_frames",
    "top_k",
    "top_p",
    "min_p",
    "guidance",
    "depth",
)
ASKED = ("max_seconds", "normalize", "emoji", "level", "script", *KITTENS)  # not in `done`
MAX_RECEIPT_BYTES = 8 << 20


class Hashed:
    """A sink that also knows the sha256 of all samples that went through it, and has a file of each part written.

    `player`: the sink again, where it is one.
    """

    def __init__(self, sink, parts=(), player=None):
        self._sink, self._parts = sink, parts
        self.player = player

    def see(self, message: m.Piece | m.Pcm) -> None:
        """What is written from now on is of it."""
        for part in self._parts:
            part.see(message)

    def write(self, pcm: bytes, rate_hz: int) -> None:
        for sink in (self._sink, *self._parts):
            sink.write(pcm, rate_hz)
        self._sha256.update(pcm)

    def close(self, whole: bool) -> None:
        with ExitStack() as closing:  # each, whatever becomes of the others
            for sink in (*self._parts, self._sink):
                closing.callback(sink.close, whole)

    @cached_property
    def _sha256(self):
        import hashlib  # 3.5 ms, for which the first sound does not wait

        return hashlib.sha256()

    @property
    def sha256(self) -> str:
        return self._sha256.hexdigest()

    def played(self) -> dict:
        """What only the player knows; of a file, nothing."""
        player = self.player
        return {"underruns": player and player.underruns, "gap_s": player and round(player.gap_s, 3)}


def receipt(done: m.Done, text: str, options: dict, sink: Hashed) -> dict:
    """`options`: as asked for, on the wire's names."""
    asked = {"text": text} | {name: options.get(name) for name in (*ASKED, "quick_start")}
    numbers = struct.unpack(f"<{len(done.spans) // 4}I", done.spans[: len(done.spans) // 16 * 16])
    spans = [numbers[i : i + 4] for i in range(0, len(numbers), 4)]
    known = {"spans": spans, "sha256": sink.sha256} | sink.played()
    return asked | asdict(done) | known


def to_json(done: m.Done, text: str, options: dict, sink: Hashed) -> str:
    return json.dumps(receipt(done, text, options, sink), ensure_ascii=False)


@dataclass(frozen=True)
class Replay:
    """What a receipt asks for: `options` of say, and what must come of it."""

    text: str
    model: str
    digest: str
    sha256: str
    voice_digest: str = ""  # of options["voice"], where it has one
    options: dict = field(default_factory=dict)
    quick_digest: str | None = None  # of what spoke the first sentence, where that was another model


def read(path: str) -> Replay:
    """The receipt in `path`. Raises Failure."""
    try:
        with open(path, "rb") as file:
            given = json.loads(file.read(MAX_RECEIPT_BYTES))
    except OSError as error:
        raise Failure(errors.NO_INPUT, f"cannot read {path}: {error.strerror}") from None
    except (ValueError, RecursionError):
        given = None
    try:
        options = {name: given[name] for name in (*SHAPES_SOUND, *ASKED) if given[name] is not None}
        options |= {"voice": given["voice"]} if given["voice"] else {}
        if quick_digest := given.get("quick_digest") or None:  # else it was not, whatever was asked for
            options["quick_start"] = given["quick_start"]
        words = tuple(given[name] for name in ("text", "model", "digest", "sha256", "voice_digest"))
        replay = Replay(*words, options, quick_digest)
        codec.pack(m.Say(id=0, text=replay.text, model=replay.model, **replay.options))
        if not all(isinstance(word, str) for word in (*words, quick_digest or "")):
            raise TypeError
    except (TypeError, KeyError, errors.ProtocolError):
        cure = "give it what `misoctl say --json` printed"
        raise Failure(errors.BAD_DATA, f"{path} is no receipt", cure) from None
    if given["session"] or (replay.voice_digest and not given["voice"]):
        past = f"after the past of session {given['session']}" if given["session"] else "like a recording"
        raise Failure(errors.BAD_DATA, f"{path} was spoken {past}, which is not in it", "say it anew")
    return replay
