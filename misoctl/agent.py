"""What launchd and systemd have in common: one job, misod, that starts with the user's login."""

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from protocol import errors
from protocol.errors import Failure
from protocol.paths import Paths

COMMAND_S = 60.0  # systemctl waits for the drain


@dataclass(frozen=True)
class State:
    """`loaded`: the system knows the job; `word`: its own word for what it does."""

    loaded: bool
    word: str
    pid: int | None = None
    last_exit: str | None = None


class Agent(Protocol):
    name: str  # what it is called there
    file: Path
    paths: Paths

    def render(self) -> bytes:
        """What `file` is to hold."""

    def state(self) -> State: ...

    def load(self) -> None:
        """Start what `file` says, now and at each login, in place of what ran. Raises Failure."""

    def remove(self) -> None:
        """Stop it, and take `file` away. Nothing to do is no error. Raises Failure."""


def program(executable: str) -> list[str]:
    """The daemon's command line, all of it absolute: a login's PATH is short. -P: not a misod that lies about."""
    return [executable, "-P", "-m", "misod", "serve"]


def run(*command: str) -> subprocess.CompletedProcess:
    """Its exit code, and what it said, as text. Raises Failure where it cannot be run."""
    try:
        return subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COMMAND_S, check=False
        )
    except FileNotFoundError:
        cure = "misoctl starts misod when it is needed, without it"
        raise Failure(errors.OS_LIMIT, f"there is no {command[0]} here", cure) from None
    except subprocess.TimeoutExpired:
        message = f"`{' '.join(command)}` did not end within {COMMAND_S:g} s"
        raise Failure(errors.OS_LIMIT, message, "try again") from None
