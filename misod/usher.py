"""The floor as the I/O thread sees it: what clients ask of misod.floor, and what it answers, as messages."""

import json
import time
from collections.abc import Callable

from misod.floor import Floor, Told, Turn
from protocol import messages as m
from protocol.errors import ProtocolError
from protocol.words import PRIORITIES, WHENS

# From a client's end to the look at who is there: the monitor hears of it a moment before the ROUTER does.
LOOK_S = 0.02

Send = Callable[[bytes, m.Message], None]


class Usher:
    """`send` may find that a peer is gone, and then calls `gone`. Each refusal is a ProtocolError."""

    def __init__(self, same_s: float, max_requests: int, send: Send):
        self._floor = Floor(same_s)
        self._max_requests, self._send = max_requests, send
        self._look_due_s: float | None = None

    def handle(self, peer: bytes, message: m.Message) -> None:
        """One of ASKED."""
        ASKED[type(message)](self, peer, message)

    def gone(self, peer: bytes, request: int | None = None) -> None:
        """The peer, or only that request of it, has ended. None: all it has."""
        keys = [turn.key for turn, _ in self._floor.states() if turn.key[0] == peer]
        self._tell(self._floor.gone([key for key in keys if request in (None, key[1])], time.monotonic()))

    def somebody_left(self) -> None:
        """A connection ended: whose, the send that fails tells."""
        if self._look_due_s is None and self._floor.states():
            self._look_due_s = time.monotonic() + LOOK_S

    def next_deadline_s(self) -> float | None:
        times = [s for s in (self._look_due_s, self._floor.next_deadline_s()) if s is not None]
        return min(times, default=None)

    def watch(self, now_s: float) -> None:
        if self._look_due_s is not None and now_s >= self._look_due_s:
            self._look_due_s = None
            self._look()
        self._tell(self._floor.tick(now_s))

    def _look(self) -> None:
        """Say to each what it is: to one that is gone that fails, and then others may be something else."""
        for key in [turn.key for turn, _ in self._floor.states()]:
            state = next((state for turn, state in self._floor.states() if turn.key == key), "stops")
            if state != "stops":
                self._tell([(key, "floor" if state == "waits" else "yours")])

    def drain(self) -> None:
        """Who waits is sent away; who plays has its speech, and plays on."""
        waiting = [turn.key for turn, state in self._floor.states() if state == "waits"]
        self._floor.gone(waiting, time.monotonic())
        for peer, request in waiting:
            self._send(peer, m.Error(id=request, code="draining", message="misod is shutting down"))

    def _on_floor(self, peer: bytes, asked: m.AskFloor) -> None:
        if asked.when not in WHENS:
            raise ProtocolError("bad_value", f"floor.when is one of {', '.join(WHENS)}", asked.id)
        states = self._floor.states()
        if any(turn.key == (peer, asked.id) for turn, _ in states):
            raise ProtocolError("duplicate", "this id was in use: both requests are stopped", asked.id)
        if len(states) >= self._max_requests:
            raise ProtocolError("busy", f"{len(states)} requests wait to be heard already", asked.id)
        now_s = time.monotonic()
        wish = {name: getattr(asked, name) for name in ("when", "priority", "app", "text_digest", "resume")}
        self._tell(self._floor.ask(Turn((peer, asked.id), now_s, **wish), now_s))

    def _on_hold(self, peer: bytes, hold: m.Hold) -> None:
        self._floor.hold((peer, hold.id), hold.seconds, time.monotonic())

    def _on_leave(self, peer: bytes, leave: m.Leave) -> None:
        self._tell(self._floor.leave((peer, leave.id), leave.again, time.monotonic()))

    def _on_hush(self, peer: bytes, hush: m.Hush) -> None:
        listing = self._listing()
        self._tell(self._floor.hush(time.monotonic()))
        self._send(peer, m.Speakers(id=hush.id, listing=listing))

    def _on_speakers(self, peer: bytes, asked: m.SpeakersRequest) -> None:
        self._send(peer, m.Speakers(id=asked.id, listing=self._listing()))

    def _listing(self) -> str:
        now_s = time.monotonic()
        rows = [_row(turn, state, now_s) for turn, state in self._floor.states()]
        while len(listing := json.dumps(rows, ensure_ascii=False).encode()) > m.MAX_LISTING_BYTES:
            rows = rows[: len(rows) // 2]
        return listing.decode()

    def _tell(self, told: Told) -> None:
        for (peer, request), word in told:
            kind = m.Progress if word == "floor" else m.Floor
            self._send(peer, kind(id=request, state=word))


def _row(turn: Turn, state: str, now_s: float) -> dict:
    known = {"state": state, "app": turn.app, "when": turn.when, "priority": PRIORITIES[turn.priority]}
    return known | {"seconds": round(now_s - turn.asked_s, 3)}


ASKED = {
    m.AskFloor: Usher._on_floor,
    m.Hold: Usher._on_hold,
    m.Leave: Usher._on_leave,
    m.Hush: Usher._on_hush,
    m.SpeakersRequest: Usher._on_speakers,
}
