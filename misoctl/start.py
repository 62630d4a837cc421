"""Reach the daemon, start one where none runs, and stop it."""

import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from misoctl.client import Client, NoDaemon
from protocol import errors
from protocol import messages as m
from protocol.errors import Failure, UnsafePath
from protocol.paths import Paths, lock_holder, make_directories, make_private

if TYPE_CHECKING:
    from subprocess import Popen

START_S = 30.0  # a cold disk, or a daemon that drains first; 0.3 s is usual
STOP_S = 10.0  # beyond misod's drain
DRAIN_S = 15.0  # its default, where it could not be asked
MAX_STDERR_BYTES = 1 << 20

Tell = Callable[[str], None]


def connect(paths: Paths, may_start: bool, tell: Tell) -> Client:
    """A client of the running daemon, or of one started now. Raises Failure. Warns once of a minor skew.

    One that is stopping is waited for, and another started in its place.
    """
    client = (_try_connect(paths) or _start(paths, tell)) if may_start else Client(paths)
    if client.welcome.minor != m.VERSION[1]:
        theirs = f"{client.welcome.major}.{client.welcome.minor}"
        tell(f"misod speaks protocol {theirs}, misoctl {m.VERSION[0]}.{m.VERSION[1]}: restart it soon")
    return client


def stop_daemon(paths: Paths, tell: Tell) -> None:
    """Stop it once what it speaks is finished, and wait for its end. Raises Failure."""
    pid, drain_s = None, DRAIN_S
    try:
        with Client(paths) as client:
            now = client.drain()
            pid, drain_s = now.pid, now.drain_s
    except UnsafePath:
        raise
    except Failure as failure:
        # of another version, stuck, unreachable: SIGTERM drains too, and needs no common language
        pid = lock_holder(paths.lock)
        if not pid and isinstance(failure, NoDaemon):
            tell("misod is not running")
            return
        if pid:
            os.kill(pid, signal.SIGTERM)
    deadline_s = time.monotonic() + drain_s + STOP_S
    # not whether the pid is there: in a container nobody may reap it
    while pid and lock_holder(paths.lock) == pid:
        if time.monotonic() > deadline_s:
            raise Failure(errors.SOFTWARE, f"misod, pid {pid}, is still running", f"`kill -9 {pid}`; see {paths.log}")
        time.sleep(0.02)
    tell(f"misod stopped, pid {pid}" if pid else "misod stopped")


def _start(paths: Paths, tell: Tell) -> Client:
    tell("starting misod")
    deadline_s = time.monotonic() + START_S
    child, offset = None, 0
    while time.monotonic() < deadline_s:
        if (client := _try_connect(paths)) is not None:
            for line in said_since(paths, offset) if child else ():
                if line.startswith("misod: "):
                    tell(line.removeprefix("misod: "))
            return client
        code = child and child.poll()
        if code not in (None, errors.TRY_AGAIN):
            raise _died(paths, code, offset)
        # another's daemon may hold the lock: one that will answer soon, or one on its way out
        if (child is None or code is not None) and lock_holder(paths.lock) is None:
            child, offset = _spawn(paths)
        time.sleep(0.02)
    if (pid := lock_holder(paths.lock)) and (child is None or pid != child.pid):
        raise Failure(
            errors.TRY_AGAIN, f"misod, pid {pid}, takes no requests", "`misoctl stop` ends it, then try again"
        )
    raise Failure(errors.UNAVAILABLE, f"misod did not answer within {START_S:g} s", f"see {paths.log}")


def _try_connect(paths: Paths) -> Client | None:
    """A client of a daemon that will speak: not of one that is stopping."""
    try:
        client = Client(paths)
    except NoDaemon:
        return None
    if client.welcome.state == "draining":
        client.close()
        return None
    return client


def _spawn(paths: Paths) -> "tuple[Popen, int]":
    """A detached misod, and the size its stderr file had before."""
    import subprocess  # 2 ms, which a running misod spares

    environ = dict(os.environ)
    if environ.get("MISO_HOME"):
        environ["MISO_HOME"] = str(paths.home)  # it may be relative, and misod runs in /
    try:
        prepare(paths)
        with paths.stderr.open("ab") as stderr:
            offset = stderr.tell()
            child = subprocess.Popen(
                [sys.executable, "-m", "misod", "serve"],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
                cwd="/",
                env=environ,
            )
    except OSError as error:
        why = errors.of_file(error, paths.home)
        raise Failure(why.exit_code, f"cannot start misod: {why.message}", why.next_step) from None
    return child, offset


def prepare(paths: Paths) -> None:
    """The places that a daemon's starter needs. Raises UnsafePath, OSError."""
    make_private(paths.run)
    make_directories(paths.logs)
    _rotate(paths.stderr)
    paths.stderr.touch()


def _rotate(path: Path) -> None:
    """The last words of many daemons would grow without end: one older file is kept."""
    if path.exists() and path.stat().st_size > MAX_STDERR_BYTES:
        path.replace(path.with_suffix(".stderr.1"))


def _died(paths: Paths, code: int, offset: int) -> Failure:
    """With misod's own line, which it wrote after `offset` of the file its stderr goes to."""
    said = said_since(paths, offset)
    if code == errors.FAILED or code < 0:  # no refusal of its own: Python or the system ended it
        why = said[-1] if said else f"signal {-code}" if code < 0 else "no reason given"
        return Failure(errors.SOFTWARE, f"cannot start misod: {why}", f"see {paths.stderr}")
    return Failure(
        code, f"cannot start misod: {said[-1].removeprefix('misod: ') if said else f'it exited with {code}'}"
    )


def said_since(paths: Paths, offset: int) -> list[str]:
    """What a daemon wrote to its stderr, after `offset`."""
    return paths.stderr.read_bytes()[offset:].decode(errors="replace").strip().splitlines()
