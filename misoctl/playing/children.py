"""Child processes that play, and one that sees to it that none outlives us."""

import os
import signal
import subprocess

from protocol import errors
from protocol.errors import Failure

STOP_S = 2.0
# Reads the group to kill, a line each, until our end of the pipe closes: SIGKILL leaves us no word of our own.
WATCH = """
while read -r group; do last=$group; done
[ -z "$last" ] || kill -s KILL -- "-$last" 2>/dev/null
[ -z "$1" ] || /bin/rm -rf -- "$1"
"""


def start_program(command: list[str], env: dict[str, str] | None = None, **streams) -> subprocess.Popen:
    """In a session of its own: Ctrl-C is ours to handle. Its standard output is closed to it: ours is for data."""
    environ = os.environ | env if env else None
    try:
        return subprocess.Popen(
            command, env=environ, stdout=subprocess.DEVNULL, start_new_session=True, bufsize=0, **streams
        )
    except OSError as error:
        raise Failure(errors.NO_PROGRAM, f"cannot run {command[0]}: {error.strerror}", "use -o FILE") from None


def kill_group(child: subprocess.Popen) -> None:
    """Silence at once: the child and whatever it started. Of one that was waited for the number may be another's."""
    if child.returncode is not None:
        return
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=STOP_S)
    except (ProcessLookupError, PermissionError):  # gone; macOS says EPERM of a zombie
        pass
    except subprocess.TimeoutExpired:  # stuck in a driver: it dies when that returns
        pass


class Watcher:
    """Once we are gone, however that was: kills the child it last heard of, and removes `directory`."""

    def __init__(self, directory: str = ""):
        command = ["/bin/sh", "-c", WATCH, "sh", directory]
        self._shell = start_program(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def watch(self, child: subprocess.Popen) -> None:
        self._write(b"%d\n" % child.pid)

    def forget(self) -> None:
        """That child has ended: another may get its number."""
        self._write(b"\n")

    def close(self) -> None:
        self.forget()
        self._shell.stdin.close()
        self._shell.wait()

    def _write(self, line: bytes) -> None:
        try:
            self._shell.stdin.write(line)
        except BrokenPipeError:  # somebody killed it: the player can still be heard
            pass
