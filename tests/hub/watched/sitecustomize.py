"""Python loads this at its start, where its folder is on PYTHONPATH: what asks for the network goes into a file.

WATCH_FILE gets a line for each process, and one for each name that is looked up and each socket that is to be
connected or sent from, but those of Unix.
"""

import os
import socket
import sys

LOOKED_UP = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo")


def tell(line: str) -> None:
    file = os.open(os.environ["WATCH_FILE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{line}\n".encode())
    os.close(file)


def watch(event: str, arguments: tuple) -> None:
    if event in LOOKED_UP:
        tell(f"network {event} {arguments[0]!r}")
    elif event in ("socket.connect", "socket.sendto", "socket.sendmsg") and arguments[0].family != socket.AF_UNIX:
        tell(f"network {event} {arguments[1]!r}")


if "WATCH_FILE" in os.environ:
    tell(f"process {' '.join(sys.orig_argv[1:])}")
    sys.addaudithook(watch)
