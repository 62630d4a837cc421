"""One byte on a socketpair: how another thread, or a signal, ends the I/O thread's poll."""

import socket


class Wake:
    def __init__(self):
        self.write_end, self.read_end = socket.socketpair()
        self.write_end.setblocking(False)
        self.read_end.setblocking(False)

    def ring(self) -> None:
        try:
            self.write_end.send(b"\0")
        except BlockingIOError:  # full: the poll is awake already
            pass

    def clear(self) -> None:
        try:
            while self.read_end.recv(4096):
                pass
        except BlockingIOError:
            pass
