"""The daemon's socket: its options, one message in, one message out. Knows no session and no model.

Each option is tied to a measurement; see protocol/README.md.
"""

import logging
import os
from pathlib import Path

import zmq

from protocol import messages as m

log = logging.getLogger(__name__)

SPARE_MESSAGES = 64  # above the windows: receipts, progress, answers to `status`


class Router:
    def __init__(self, path: Path, max_rows: int):
        """Binds at once. One client may speak with every row: its pipe holds as many windows."""
        self._path = path
        self._context = zmq.Context()
        self.socket = self._context.socket(zmq.ROUTER)
        self.socket.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket.setsockopt(zmq.ROUTER_HANDOVER, 0)
        self.socket.setsockopt(zmq.MAXMSGSIZE, m.MAX_MESSAGE_BYTES)
        self.socket.setsockopt(zmq.SNDHWM, max_rows * m.WINDOW_FRAMES + SPARE_MESSAGES)
        self.socket.setsockopt(zmq.RCVHWM, 16)
        self.socket.setsockopt(zmq.BACKLOG, 1024)  # a connect over ipc that finds it full fails, and is not tried again
        self.socket.setsockopt(zmq.HANDSHAKE_IVL, 1000)
        self.socket.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        self.socket.setsockopt(zmq.HEARTBEAT_TIMEOUT, 2500)
        self.socket.setsockopt(zmq.LINGER, 0)
        self._admit_only_us()
        self.socket.bind(f"ipc://{path}")
        self._bound = os.lstat(path)
        self.partings = self.socket.get_monitor_socket(zmq.EVENT_DISCONNECTED)  # readable once a connection has ended

    def _admit_only_us(self) -> None:
        """Defence in depth: the 0700 directory is what keeps others out."""
        try:
            self.socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
        except zmq.ZMQError:  # EINVAL in the macOS wheel
            log.info("this libzmq cannot ask who connects; the private directory alone keeps others out")

    def receive(self) -> tuple[bytes, list[bytes]] | None:
        """The next message's sender and frames; None if none is there."""
        try:
            peer, *frames = self.socket.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return peer, frames

    def clear_partings(self) -> None:
        try:
            while self.partings.recv_multipart(zmq.NOBLOCK):
                pass
        except zmq.Again:
            pass

    def send(self, peer: bytes, data: bytes) -> bool:
        """Never blocks. False: the peer is gone, or takes nothing and its pipe is full."""
        try:
            self.socket.send_multipart([peer, data], zmq.NOBLOCK)
        except zmq.ZMQError:  # EHOSTUNREACH, EAGAIN
            return False
        return True

    def close(self) -> None:
        """Give what was sent a moment to leave: LINGER 0 would drop a last `done`.

        No unbind: it ends the connections it accepted, with the LINGER of that moment.
        """
        if self._is_ours():  # libzmq leaves it
            self._path.unlink()
        self.socket.disable_monitor()
        self.partings.close(linger=0)  # an open one keeps term from returning
        self.socket.close(linger=500)
        self._context.term()

    def _is_ours(self) -> bool:
        """Whether the socket at our path is the one we bound: where the directory was removed it may be another's."""
        try:
            return os.path.samestat(self._bound, os.lstat(self._path))
        except FileNotFoundError:
            return False
