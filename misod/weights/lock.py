"""One at a time changes what is in models/: a pull, a removal. Held by flock, so a killed holder lets go."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from protocol import errors as codes
from protocol.errors import Failure
from protocol.paths import lock_holder, make_directories

NAME = ".pull.lock"


@contextmanager
def changing(models: Path) -> Iterator[None]:
    """Raises Failure naming the pid of who does already; makes the directory where it is missing."""
    try:
        make_directories(models)
        lock = os.open(models / NAME, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise codes.of_file(error, models) from None
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            pid = lock_holder(models / NAME) or "unknown"
            why = f"another misod, pid {pid}, is pulling or removing a model"
            raise Failure(codes.TRY_AGAIN, f"{why}: wait for it, or stop it with `kill {pid}`") from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        yield
    finally:
        os.close(lock)


def changed_now(models: Path) -> bool:
    """Whether somebody is at it."""
    return lock_holder(models / NAME) is not None
