"""Who may be heard now. Pure: knows no socket and no clock; time comes as an argument.

A request waits, then has the floor, or plays beside it. One that is told to stop has it still, until its client says
that its player is silent: so two are never heard at once but by `overlap`.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field

HOLD_S = 10.0  # a holder that says no word for so long loses the floor; it may ask for more
STOP_S = 1.0  # a player that was to stop and says nothing is taken for dead

Key = tuple[bytes, int]  # the client's routing id, its request id
Told = list[tuple[Key, str]]  # what is to be said to whom, in order


@dataclass
class Turn:
    """One request to be heard. `priority`: the higher goes first. `resume`: whom it interrupts goes on after it.

    The same `app` and `text_digest`: one of them is enough. Empty: it is like no other.
    """

    key: Key
    asked_s: float
    when: str = "queue"
    priority: int = 1
    app: str = ""
    text_digest: str = ""
    resume: bool = False
    urgent: bool = False  # it has interrupted somebody: nobody goes before it
    serial: int = field(default_factory=itertools.count().__next__)

    @property
    def rank(self) -> tuple[bool, int, int]:
        """The least goes first."""
        return not self.urgent, -self.priority, self.serial

    @property
    def text(self) -> tuple[str, str] | None:
        return (self.app, self.text_digest) if self.app and self.text_digest else None


class Floor:
    """`same_s`: how long after a text was heard the same one, of the same app, is not said again."""

    def __init__(self, same_s: float):
        self._same_s = same_s
        self._waiting: list[Turn] = []
        self._beside: dict[Key, Turn] = {}
        self._holder: Turn | None = None
        self._stopping = ""  # what the holder was told, once it was
        self._until_s = 0.0  # the holder's
        self._heard: dict[tuple[str, str], float] = {}  # until when it is not said again

    def ask(self, turn: Turn, now_s: float) -> Told:
        """Exactly one word to it: `floor` (it waits), `yours`, `dropped` or `same`; and perhaps one to the holder."""
        if self._is_said(turn, now_s):
            return [(turn.key, "same")]
        if turn.when == "overlap":
            self._beside[turn.key] = turn
            return [(turn.key, "yours")]
        if self._holder is None:  # then nobody waits
            return self._give(turn, now_s)
        if turn.when == "drop" and any(other.priority >= turn.priority for other in (self._holder, *self._waiting)):
            return [(turn.key, "dropped")]
        self._waiting.append(turn)
        told = [(turn.key, "floor")]
        if turn.when == "interrupt" and self._holder.priority <= turn.priority:
            turn.urgent = True
            told += self._stop("paused" if turn.resume else "cut", now_s)
        return told

    def hold(self, key: Key, seconds: float, now_s: float) -> None:
        """The holder needs so much more; one that was told to stop gets no more."""
        if self._holder and self._holder.key == key and not self._stopping:
            self._until_s = now_s + seconds

    def leave(self, key: Key, again: bool, now_s: float) -> Told:
        """Its player is silent. `again`: it was interrupted and waits to go on, in its old place."""
        if turn := self._beside.pop(key, None):
            self._was_heard(turn, now_s)
            return []
        if self._holder is None or self._holder.key != key:
            return self.gone([key], now_s)
        if not self._stopping:
            self._was_heard(self._holder, now_s)
        elif again and self._stopping in ("cut", "paused"):
            self._holder.urgent = False
            self._waiting.append(self._holder)
            return [(key, "floor"), *self._pass_on(now_s)]
        elif again:  # it does not know yet that it shall not
            return [(key, self._stopping), *self._pass_on(now_s)]
        return self._pass_on(now_s)

    def gone(self, keys: Iterable[Key], now_s: float) -> Told:
        """Their clients are dead, or want nothing any more."""
        keys = set(keys)
        self._waiting = [turn for turn in self._waiting if turn.key not in keys]
        for key in keys & self._beside.keys():
            del self._beside[key]
        return self._pass_on(now_s) if self._holder and self._holder.key in keys else []

    def hush(self, now_s: float) -> Told:
        """Silence: who plays stops, who waits is sent away."""
        told = [(turn.key, "hushed") for turn in (*self._beside.values(), *self._waiting)]
        self._waiting, self._beside = [], {}
        return (self._stop("hushed", now_s) if self._holder else []) + told

    def tick(self, now_s: float) -> Told:
        """A holder past its time is told to stop; past that, too, it is taken for dead."""
        if self._holder is None or now_s < self._until_s:
            return []
        return self._pass_on(now_s) if self._stopping else self._stop("late", now_s)

    def next_deadline_s(self) -> float | None:
        return self._until_s if self._holder else None

    def states(self) -> list[tuple[Turn, str]]:
        """Who has the floor (`speaks`, `stops`), plays `beside` it, `waits`: in this order, and that of their turns."""
        holder = [(self._holder, "stops" if self._stopping else "speaks")] if self._holder else []
        beside = [(turn, "beside") for turn in self._beside.values()]
        return holder + beside + [(turn, "waits") for turn in sorted(self._waiting, key=lambda turn: turn.rank)]

    def _is_said(self, turn: Turn, now_s: float) -> bool:
        """Whether the same was heard, is heard, or waits and is no less urgent."""
        if turn.text is None:
            return False
        playing = [other for other, state in self.states() if state in ("speaks", "beside")]
        waiting = [w for w in self._waiting if w.priority >= turn.priority and (w.urgent or turn.when != "interrupt")]
        return self._was_said(turn, now_s) or any(other.text == turn.text for other in (*playing, *waiting))

    def _was_said(self, turn: Turn, now_s: float) -> bool:
        return turn.text is not None and self._heard.get(turn.text, 0.0) > now_s

    def _was_heard(self, turn: Turn, now_s: float) -> None:
        self._heard = {text: until_s for text, until_s in self._heard.items() if until_s > now_s}
        if turn.text:
            self._heard[turn.text] = now_s + self._same_s

    def _give(self, turn: Turn, now_s: float) -> Told:
        self._holder, self._stopping, self._until_s = turn, "", now_s + HOLD_S
        return [(turn.key, "yours")]

    def _stop(self, why: str, now_s: float) -> Told:
        """Told once: a second reason finds it stopping. Hushed, it shall not come again, whatever the first was."""
        if self._stopping:
            self._stopping = why if why == "hushed" else self._stopping
            return []
        self._stopping, self._until_s = why, now_s + STOP_S
        return [(self._holder.key, why)]

    def _pass_on(self, now_s: float) -> Told:
        """To the next in line whose text was not said meanwhile."""
        told: Told = []
        self._holder = None
        while self._holder is None and self._waiting:
            turn = min(self._waiting, key=lambda turn: turn.rank)
            self._waiting.remove(turn)
            told += [(turn.key, "same")] if self._was_said(turn, now_s) else self._give(turn, now_s)
        return told
