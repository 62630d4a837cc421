"""Who may be heard: the floor that misod orders. The options of the verbs that play, and what they do with them."""

import json
import os
import signal
import struct
import threading
import time
from collections.abc import Callable
from functools import wraps
from types import FrameType

import click

from misoctl.options import short_name
from misoctl.talk import hush, tell
from protocol import errors
from protocol.errors import Failure
from protocol.words import PRIORITIES, WHENS

HOLD_S = 10.0  # the floor is asked for, for so long from now,
RENEW_S = 3.0  # so often,
SLACK_S = 10.0  # until so long after the speech should have been heard
AGAIN_S = 0.01  # a signal that came where no Cut may be raised is sent again

UNHEARD = {"dropped": "dropped: somebody else speaks", "same": "dropped: the same was said just now"}  # both are exit 0
CUT_SHORT = {  # others are called what they are
    "cut": "interrupted",
    "paused": "interrupted",
    "lost": "it was stopped for too long",
    "late": "its player did not end in time",
}


def floor_options(verb: Callable) -> Callable:
    """--when, --priority, --app and --resume; the verb is given them as `wish`, for Floor."""

    @wraps(verb)
    def with_wish(*arguments, when, priority, app, resume, **given):
        return verb(*arguments, wish={"when": when, "priority": priority, "app": app, "resume": resume}, **given)

    for option in (
        click.option("--resume", is_flag=True, help="What is interrupted, this or by this, goes on after it."),
        click.option(
            "--app", metavar="NAME", callback=short_name, help="Who says it: NAME's same text is not said twice."
        ),
        click.option("--priority", type=click.Choice(PRIORITIES), help="Who goes first, and may interrupt whom."),
        click.option("--when", type=click.Choice(WHENS), help="Where another speaks: wait (queue), or what else."),
    ):
        with_wish = option(with_wish)
    return with_wish


def _noted(message):
    """One that waits for its turn is accepted: nobody waits for it."""
    from misoctl import detached

    if message.t == "progress":
        detached.accepted()
    return message


class Cut(BaseException):
    """The floor is lost: raised wherever we are, so that every sink and request is closed on the way out."""

    def __init__(self, why: str):
        super().__init__(why)
        self.why = why


class Floor:
    """While `rest` is not empty: `with` it around all that plays, `take` the floor, say `rest`, tell it what `came`.

    Leaving the block gives the floor back, and swallows a Cut; then `rest` is what is to be said again, if anything.
    `plays` False: there is nothing to take, unless the wish says when. `resumes` False: what was cut is not said again.
    """

    def __init__(self, wish: dict, plays: bool, text: str, script: bool = False, resumes: bool = True):
        self._resumes = resumes
        self.rest, self._whole, self._script = text, text, script
        self._wish = {"when": None, "priority": None, "app": None, "resume": False} | wish
        self._takes = plays or self._wish["when"] is not None
        if not self._takes and any(wish.values()):
            raise click.UsageError("--priority, --app and --resume are for what is played: with -o, give --when, too")
        self.end = ""  # why it was not heard, or not to its end
        self.lost = ""  # the same in misod's words; paused: it goes on
        self._client = None
        self._id = 0
        self._watch: Watch | None = None
        self._heard = Heard()

    @property
    def wants_pieces(self) -> bool:
        """To go on with the sentence that was cut, it must be known."""
        return self._takes and self._resumes

    def __enter__(self) -> "Floor":
        return self

    def take(self, client, connect: Callable, talk: Callable[[str], None], sink, over: Callable = iter) -> str:
        """Wait for it; returns what is to be said. Raises Cut where it is not to be had, or Failure.

        `connect`: the floor has a connection of its own, for another thread. `over`: looks at what misod answers.
        """
        self._heard = Heard(sink.player.ahead_s if sink.player else lambda: 0.0)
        if not self._takes or not client.knows_floor:
            return self.rest
        from misoctl.speech import telling

        if self._client is None:
            self._client = connect()
            self._id = self._client.ask_floor(**self._on_wire())
        *_, answer = map(_noted, telling(over(self._client.floor_comes(self._id)), talk))
        if answer.state != "yours":
            raise Cut(answer.state)
        self._watch = Watch(self._client, self._id)
        return self.rest

    def came(self, message) -> None:
        """What misod sent of the speech. After the last of it the floor is needed for as long as that lasts."""
        if self._watch:
            self._heard.came(message)
            self._watch.until_s = self._heard.ends_s

    def __exit__(self, _kind, reason: BaseException | None, _traceback) -> bool:
        watch, self._watch = self._watch, None
        if watch:
            watch.stop()
        cut = reason.why if isinstance(reason, Cut) else ""
        goes_on = self._resumes and (cut == "paused" or (cut == "cut" and self._wish["resume"]))
        self.rest = self._heard.left(self.rest, self._script) if goes_on else ""
        if self._client:
            self._client.leave_floor(self._id, again=bool(self.rest))
            if not self.rest:
                self._client.close()
        self.lost = "paused" if self.rest else cut
        self.end = "" if self.rest else CUT_SHORT.get(cut, cut)
        return bool(cut)

    @property
    def skipped(self) -> int:
        """Characters before `rest`, which ends as the text does."""
        return len(self._whole) - len(self.rest)

    def report(self, talk: Callable[[str], None], data: str = "") -> None:
        """Of what was not heard, or not to its end. Raises Failure where it was begun; of it --events has their own."""
        said = {"text": self._whole, "end": self.end}
        if data == "--events" and self.end in UNHEARD:
            said = {"event": "done"} | said
        if data == "--json" or "event" in said:
            click.echo(json.dumps(said, ensure_ascii=False))
        if self.end not in UNHEARD:
            raise Failure(errors.FAILED, f"the speech ended early ({self.end})")
        talk(UNHEARD[self.end])

    def _on_wire(self) -> dict:
        from hashlib import sha256

        named = {"app": self._wish["app"] or "", "text_digest": sha256(self._whole.encode()).hexdigest()}
        priority = PRIORITIES.index(self._wish["priority"] or "normal")
        return named | {"when": self._wish["when"] or "queue", "priority": priority, "resume": self._wish["resume"]}


