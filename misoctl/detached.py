"""--no-wait: misoctl once more, in a session of its own. It speaks on while the first returns.

`python -m misoctl.detached DESCRIPTOR ARGUMENTS`: a byte into the descriptor once the request is accepted.
"""

import os
import signal
import sys
from contextlib import suppress

import click

from protocol import errors

waiting: list[int] = []  # in the other misoctl: the descriptor, until the byte is sent


def leave(to_stdout: bool) -> None:
    """In the first misoctl: does not return. What goes wrong before it is accepted the other tells, on our stderr."""
    if waiting:
        return
    if to_stdout:
        raise click.UsageError("--no-wait cannot write to standard output: give -o a file, or leave it out")
    import subprocess  # 2 ms, which no other `say` needs

    ours, theirs = os.pipe()
    command = [sys.executable, "-P", "-m", "misoctl.detached", str(theirs), *sys.argv[1:]]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, pass_fds=[theirs], start_new_session=True)
    os.close(theirs)
    try:
        code = errors.OK if os.read(ours, 1) else child.wait()
    except BaseException:  # a signal: the speech is not wanted any more
        with suppress(ProcessLookupError, PermissionError):  # gone; macOS says EPERM of a zombie
            os.killpg(child.pid, signal.SIGTERM)
        raise
    sys.exit(code if code >= 0 else errors.SIGNALLED - code)


def accepted() -> None:
    """In the other one: from now on nobody listens, and no terminal is held."""
    if not waiting:
        return
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 2):
        os.dup2(null, stream)
    os.close(null)
    os.write(waiting[0], b"1")
    os.close(waiting.pop())


def main() -> None:
    """As misoctl.cli.main."""
    from misoctl import cli
    from misoctl.detached import waiting  # of the module that `say` imports: this one is __main__

    waiting.append(int(sys.argv.pop(1)))
    cli.main()


if __name__ == "__main__":
    main()
