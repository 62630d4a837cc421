"""Tells those who look on what is said while it is heard: events, the highlighted text, progress."""

import threading
from collections.abc import Iterator

from misoctl.receipt import Hashed
from misoctl.timeline import Piece, Timeline, Word
from protocol import messages as m
from protocol.errors import Failure

TICK_S = 0.03


class Face:
    """Who looks on. Each is called by one thread at a time."""

    def begins(self, text: str, options: dict, sink: Hashed) -> None:
        """A request is made."""

    def sees(self, message: m.Message) -> None:
        """It was received."""

    def piece(self, piece: Piece) -> None:
        """Its first sound is here."""

    def word(self, word: Word) -> None:
        """It is heard now."""

    def gap(self, at_s: float, gap_s: float | None) -> None:
        """After so much of the speech the player had nothing to play, for so long; None: not known how long."""

    def lost(self, why: str, skipped: int) -> None:
        """The floor: `why` in misod's words. `paused`: it goes on later, after so many characters of the text."""

    def tick(self, heard_s: float) -> None:
        """So much of the speech was heard."""

    def ended(self, done: m.Done) -> None:
        """All of it was heard."""

    def failed(self, failure: Failure) -> None:
        """It ends with this error."""

    def close(self) -> None:
        """Nothing follows, or something else: what was said was cut."""


class Watch:
    """A context around the sink's: on a good end what was written last is heard to its end, and told."""

    def __init__(self, *faces: Face):
        self._faces = faces
        self._timeline = Timeline()
        self._lock = threading.RLock()
        self._player, self._player_from_s = None, 0.0  # of the speech
        self._skipped, self._told_s = 0, 0.0
        self._stop = threading.Event()
        self._broken: Failure | None = None  # a face could not write
        self._thread: threading.Thread | None = None

    def __enter__(self) -> "Watch":
        return self

    def __exit__(self, _kind, error: BaseException | None, _trace) -> None:
        self._stop.set()
        if self._thread:
            self._thread.join()
        try:
            if error is None:
                self._tell(self._timeline.written_s)
        finally:
            for face in self._faces:
                if isinstance(error, Failure):
                    face.failed(error)
                face.close()
        if error is None and self._broken:
            raise self._broken

    def begin(self, text: str, options: dict, sink: Hashed) -> None:
        """Where it goes to no player, it is heard when it is written."""
        with self._lock:
            if sink.player is not self._player:
                self._player, self._player_from_s = sink.player, self._timeline.written_s
            self._timeline.begin(text, self._skipped)
            for face in self._faces:
                face.begins(text, options, sink)
        if self._player and self._faces and not self._thread:
            self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
            self._thread.start()

    def cut(self, skipped: int, why: str) -> None:
        """Its player is gone. `skipped`: characters before the text that will begin again, if any."""
        with self._lock:
            self._tell_gaps()
            self._skipped = skipped
            self._timeline.cut(self._told_s)
            for face in self._faces:
                face.lost(why, skipped)
                face.close()

    def over(self, stream: Iterator[m.Message]) -> Iterator[m.Message]:
        """The stream, looked at as it comes."""
        for message in stream:
            if self._broken:
                raise self._broken
            with self._lock:
                piece = self._timeline.take(message)
                for face in self._faces:
                    face.sees(message)
                    if piece:
                        face.piece(piece)
            yield message
            if self._faces and not self._player:
                self._tell(self._timeline.written_s)

    def _run(self) -> None:
        while not self._stop.wait(TICK_S):
            try:
                with self._lock:
                    self._tell(self._heard_s())
            except Failure as failure:
                self._broken = failure
                return

    def _heard_s(self) -> float:
        ahead_s = self._player.ahead_s() if self._player else 0.0
        return max(0.0, self._timeline.written_s - ahead_s)

    def _tell(self, heard_s: float) -> None:
        with self._lock:
            self._told_s = heard_s
            self._tell_gaps()
            for happened in self._timeline.heard(heard_s):
                for face in self._faces:
                    face.ended(happened) if isinstance(happened, m.Done) else face.word(happened)
            for face in self._faces:
                face.tick(heard_s)

    def _tell_gaps(self) -> None:
        for at_s, gap_s in self._player.new_gaps() if self._player else ():
            for face in self._faces:
                face.gap(self._player_from_s + at_s, gap_s)
