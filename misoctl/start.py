"""Reach the daemon, and start one where none runs."""

import os
import subprocess
import sys
import time
from collections.abc import Callable

from misoctl.client import Client, NoDaemon
from misoctl.failure import Failure
from protocol import errors
from protocol import messages as m
from protocol.paths import Paths, make_private

START_S = 20.0  # a cold disk; 0.3 s is usual

Tell = Callable[[str], None]


def connect(paths: Paths, may_start: bool, tell: Tell) -> Client:
    """A client of the running daemon, or of one started now. Raises Failure. Warns once of a minor skew."""
    try:
        client = Client(paths)
    except NoDaemon:
        if not may_start:
            raise
        client = _start(paths, tell)
    if client.welcome.minor != m.VERSION[1]:
        theirs = f"{client.welcome.major}.{client.welcome.minor}"
        tell(f"misod speaks protocol {theirs}, misoctl {m.VERSION[0]}.{m.VERSION[1]}: restart it soon")
    return client


def _start(paths: Paths, tell: Tell) -> Client:
    tell("starting misod")
    make_private(paths.run)  # and the home above it, before the logs: their parents would be left open to others
    child, offset = _spawn(paths)
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        try:
            return Client(paths)
        except NoDaemon:
            code = child.poll()
            if code == errors.TRY_AGAIN:  # another client's daemon was first and will answer soon, or is on its way out
                time.sleep(0.1)
                child, offset = _spawn(paths)
            elif code is not None:
                raise _died(paths, code, offset) from None
            time.sleep(0.02)
    raise Failure(errors.UNAVAILABLE, f"misod did not answer within {START_S:g} s", f"see {paths.log}")


def _spawn(paths: Paths) -> tuple[subprocess.Popen, int]:
    """A detached misod, and the size its stderr file had before."""
    environ = dict(os.environ)
    if environ.get("MISO_HOME"):
        environ["MISO_HOME"] = str(paths.home)  # it may be relative, and misod runs in /
    try:
        paths.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
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
        message = f"cannot start misod: {error.filename}: {error.strerror}"
        raise Failure(errors.CANT_CREATE, message, "set MISO_HOME to a directory you own") from None
    return child, offset


def _died(paths: Paths, code: int, offset: int) -> Failure:
    """With misod's own line, which it wrote after `offset` of the file its stderr goes to."""
    said = paths.stderr.read_bytes()[offset:].decode(errors="replace").strip().splitlines()
    line = said[-1].removeprefix("misod: ") if said else f"it exited with {code}"
    return Failure(code if code > 0 else errors.SOFTWARE, f"cannot start misod: {line}")
