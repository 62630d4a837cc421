"""The sockets, on the loopback only, and uvicorn on them until a signal comes."""

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import socket
from collections.abc import Callable, Iterator
from threading import Event

import uvicorn

from misoctl.talk import tell
from protocol import errors
from protocol.errors import Failure

STOP_S = 2  # for requests to see that they shall end: misod's word comes each second
WANTED_FILES = 4096  # macOS gives 256


def bind(addresses: tuple[str, ...], port: int) -> list[socket.socket]:
    """One for each address; port 0 is any. Raises Failure.

    A machine may have no IPv6. But a port of it that another has is refused: a client that calls us localhost
    would send that one the token.
    """
    sockets = []
    for address in addresses:
        try:
            sockets.append(_bound(address, sockets[0].getsockname()[1] if sockets else port))
        except OSError as error:
            if sockets and not (error.errno == errno.EADDRINUSE and port):
                continue
            for each in sockets:
                each.close()
            message = f"cannot listen on {address}, port {port}: {error.strerror}"
            raise Failure(errors.OS_LIMIT, message, "choose another --port; 0 takes any") from None
    return sockets


def _bound(address: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    one = socket.socket(family)
    try:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        one.bind((address, port))
        one.listen()
    except OSError:
        one.close()
        raise
    return one


def run(build: Callable[[Event], object], sockets: list[socket.socket]) -> None:
    """Serve what `build` makes until a signal comes, which is raised again afterwards.

    The event that it is given is set then: requests end at their next word.
    """
    _raise_file_limit()
    logger = logging.getLogger("uvicorn")
    logger.handlers, logger.propagate = [_Faults()], False
    stopping = Event()
    options = {"loop": "asyncio", "http": "h11", "ws": "none", "lifespan": "off", "interface": "asgi3"}
    options |= {"log_config": None, "access_log": False, "server_header": False, "proxy_headers": False}
    config = uvicorn.Config(build(stopping), timeout_graceful_shutdown=STOP_S, **options)
    _Server(config, stopping).run(sockets)


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, stopping: Event):
        super().__init__(config)
        self._stopping = stopping

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """As uvicorn's, with SIGHUP, and none that nohup ignores. misoctl's own handler raises, which asyncio keeps."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
        for number in before:
            signal.signal(number, self.handle_exit)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
        for number in self._captured_signals[:1]:
            signal.raise_signal(number)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """A client that takes nothing would be waited for."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await asyncio.sleep(0)  # they learn of it
        await super().shutdown(sockets)

    def handle_exit(self, number: int, frame) -> None:
        self._stopping.set()
        super().handle_exit(number, frame)


class _Faults(logging.Handler):
    """Of uvicorn's log, what an error of ours looks like: one line. The rest is about clients, whom we answer."""

    def emit(self, record: logging.LogRecord) -> None:
        fault = record.exc_info and record.exc_info[1]
        if fault and not isinstance(fault, asyncio.CancelledError):  # one that waits for misod to start, at our end
            tell(f"a request failed by a fault of misoctl's own: {type(fault).__name__}: {fault}")
