"""--events: a JSON object a line on standard output, as things happen. docs/say.md is the schema."""

import json
import sys

from misoctl.receipt import Hashed, receipt
from misoctl.sink import send
from misoctl.timeline import Piece, Word
from misoctl.watch import Face
from protocol import errors
from protocol import messages as m
from protocol.errors import Failure


class Events(Face):
    def __init__(self):
        if sys.stdout is None:
            raise Failure(errors.CANT_CREATE, "standard output is closed", "pipe it, or name a file")
        self._begun: tuple[str, dict, Hashed] | None = None
        self._requests: dict[int, tuple[str, dict, Hashed]] = {}
        self._wait = ""
        self._has_floor = False
        self._goes_on_at: int | None = None  # it was paused before this character

    def begins(self, text: str, options: dict, sink: Hashed) -> None:
        self._begun = text, options, sink

    def emit(self, event: str, **fields) -> None:
        """Raises Failure where nobody reads."""
        send(sys.stdout, "standard output", json.dumps({"event": event} | fields, ensure_ascii=False) + "\n")

    def sees(self, message: m.Message) -> None:
        if isinstance(message, m.Accepted):
            self._requests[message.id] = self._begun
            self.emit("accepted", request=message.id, seed=message.seed)
        elif isinstance(message, m.Progress) and message.state not in ("parked", self._wait):
            self.emit("waiting", state=message.state)
        elif isinstance(message, m.Floor) and message.state == "yours":
            self._has_floor = True
            goes_on = {"source_start": self._goes_on_at} if self._goes_on_at is not None else {}
            self.emit("floor", state="resumed" if goes_on else "yours", **goes_on)
        self._wait = message.state if isinstance(message, m.Progress) else ""

    def lost(self, why: str, skipped: int) -> None:
        if self._has_floor:  # else it only waited: how that ended, the last event tells
            self.emit("floor", state=why)
        self._has_floor, self._goes_on_at = False, skipped if why == "paused" else None

    def gap(self, at_s: float, gap_s: float | None) -> None:
        self.emit("underrun", at_s=round(at_s, 3), gap_s=gap_s if gap_s is None else round(gap_s, 3))

    def piece(self, piece: Piece) -> None:
        numbers = {"number": piece.number, "sentence": piece.sentence}
        spans = [(a, b, c + piece.skipped, d + piece.skipped) for a, b, c, d in piece.spans]
        self.emit("piece", **numbers, at_s=round(piece.start_s, 3), spoken=piece.spoken, spans=spans)

    def word(self, word: Word) -> None:
        a, b = word.spoken
        source = word.source and [at + word.piece.skipped for at in word.source]
        where = {"piece": word.piece.number, "spoken": word.spoken, "source": source}
        self.emit("word", word=word.piece.spoken[a:b], **where)

    def ended(self, done: m.Done) -> None:
        self.emit("done", **receipt(done, *self._requests.pop(done.id)))

    def failed(self, failure: Failure) -> None:
        self.emit("error", exit_code=failure.exit_code, message=str(failure))
