"""`misoctl service`: misod starts with the login. launchd.py and systemd.py know how; here is what a person asks."""

import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from misoctl.options import json_option, quiet_option
from misoctl.talk import hush, tell
from protocol import errors
from protocol.errors import Failure
from protocol.exits import Verbs

if TYPE_CHECKING:  # subprocess's 10 ms, which --help goes without
    from misoctl.agent import Agent

READY_S = 30.0  # as long as misoctl waits for one of its own


def agent() -> "Agent":
    """This system's, for this user and this misoctl."""
    from protocol.paths import find_paths

    paths = find_paths()
    environ = {"MISO_HOME": str(paths.home)} if os.environ.get("MISO_HOME") else {}
    if sys.platform == "darwin":
        from misoctl.launchd import Launchd

        return Launchd(paths, Path.home(), sys.executable, environ)
    from misoctl.systemd import Systemd

    config = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return Systemd(paths, config, sys.executable, environ)


@click.group(cls=Verbs)
def service() -> None:
    """Start misod when you log in, and again when it fails.

    \b
      misoctl service install
      misoctl service status
      misoctl service logs -f

    A launchd agent on macOS, a user unit of systemd on Linux. Without it misoctl starts misod when it is needed.
    """
    if os.geteuid() == 0 and (sys.platform == "darwin" or "SUDO_UID" in os.environ):
        raise Failure(errors.NO_PERMISSION, "a service belongs to the user who logs in, not to root", "leave sudo out")


@service.command()
@quiet_option
def install(quiet) -> None:
    """Install it and start it, in place of an older one. Done twice, nothing changes.

    \b
      misoctl service install
      MISO_HOME=~/miso misoctl service install
    """
    talk, mine = hush if quiet else tell, agent()
    if _kept(mine) == mine.render() and mine.state().pid:
        talk(f"the {mine.name} is installed and runs, pid {mine.state().pid}")
        return
    _warn_of_variables()
    _write(mine.file, mine.render())
    _start(mine, talk)


@service.command()
@quiet_option
def uninstall(quiet) -> None:
    """Stop it, once what it speaks is finished, and remove it.

    \b
      misoctl service uninstall
    """
    talk, mine = hush if quiet else tell, agent()
    there = mine.file.exists()
    mine.remove()
    talk(f"the {mine.name} is removed" if there else f"no {mine.name} was installed")


@service.command()
@quiet_option
def restart(quiet) -> None:
    """Stop misod, once what it speaks is finished, and start it again: it reads its settings anew.

    \b
      misoctl config set max_rows 4 && misoctl service restart
    """
    mine = agent()
    if not mine.file.exists():
        raise Failure(errors.UNAVAILABLE, f"no {mine.name} is installed", "`misoctl service install` makes one")
    _start(mine, hush if quiet else tell)


@service.command()
@json_option
def status(as_json) -> None:
    """Whether it is installed and runs; exit 69 where it does not.

    \b
      misoctl service status
      misoctl service status --json | jq .pid
    """
    mine = agent()
    kept, now = _kept(mine), mine.state()
    told = {
        "installed": kept is not None,
        "current": kept == mine.render(),
        "loaded": now.loaded,
        "state": now.word,
        "pid": now.pid,
        "last_exit": now.last_exit,
        "file": str(mine.file),
        "log": str(mine.paths.log),
    }
    click.echo(json.dumps(told) if as_json else "\n".join(_lines(mine.name, told)))
    if not now.pid:
        sys.exit(errors.UNAVAILABLE)


def _lines(name: str, told: dict) -> Iterator[str]:
    doing = told["state"]
    if told["pid"]:
        doing += f", pid {told['pid']}"
    elif told["last_exit"]:
        doing += f", last exit {told['last_exit']}"
    yield f"{name:<12} {told['file'] if told['installed'] else 'not installed'}"
    if told["installed"] and not told["current"]:
        yield f"{'':<12} not as this misoctl would make it: `misoctl service install` renews it"
    yield f"{'state':<12} {doing}"
    yield f"{'log':<12} {told['log']}"


@service.command()
@click.option("-n", "--lines", type=click.IntRange(0, 100_000), default=50, show_default=True, help="How many.")
@click.option("-f", "--follow", is_flag=True, help="Go on, until Ctrl-C.")
def logs(lines, follow) -> None:
    """The last lines of misod's log, and its last words where it died.

    \b
      misoctl service logs
      misoctl service logs -n 5 -f
    """
    from protocol.paths import find_paths

    paths = find_paths()
    files = [str(file) for file in (paths.stderr, paths.log) if file.exists() and file.stat().st_size]
    if not files:
        raise Failure(errors.NO_INPUT, f"{paths.log} is not there yet", "misod makes it when it starts")
    try:
        os.execvp("tail", ["tail", "-n", str(lines), *["-F"] * follow, *files])
    except OSError as error:
        raise Failure(errors.NO_PROGRAM, f"tail: {error.strerror}", f"read {files[-1]}") from None


def _start(mine: "Agent", talk) -> None:
    """Through the agent, in place of any that runs; back once it answers."""
    from misoctl.start import prepare, stop_daemon
    from protocol.paths import lock_holder

    if lock_holder(mine.paths.lock) is not None:
        stop_daemon(mine.paths, hush)  # it would hold the lock
    prepare(mine.paths)
    offset = mine.paths.stderr.stat().st_size
    mine.load()
    pid = _answering(mine, offset)
    if pid != mine.state().pid:
        raise Failure(errors.TRY_AGAIN, f"a misod that somebody else started, pid {pid}, was there first", "try again")
    talk(f"misod runs as a {mine.name}, pid {pid}; now and at each login")


def _answering(mine: "Agent", offset: int) -> int:
    """The pid of the misod that answers, within READY_S. `offset`: where in misod.stderr its words begin."""
    from misoctl.client import Client, NoDaemon
    from misoctl.start import said_since

    deadline_s = time.monotonic() + READY_S
    while True:
        try:
            with Client(mine.paths) as client:
                return client.welcome.pid
        except NoDaemon:
            said = said_since(mine.paths, offset)
            if said and mine.state().pid is None:
                why = said[-1].removeprefix("misod: ")
                raise Failure(errors.UNAVAILABLE, f"misod does not start: {why}") from None
            if time.monotonic() > deadline_s:
                message = f"misod did not answer within {READY_S:g} s"
                raise Failure(errors.UNAVAILABLE, message, "`misoctl service logs` says why") from None
        time.sleep(0.05)


def _kept(mine: "Agent") -> bytes | None:
    try:
        return mine.file.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise Failure(errors.NO_PERMISSION, f"{mine.file}: {error.strerror}", "make it yours") from None


def _write(file: Path, data: bytes) -> None:
    """Whole or not at all. launchd takes no file that others may write."""
    partial = file.with_name(f".{file.name}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_bytes(data)
        partial.chmod(0o644)
        partial.replace(file)
    except OSError as error:
        cure = f"`ls -ld '{file.parent}'`: it must be yours to write"
        raise Failure(errors.CANT_CREATE, f"{file}: {error.strerror}", cure) from None


def _warn_of_variables() -> None:
    """Those of a shell do not reach a login (ollama #1501)."""
    for name in sorted(os.environ):
        if name.startswith("MISO_") and name not in ("MISO_HOME", "MISO_TRANSCRIBER_MODEL"):
            key = name.removeprefix("MISO_").lower()
            tell(f"{name} of this shell does not reach the service: `misoctl config set {key} {os.environ[name]}`")
