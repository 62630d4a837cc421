"""The daemon's socket: connect or know at once that nobody listens, then say, status, drain.

A DEALER never learns that nobody listens, so a plain socket is tried first; and a stream cannot be
resumed, so it never reconnects: the monitor tells when the daemon goes.
"""

import os
import socket
import time
from collections.abc import Iterator

from protocol import codec, errors
from protocol import messages as m
from protocol.errors import Failure
from protocol.paths import Paths, check_private

ANSWER_S = 5.0  # the daemon's I/O thread answers within a millisecond, or something is wrong

# Not -1: with that, libzmq 4.3.5 dropped what the daemon sent just before it closed, 10 times in 50.
NEVER_MS = 2**31 - 1


class NoDaemon(Failure):
    def __init__(self, paths: Paths):
        super().__init__(errors.UNAVAILABLE, f"no misod listens on {paths.socket}", "start it with `misoctl start`")


class Lost(Failure):
    def __init__(self):
        entry = errors.ERRORS["lost"]
        super().__init__(entry.exit_code, "the connection to misod was lost", entry.next_step)


def preflight(paths: Paths) -> None:
    """Raises NoDaemon within a millisecond where nothing listens; UnsafePath where others could listen in our place."""
    if not os.path.lexists(paths.run):
        raise NoDaemon(paths)
    check_private(paths.run)
    with socket.socket(socket.AF_UNIX) as plain:
        try:
            plain.connect(str(paths.socket))
        except OSError:
            raise NoDaemon(paths) from None


