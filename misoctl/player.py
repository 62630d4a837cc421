"""The sink that is heard: holds speech until it may start, and has one thread hand it to the player from then on."""

import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from misoctl.playing.choice import Output, open_output
from misoctl.playing.prebuffer import Playhead, Prebuffer, expected_s
from misoctl.playing.samples import quieter, silence
from misoctl.talk import hush
from protocol.settings import Playing

AHEAD_S = 10.0  # of speech that may wait for the player, beyond what was held: a stall of the daemon is not heard
TOLD_S = 0.5  # a shorter wait is not worth a line
STOP_S = 2.0
REST = b""  # among what is handed on: one speech ends there


def open_player(
    settings: Playing | None = None, asked_s: float | None = None, tell: Callable[[str], None] = hush
) -> "Player":
    """`asked_s`: how much speech to hold before it starts; None: as much as is needed. Raises Failure."""
    settings = settings or Playing()
    return Player(open_output(settings), settings, asked_s, tell)


class Player:
    """write never waits for longer than the frame it is given lasts: acks go on, and misod takes nobody for slow."""

    def __init__(self, output: Output, settings: Playing, asked_s: float | None, tell: Callable[[str], None]):
        self._output, self._settings, self._asked_s, self._tell = output, settings, asked_s, tell
        self._plan = Prebuffer(time.monotonic(), asked_s=asked_s)
        self._playhead = Playhead()
        self._held: list[bytes] = []
        self._held_s = 0.0
        self._waits, self._told = True, False
        self._limit_s = AHEAD_S
        self._rate_hz = 0
        self._gaps_told = self._own_told = 0
        self._feeder: Feeder | None = None

    def expect(self, text: str, max_seconds: float | None) -> None:
        """It is asked for now: that nothing was heard until now is no gap."""
        if self._playhead.ran_dry(time.monotonic()):
            self._playhead.rest()
            self._waits = True
        about_s = min(expected_s(text), max_seconds or float("inf"))
        self._plan = Prebuffer(time.monotonic(), about_s, asked_s=self._asked_s)

    def accepted(self, rtf: float | None) -> None:
        """misod's last real-time factor, if it has one."""
        self._plan.rtf = rtf

    def made(self) -> None:
        """All that was asked for is here; more may be asked for."""
        if self._held:
            self._hand_on(time.monotonic())
        if self._feeder:
            self._feeder.put(REST)

    @property
    def underruns(self) -> int:
        return max(self._playhead.underruns, self._output.underruns)

    @property
    def gap_s(self) -> float:
        return max(self._playhead.gap_s, self._output.gap_s)

    def new_gaps(self) -> list[tuple[float, float | None]]:
        """(after so much speech, how long) of each gap since this was called last; None: only the output saw it."""
        seen = self._playhead.gaps[self._gaps_told :]
        self._gaps_told += len(seen)
        lead_in_s = self._settings.lead_in_ms / 1000
        gaps = [(at_s - lead_in_s, gap_s) for at_s, gap_s in seen]
        own = max(self._own_told, self._output.underruns - self._playhead.underruns)
        heard_s = self._playhead.handed_s - self._playhead.ahead_s(time.monotonic()) - lead_in_s
        gaps += [(max(0.0, heard_s), None)] * (own - self._own_told)
        self._own_told = own
        return gaps

    def ahead_s(self) -> float:
        """How much of what was written is still to be heard."""
        return self._held_s + self._playhead.ahead_s(time.monotonic())

    def write(self, pcm: bytes, rate_hz: int) -> None:
        now_s, audio_s = time.monotonic(), len(pcm) / 2 / rate_hz
        self._rate_hz = rate_hz
        self._plan.arrived(audio_s, now_s)
        self._held.append(quieter(pcm, self._settings.volume))
        self._held_s += audio_s
        if self._playhead.ran_dry(now_s):  # one longer gap, not one a frame
            self._waits = True
        if self._waits and self._held_s < self._plan.needed_s():
            self._tell_wait()
            return
        self._hand_on(now_s)
        if (over_s := self._playhead.ahead_s(now_s) - self._limit_s) > 0:
            time.sleep(over_s)

    def close(self, whole: bool) -> None:
        """whole: once all was heard. Else silence at once, whatever is under way."""
        if whole and self._held:
            self._hand_on(time.monotonic())
        feeder, self._held = self._feeder, []
        if feeder is None:
            return
        if whole:
            feeder.finish()
        else:
            feeder.stop()
        self._feeder = None

    def _hand_on(self, now_s: float) -> None:
        """All that is held."""
        if self._feeder is None:
            self._feeder = Feeder(self._output, self._rate_hz)
            self._feeder.start()
            self._put(silence(self._settings.lead_in_ms, self._rate_hz), now_s)
        self._put(b"".join(self._held), now_s)
        self._held, self._held_s = [], 0.0
        if self._waits:
            self._limit_s = AHEAD_S + self._playhead.ahead_s(now_s)
        self._waits = self._told = False

    def _put(self, pcm: bytes, now_s: float) -> None:
        if pcm:
            self._feeder.put(pcm)
            self._playhead.handed(len(pcm) / 2 / self._rate_hz, now_s)

    def _tell_wait(self) -> None:
        if self._told or not self._plan.timed:
            return
        wait_s = self._plan.wait_s(self._held_s)
        self._told = wait_s >= TOLD_S
        if self._told:
            self._tell(f"{'starts' if self._feeder is None else 'goes on'} in {wait_s:.1f} s")


class Feeder(threading.Thread):
    """Hands on what it is given, in order, as fast as the player takes it. What goes wrong, put and finish raise.

    It opens the player, too: signals are raised in the main thread, and would leave behind one that is half started.
    """

    def __init__(self, output: Output, rate_hz: int):
        super().__init__(name="player", daemon=True)
        self._output, self._rate_hz = output, rate_hz
        self._queue: SimpleQueue[bytes | None] = SimpleQueue()
        self._stopped = False
        self._failure: Exception | None = None

    def put(self, pcm: bytes) -> None:
        if self._failure:
            raise self._failure
        self._queue.put(pcm)

    def finish(self) -> None:
        """Once all was heard. A signal may end the wait."""
        self._queue.put(None)
        self.join()
        if self._failure:
            raise self._failure

    def stop(self) -> None:
        self._stopped = True
        self._queue.put(None)
        self._output.stop()
        if self.is_alive():
            self.join(STOP_S)  # a driver that hangs must not keep us

    def run(self) -> None:
        try:
            self._output.open(self._rate_hz)
            while (pcm := self._next()) is not None:
                if pcm == REST:
                    self._output.rest()
                else:
                    self._output.write(pcm)
                if self._stopped:
                    break
            self._output.finish()
        except Exception as error:  # raised where somebody hears of it
            self._failure = error
        finally:
            self._output.end()

    def _next(self) -> bytes | None:
        while True:
            try:
                return self._queue.get(timeout=self._output.tick_s)
            except Empty:
                self._output.tick()
