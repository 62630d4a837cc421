"""What must hold before the socket is bound: umask, open files, a private directory, the lock. In that order.

libzmq's ipc bind steals a live socket and deletes a regular file at its path without a word
(libzmq #2059): the lock comes first, always, and only a socket of our own is ever unlinked.
"""

import fcntl
import os
import resource
import socket
import stat
import time

import psutil

from protocol import errors
from protocol.errors import Failure, UnsafePath
from protocol.paths import Paths, make_directories, make_private

WANTED_FILES = 16384  # a connection that says nothing holds one for a second
FEWEST_FILES = 1024  # under this libzmq's ipc accept may abort on EMFILE (libzmq #1306)


def secure(paths: Paths) -> int:
    """Everything up to the lock, which the returned descriptor holds until the process ends.

    Raises Failure: another runs, too few open files, UnsafePath.
    """
    os.umask(0o077)  # for the life of the process: bind and listen happen inside libzmq
    _raise_file_limit()
    make_directories(paths.home)
    make_directories(paths.logs)
    make_private(paths.run)
    lock = _take_lock(paths)
    _clear_socket(paths)
    return lock


def _raise_file_limit() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = WANTED_FILES if hard == resource.RLIM_INFINITY else min(WANTED_FILES, hard)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        soft = wanted
    if soft < FEWEST_FILES:
        why = f"only {soft} files may be open, misod needs {FEWEST_FILES}: raise `ulimit -n`"
        raise Failure(errors.OS_LIMIT, why)


def _take_lock(paths: Paths) -> int:
    try:
        lock = os.open(paths.lock, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise UnsafePath(f"cannot open the lock {paths.lock}: {error.strerror}") from None
    for _ in range(20):  # a holder that names no living process has just begun, or is a misoctl that asks who holds it
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if pid := _read_pid(lock):
                break
            time.sleep(0.01)
        else:
            os.ftruncate(lock, 0)
            os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
            return lock
    raise Failure(errors.TRY_AGAIN, f"already running, pid {pid or 'unknown'}", "`misoctl stop` ends it")


def holds(lock: int, paths: Paths) -> bool:
    """Whether our lock is still the one that others find: somebody may have removed the directory around it."""
    try:
        return os.path.samestat(os.fstat(lock), os.stat(paths.lock))
    except FileNotFoundError:
        return False


def _read_pid(lock: int) -> int | None:
    """Of the holder, if it lives: the file of one that was killed still names it."""
    digits = os.pread(lock, 32, 0).strip()
    return int(digits) if digits.isdigit() and psutil.pid_exists(int(digits)) else None


def _clear_socket(paths: Paths) -> None:
    """Remove what a killed daemon left. We hold the lock, so nothing of ours can be listening there."""
    try:
        info = os.lstat(paths.socket)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(info.st_mode) or info.st_uid != os.getuid():
        raise UnsafePath(f"{paths.socket} is not a socket of ours", "move it away")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)  # a listener with a full backlog would hold us up
        try:
            probe.connect(str(paths.socket))
        except ConnectionRefusedError:
            os.unlink(paths.socket)
            return
        except OSError:
            pass
    raise UnsafePath(f"something else listens on {paths.socket}", "stop it, or set MISO_HOME")


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


def room_bytes(memory_gb: float) -> int:
    """How much more may be taken: of the machine, and of what the setting allows."""
    return min(psutil.virtual_memory().available, memory_ceiling_bytes(memory_gb) - resident_bytes())


def memory_ceiling_bytes(memory_gb: float) -> int:
    """From the setting; 0 leaves a tenth of the machine to others."""
    return int(memory_gb * 1e9) if memory_gb else int(psutil.virtual_memory().total * 0.9)