class Client:
    """One connection. Use as a context manager; every request has an id of its own."""

    def __init__(self, paths: Paths):
        preflight(paths)
        self._paths = paths
        import zmq  # 40 ms, not needed for --help nor where no daemon runs

        self._zmq = zmq
        self._context = zmq.Context()
        self._dealer = self._context.socket(zmq.DEALER)
        self._dealer.setsockopt(zmq.LINGER, 200)
        self._dealer.setsockopt(zmq.RECONNECT_IVL, NEVER_MS)
        self._dealer.setsockopt(zmq.MAXMSGSIZE, m.MAX_MESSAGE_BYTES)
        self._dealer.setsockopt(zmq.SNDHWM, 8)
        self._dealer.setsockopt(zmq.RCVHWM, 64)
        self._dealer.setsockopt(zmq.HANDSHAKE_IVL, 1000)
        self._dealer.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        self._dealer.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2500)
        self._monitor = self._dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_CLOSED)
        self._poller = zmq.Poller()
        self._poller.register(self._dealer, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._dealer.connect(f"ipc://{paths.socket}")
        self._last_id = 0
        try:
            self.welcome = self._hello()
        except Lost:  # it was on its way out
            self.close()
            raise NoDaemon(paths) from None
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self._monitor.close()
        self._dealer.close()  # LINGER gives a last cancel the time to leave
        self._context.term()

    def say(self, **request) -> Iterator[m.Message]:
        """Yields accepted, progress and pcm as they come, last the done. Raises Failure. Acknowledges for you.

        A caller that stops early, whatever the reason, cancels the request.
        """
        message = m.Say(id=self._new_id(), **request)
        self._send(message)
        yield from self._cancelling(message.id, self._stream(message.id))

    def say_together(self, requests: list[dict]) -> Iterator[m.Message]:
        """As say, for several at once: what comes for any of them, until each has its done."""
        acked = {self._new_id(): 0 for _ in requests}
        try:
            for request, asked in zip(acked, requests, strict=True):
                self._let_out()
                self._send(m.Say(id=request, **asked))
            while acked:
                message = self._receive_any(None)
                if isinstance(message, m.Error) and (message.id is None or message.id in acked):
                    acked.pop(message.id, None)
                    raise Failure.of_code(message.code, message.message)
                if message.id not in acked:
                    continue
                if isinstance(message, m.Done):
                    del acked[message.id]
                if isinstance(message, m.Pcm) and message.seq + 1 - acked[message.id] >= m.ACK_FRAMES:
                    acked[message.id] = message.seq + 1
                    self._let_out()
                    self._try_send(m.Ack(id=message.id, seq=message.seq))
                yield message
        except BaseException:  # closed by the caller, a signal while we waited, or one of them failed
            for request in acked:
                self._try_send(m.Cancel(id=request))
            raise

    def load(
        self, model: str | None, keep_alive_s: float | None = None, quick_start: bool | None = None
    ) -> Iterator[m.Message]:
        """Yields progress as it comes, last the status once the model is there. Raises Failure."""
        how = {"keep_alive_s": keep_alive_s, "quick_start": quick_start}
        yield from self._change(m.Load(id=self._new_id(), model=model, **how))

    def unload(self) -> Iterator[m.Message]:
        """As load, once the model is freed."""
        yield from self._change(m.Unload(id=self._new_id()))

    def learn(self, **request) -> Iterator[m.Message]:
        """As load, last the voices with the new one alone. Stopped early, nothing is learned."""
        message = m.Learn(id=self._new_id(), **request)
        yield from self._cancelling(message.id, self._change(message, m.Voices))

    @property
    def knows_floor(self) -> bool:
        """Of an older misod there is none to take."""
        return self.welcome.minor >= 1

    def ask_floor(self, **wish) -> int:
        """The request for it, which lasts until it is left, or this connection closed."""
        message = m.AskFloor(id=self._new_id(), **wish)
        self._send(message)
        return message.id

    def floor_comes(self, request: int) -> Iterator[m.Message]:
        """Yields progress, last the floor: yours, or why not. Raises Failure."""
        while not isinstance(answer := self._receive(request, None), m.Floor):
            yield answer
        yield answer

    def next(self, request: int, wait_s: float, wake: int) -> m.Message | None:
        """The next message for `request`; None where none comes in time, or `wake` is readable. Raises Failure."""
        self._poller.register(wake, self._zmq.POLLIN)
        ready = dict(self._poller.poll(wait_s * 1000))
        self._poller.unregister(wake)
        if not ready or (wake in ready and self._dealer not in ready):
            return None
        return self._receive(request, None)

    def hold_floor(self, request: int, seconds: float) -> None:
        self._try_send(m.Hold(id=request, seconds=seconds))

    def leave_floor(self, request: int, again: bool = False) -> None:
        self._try_send(m.Leave(id=request, again=again))

    def daemon_lives(self) -> bool:
        """Whether it was the connection that ended, and not misod."""
        try:
            preflight(self._paths)
        except Failure:
            return False
        return True

    def _cancelling(self, request: int, stream: Iterator[m.Message]) -> Iterator[m.Message]:
        try:
            yield from stream
        except Failure:  # the daemon ended it, or is gone
            raise
        except BaseException:  # closed by the caller, or a signal while we waited
            self._try_send(m.Cancel(id=request))
            raise

    def _change(self, message: m.Message, last: type[m.Message] = m.Status) -> Iterator[m.Message]:
        self._send(message)
        while not isinstance(answer := self._receive(message.id, None), last):
            yield answer
        yield answer

    def ask(self, kind: type[m.Message], **request) -> m.Message:
        """One question, its answer. Raises Failure."""
        message = kind(id=self._new_id(), **request)
        self._send(message)
        return self._receive(message.id, time.monotonic() + ANSWER_S)

    def status(self) -> m.Status:
        return self.ask(m.StatusRequest, quick_start=True if self.welcome.minor >= 2 else None)

    def drain(self) -> m.Status:
        return self.ask(m.Drain)

    def _stream(self, request: int) -> Iterator[m.Message]:
        acked = 0
        while True:
            message = self._receive(request, None)
            yield message
            if isinstance(message, m.Done):
                return
            if isinstance(message, m.Pcm) and message.seq + 1 - acked >= m.ACK_FRAMES:
                acked = message.seq + 1
                self._try_send(m.Ack(id=request, seq=message.seq))

    def _hello(self) -> m.Welcome:
        major, minor = m.VERSION
        return self.ask(m.Hello, major=major, minor=minor)

    def _send(self, message: m.Message) -> None:
        """Raises Failure where an older misod would not know what is asked."""
        for name, limit in message.limits().items():
            if limit.since and getattr(message, name) is not None and limit.since > self.welcome.minor:
                theirs = f"{self.welcome.major}.{self.welcome.minor}"
                raise Failure.of_code("version", f"misod speaks protocol {theirs}, which has no {name}")
        if not self._try_send(message):
            raise Lost

    def _let_out(self) -> None:
        """Wait for room in the pipe, which holds less than many requests send at once."""
        self._dealer.poll(ANSWER_S * 1000, self._zmq.POLLOUT)

    def _try_send(self, message: m.Message) -> bool:
        """False where the daemon is gone: what it sent before that may still be read."""
        try:
            self._dealer.send(codec.pack(message), self._zmq.NOBLOCK)
        except errors.ProtocolError as error:
            raise Failure.of_code(error.code, error.message) from None
        except self._zmq.Again:
            return False
        return True

    def _receive(self, request: int, deadline_s: float | None) -> m.Message:
        """The next message for `request`. Raises Failure of an error for it, or for one the daemon could not read."""
        while True:
            message = self._receive_any(deadline_s)
            if isinstance(message, m.Error) and message.id in (None, request):
                raise Failure.of_code(message.code, message.message)
            if message.id == request:
                return message

    def _receive_any(self, deadline_s: float | None) -> m.Message:
        while True:
            wait_ms = None if deadline_s is None else max(0, round((deadline_s - time.monotonic()) * 1000))
            ready = dict(self._poller.poll(wait_ms))
            if self._dealer in ready:  # before the monitor: what the daemon sent last still counts
                return self._read(self._dealer.recv_multipart())
            if not ready:
                message = f"misod did not answer for {ANSWER_S:g} s"
                raise Failure(errors.UNAVAILABLE, message, "`misoctl stop`, try again")
            if not self._dealer.poll(100):  # a done sent just before the daemon closed may be on its way
                raise Lost

    def _read(self, parts: list[bytes]) -> m.Message:
        try:
            if len(parts) != 1:
                raise errors.ProtocolError("bad_message", "a message is exactly one frame")
            return codec.unpack(parts[0], m.FROM_DAEMON)
        except errors.ProtocolError as error:
            raise Failure.of_code(error.code, f"misod sent what this misoctl cannot read ({error})") from None

    def _new_id(self) -> int:
        self._last_id += 1
        return self._last_id
