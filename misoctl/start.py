"""Reach the daemon, and start one where none runs."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from misoctl.client import Client, NoDaemon
from protocol import errors
from protocol import messages as m
from protocol.errors import Failure
from protocol.paths import Paths, lock_holder, make_directories, make_private

START_S = 30.0  # a cold disk, or a daemon that drains first; 0.3 s is usual
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


def _start(paths: Paths, tell: Tell) -> Client:
    tell("starting misod")
    deadline_s = time.monotonic() + START_S
    child, offset = None, 0
    while time.monotonic() < deadline_s:
        if (client := _try_connect(paths)) is not None:
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


def _spawn(paths: Paths) -> tuple[subprocess.Popen, int]:
    """A detached misod, and the size its stderr file had before."""
    environ = dict(os.environ)
    if environ.get("MISO_HOME"):
        environ["MISO_HOME"] = str(paths.home)  # it may be relative, and misod runs in /
    try:
        make_private(paths.run)
        make_directories(paths.logs)
        _rotate(paths.stderr)
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


def _rotate(path: Path) -> None:
    """The last words of many daemons would grow without end: one older file is kept."""
    if path.exists() and path.stat().st_size > MAX_STDERR_BYTES:
        path.replace(path.with_suffix(".stderr.1"))


def _died(paths: Paths, code: int, offset: int) -> Failure:
    """With misod's own line, which it wrote after `offset` of the file its stderr goes to."""
    said = paths.stderr.read_bytes()[offset:].decode(errors="replace").strip().splitlines()
    if code == errors.FAILED or code < 0:  # no refusal of its own: Python or the system ended it
        why = said[-1] if said else f"signal {-code}" if code < 0 else "no reason given"
        return Failure(errors.SOFTWARE, f"cannot start misod: {why}", f"see {paths.stderr}")
    return Failure(
        code, f"cannot start misod: {said[-1].removeprefix('misod: ') if said else f'it exited with {code}'}"
    )