class Heard:
    """How far the speech is heard. `ahead_s`: how much of what came is still to be."""

    def __init__(self, ahead_s: Callable[[], float] = lambda: 0.0):
        self._ahead_s = ahead_s
        self._samples = self._rate_hz = 0
        self._sentences: list[tuple[int, int]] = []  # (samples before it, where it begins in the text)
        self._number = -1
        self.ends_s: float | None = None  # when all that there is should have been heard; None: more is to come

    def came(self, message) -> None:
        from protocol import messages as m

        if isinstance(message, m.Piece) and message.sentence != self._number and message.spans:
            self._number = message.sentence
            self._sentences.append((self._samples, struct.unpack_from("<4I", message.spans)[2]))
        elif isinstance(message, m.Pcm):
            self._samples, self._rate_hz = self._samples + len(message.data) // 2, message.rate
        elif isinstance(message, m.Done):
            self.ends_s = time.monotonic() + self._ahead_s()

    def left(self, text: str, script: bool) -> str:
        """From the beginning of the sentence that is heard now; of a script, of the turn."""
        heard = self._samples - self._ahead_s() * self._rate_hz
        at = max((start for before, start in self._sentences if before <= heard), default=0)
        return text[text.rfind("\n", 0, at) + 1 if script else at :]


class Watch(threading.Thread):
    """Takes what misod says to who has the floor, and holds it, while the main thread is busy with the player.

    Its word reaches the main thread as a signal: nothing else ends a write to a player that takes no more.
    """

    def __init__(self, client, request: int):
        super().__init__(name="floor", daemon=True)
        self._id = request
        self.until_s: float | None = None  # when the speech should have been heard
        self._client = client
        self._wake = os.pipe()
        self._armed, self._why = True, ""
        signal.signal(signal.SIGUSR1, self._on_signal)
        self.start()

    def stop(self) -> None:
        """No Cut comes after this, and the client may be used again."""
        self._armed = False
        os.write(self._wake[1], b"\0")
        self.join()
        for end in self._wake:
            os.close(end)

    def run(self) -> None:
        from protocol import messages as m

        try:
            while self._armed:
                message = self._client.next(self._id, RENEW_S, self._wake[0])
                if message is None:
                    self._hold()
                elif isinstance(message, m.Floor) and message.state != "yours":
                    self._cut(message.state)
                    return
        except Failure:
            if self._client.daemon_lives():  # we were stopped, and somebody else is heard now
                self._cut("lost")

    def _hold(self) -> None:
        if self.until_s is None or time.monotonic() < self.until_s + SLACK_S:
            self._client.hold_floor(self._id, HOLD_S)

    def _cut(self, why: str) -> None:
        self._why = why
        while self._armed:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
            time.sleep(AGAIN_S)

    def _on_signal(self, _number: int, frame: FrameType | None) -> None:
        if self._armed and self._why and not _leaves(frame):  # else somebody else sent it, or it comes again
            self._armed = False
            raise Cut(self._why)


def _leaves(frame: FrameType | None) -> bool:
    """Whether here nobody would take a Cut: Floor's block is being left, by itself or by a generator that is not yet
    told of it.
    """
    if frame and frame.f_globals.get("__name__") == "contextlib":
        return True
    while frame and frame.f_code is not Floor.__exit__.__code__:
        frame = frame.f_back
    return frame is not None


@click.command("hush")
@click.option("--json", "as_json", is_flag=True, help="What was silenced, as a JSON array.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
def hush_verb(as_json, quiet) -> None:
    """Silence, now: stop all that speaks through a player, and all that waits to.

    \b
      misoctl hush
    """
    from misoctl.client import Client, NoDaemon
    from protocol import messages as m
    from protocol.paths import find_paths

    listing = "[]"
    try:
        with Client(find_paths()) as client:
            if client.knows_floor:
                listing = client.ask(m.Hush).listing
    except NoDaemon:  # then nothing speaks
        pass
    if as_json:
        click.echo(listing)
        return
    count = len(json.loads(listing))
    (hush if quiet else tell)(f"silenced {count}" if count else "nothing speaks")


def lines_of(client) -> tuple[list[dict], str]:
    """For `status`: who has the floor and who waits; and the same for a person."""
    from protocol import messages as m

    rows = json.loads(client.ask(m.SpeakersRequest).listing) if client.knows_floor else []
    said = [f"{row['app'] or 'one'} {row['state']} ({row['priority']}, {row['seconds']:.0f} s)" for row in rows]
    return rows, ", ".join(said) or "free"
