"""Reach the daemon, and start one where none runs."""

import subprocess
import sys
import time
from collections.abc import Callable

from misoctl.client import Client, NoDaemon
from misoctl.failure import Failure
from protocol import errors
from protocol import messages as m
from protocol.paths import Paths

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
    try:
        paths.logs.mkdir(parents=True, exist_ok=True, mode=0o700)
        offset = paths.stderr.stat().st_size if paths.stderr.exists() else 0
        with paths.stderr.open("ab") as stderr:
            child = subprocess.Popen(
                [sys.executable, "-m", "misod", "serve"],
                stdin=subprocess.DEVNULL,
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
                cwd="/",
            )
    except OSError as error:
        message = f"cannot start misod: {error.filename}: {error.strerror}"
        raise Failure(errors.CANT_CREATE, message, "set MISO_HOME to a directory you own") from None
    deadline_s = time.monotonic() + START_S
    while time.monotonic() < deadline_s:
        try:
            return Client(paths)
        except NoDaemon:
            code = child.poll()
            if code not in (None, errors.TRY_AGAIN):  # 75: another client's daemon was first, and will answer soon
                raise _died(paths, code, offset) from None
            time.sleep(0.02)
    raise Failure(errors.UNAVAILABLE, f"misod did not answer within {START_S:g} s", f"see {paths.log}")


def _died(paths: Paths, code: int, offset: int) -> Failure:
    """With misod's own line, which it wrote after `offset` of the file its stderr goes to."""
    said = paths.stderr.read_bytes()[offset:].decode(errors="replace").strip().splitlines()
    line = said[-1].removeprefix("misod: ") if said else f"it exited with {code}"
    return Failure(code if code > 0 else errors.SOFTWARE, f"cannot start misod: {line}")
