"""Reads a text to a row, a piece at a time, with the next piece under way while the one before it is spoken.

The grammars run in a child process that all readers share. While they work, a frame of a row that speaks takes
(benchmarks/jitter.py, the mean and the longest, against the usual frame) 1.0 and 2.0 with the child, as with nobody
beside; 2.6 and 4.1 with a thread of this process; and on the worker's own thread one of 22 for each piece of numbers.
"""

import logging
import os
import select
import subprocess
import sys
import threading
from collections import deque
from pathlib import Path

from misod.text import child
from misod.text.cut import Limits
from misod.text.grammar import Answers
from misod.text.pieces import Ask, Manner, Piece, read

log = logging.getLogger(__name__)

HANGS_S = 5.0  # without any answer: a run takes at most a second; a step of 10 s would end the daemon
STARTS = 2  # of the child after a load of the model; then the grammars run here


class ChildError(Exception):
    """The child is gone, or has not answered in HANGS_S."""


class Child:
    """The process, and the runs it has been asked: it answers them in order.

    What waits in the pipes is bounded by the rows: one question of some 100 bytes each, so that neither side blocks.
    """

    def __init__(self):
        command = [sys.executable, "-P", str(Path(child.__file__))]
        # a session of its own: a signal to misod's group is not for it
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        self.pid = self._process.pid
        self._answers = select.poll()  # not select: a daemon with many clients has numbers beyond it
        self._answers.register(self._process.stdout, select.POLLIN)
        self._asked: deque[Ticket] = deque()
        self._read = b""

    def ask(self, ticket: "Ticket") -> None:
        try:
            self._process.stdin.write(ticket.run.encode(*child.CODING) + child.END)
        except OSError as error:
            raise ChildError(f"cannot be written to: {error.strerror}") from error
        self._asked.append(ticket)

    def await_answer(self, ticket: "Ticket") -> str:
        """Take answers until this one is there; those asked before it come first."""
        while ticket.said is None:
            if not self._answers.poll(HANGS_S * 1000):
                raise ChildError(f"has not answered in {HANGS_S:.0f} s")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise ChildError("has ended")
            *answers, self._read = (self._read + data).split(child.END)
            for answer in answers:
                self._asked.popleft().said = answer.decode(*child.CODING)
        return ticket.said

    def end(self) -> int:
        """Its exit status."""
        self._process.kill()
        self._process.stdin.close()
        self._process.stdout.close()
        return self._process.wait()


class Ticket:
    """One run asked of the child, and the answer once it is there."""

    __slots__ = ("by", "run", "said")

    def __init__(self, run: str):
        self.run, self.said, self.by = run, None, None


class Grammars:
    """Answers from memory, from the child, or, where that cannot be had, from this process."""

    def __init__(self, answers: Answers | None = None):
        self._lock = threading.Lock()
        self._answers = answers or Answers()
        self._child: Child | None = None
        self._starts_left = 0

    @property
    def pid(self) -> int | None:
        return self._child.pid if self._child else None

    def start(self) -> None:
        """Start the child where there is none; it may be started again once. Its grammars load meanwhile."""
        with self._lock:
            if self._child is None:
                self._starts_left = STARTS
            self._start()

    def _start(self) -> None:
        if self._child is None and self._starts_left:
            self._starts_left -= 1
            try:
                self._child = Child()
            except OSError as error:  # no process to be had
                log.warning("cannot start the text child: %s", error.strerror)

    def ask(self, run: str) -> Ticket:
        """Have the child begin, if there is one; no wait."""
        ticket = Ticket(run)
        with self._lock:
            ticket.said = self._answers.get(run)
            if ticket.said is None and self._child:
                self._send(ticket)
        return ticket

    def answer(self, ticket: Ticket) -> str:
        """Wait for it. Without a child it is worked out here."""
        with self._lock:
            while ticket.said is None and self._child:
                try:
                    if ticket.by is not self._child:  # it was another's, which is gone
                        self._child.ask(ticket)
                        ticket.by = self._child
                    self._child.await_answer(ticket)
                except ChildError as error:
                    self._lose(error)
            if ticket.said is None:
                ticket.said = child.answer(ticket.run)
            self._answers.put(ticket.run, ticket.said)
            return ticket.said

    def _send(self, ticket: Ticket) -> None:
        try:
            self._child.ask(ticket)
            ticket.by = self._child
        except ChildError as error:
            self._lose(error)

    def _lose(self, error: ChildError) -> None:
        status = self._child.end()
        self._child = None
        self._start()
        then = "started again" if self._child else "the grammars now run beside the frames, and may delay them"
        log.warning("the text child, exit status %d, %s: %s", status, error, then)

    def close(self) -> None:
        with self._lock:
            if self._child:
                self._child.end()
            self._child, self._starts_left = None, 0


_GRAMMARS = Grammars()


def warm() -> None:
    """Start the child before the first request needs it."""
    _GRAMMARS.start()


def cool() -> None:
    """Free what `warm` took, 50 MB."""
    _GRAMMARS.close()


class Reader:
    """One text for one row, on one thread. `unread`: letters and digits so far that the model has none for."""

    def __init__(
        self,
        text: str,
        limits: Limits,
        *,
        normalize: bool = True,
        emoji: str = "drop",
        grammars: Grammars = _GRAMMARS,
    ):
        self.unread = 0
        self._grammars = grammars
        self._reading = read(text, limits, Manner(normalize, emoji))
        self._step: Piece | Ask | None = None
        self._tickets: list[Ticket] = []
        self._advance(None)

    def next(self) -> Piece | None:
        """The next piece, None after the last. Blocks only while the grammars work on it; then begins the one after."""
        while self._step is not None and not isinstance(self._step, Piece):
            self._advance([self._grammars.answer(ticket) for ticket in self._tickets])
        piece = self._step
        if piece is None:
            return None
        self.unread += piece.unread
        self._advance(None)
        return piece if piece.text else None

    def close(self) -> None:
        """No more pieces. What the child was asked it still answers, to nobody."""
        self._reading.close()
        self._step, self._tickets = None, []

    def _advance(self, answers: list[str] | None) -> None:
        self._step = next(self._reading, None) if answers is None else self._reading.send(answers)
        asks = self._step is not None and not isinstance(self._step, Piece)
        self._tickets = [self._grammars.ask(run) for run in self._step] if asks else []
