"""macOS's login agent: its property list, and what launchctl is asked. The codes are its own (`launchctl error N`)."""

import os
import plistlib
import re
import subprocess
import time
from pathlib import Path

from misoctl.agent import Agent, State, program, run
from misoctl.talk import tell
from protocol import errors
from protocol.errors import Failure
from protocol.paths import AGENT_LABEL, Paths

GONE_S = 30.0  # bootout returns before the job is gone, and one that speaks has EXIT_S
EXIT_S = 20  # misod's drain, and its end
BOOTSTRAP_S = 15.0  # launchd refuses a label for some 5 s after it was last used
AGAIN_S = 0.5
IO_ERROR, ALREADY = 5, 37  # of a label that is still there bootstrap says the one or the other
DISABLED, NO_SUCH_DOMAIN = 119, 125


class Launchd(Agent):
    name = "login agent"

    def __init__(self, paths: Paths, home: Path, executable: str, environ: dict[str, str]):
        """`home`: the user's; `executable`: the Python that has misod."""
        self.paths, self.file = paths, home / "Library" / "LaunchAgents" / f"{AGENT_LABEL}.plist"
        self._program, self._environ = program(executable), environ
        self._domain = f"gui/{os.getuid()}"
        self._job = f"{self._domain}/{AGENT_LABEL}"

    def render(self) -> bytes:
        job = {
            "Label": AGENT_LABEL,
            "ProgramArguments": [*self._program, "--agent"],
            "EnvironmentVariables": {"PATH": "/usr/bin:/bin:/usr/sbin:/sbin", **self._environ},
            "RunAtLoad": True,
            "KeepAlive": {"SuccessfulExit": False},
            "ThrottleInterval": 10,
            "ExitTimeOut": EXIT_S,
            "ProcessType": "Interactive",  # any other slows Metal down, by up to eight times
            "SoftResourceLimits": {"NumberOfFiles": 16384},
            "Umask": 0o077,
            "StandardErrorPath": str(self.paths.stderr),
        }
        return plistlib.dumps(job, sort_keys=False)

    def state(self) -> State:
        said = self._launchctl("print", self._job)
        if said.returncode:
            return State(False, "not loaded")
        found = {name: _field(said.stdout, name) for name in ("state", "pid", "last exit code")}
        pid = int(found["pid"]) if (found["pid"] or "").isdigit() else None
        return State(True, found["state"] or "unknown", pid, found["last exit code"])

    def load(self) -> None:
        """In place of what is loaded: bootout, wait, bootstrap with patience; else kickstart -k."""
        gone = self._unload()
        if gone:
            self._launchctl("enable", self._job)  # once disabled, it stays so whatever is installed
            said = self._bootstrap()
        else:
            tell(f"launchd keeps the {AGENT_LABEL} it has; what is new in it holds from your next login")
        if not gone or self.state().loaded:  # a job loaded so soon may wait for ever for its first start
            force = not gone or said.returncode != 0
            said = self._launchctl("kickstart", *["-k"] * force, self._job)
        if said.returncode not in (0, ALREADY) or not self.state().loaded:
            raise self._refused(said)

    def remove(self) -> None:
        if not self._unload():
            message = f"launchd keeps misod, pid {self.state().pid or 'unknown'}"
            raise Failure(errors.OS_LIMIT, message, "try again when it has spoken")
        self.file.unlink(missing_ok=True)

    def _unload(self) -> bool:
        """Whether launchd has no such job any more: its own answers to bootout (3, 36, 113) are not to be trusted."""
        self._launchctl("bootout", self._job)
        deadline_s = time.monotonic() + GONE_S
        while loaded := self.state().loaded:
            if time.monotonic() > deadline_s:
                break
            time.sleep(AGAIN_S)
        return not loaded

    def _bootstrap(self) -> subprocess.CompletedProcess:
        deadline_s = time.monotonic() + BOOTSTRAP_S
        while True:
            said = self._launchctl("bootstrap", self._domain, str(self.file))
            if said.returncode not in (IO_ERROR, ALREADY) or time.monotonic() > deadline_s:
                return said
            time.sleep(AGAIN_S)

    def _refused(self, said: subprocess.CompletedProcess) -> Failure:
        why = said.stderr.strip().splitlines()  # its second line sends people to sudo, which is no cure
        message = f"launchd did not start misod: {why[0] if why else f'exit {said.returncode}'}"
        if said.returncode == NO_SUCH_DOMAIN:
            cure = "it starts when you log in at the screen; until then misoctl starts misod when it is needed"
        elif said.returncode == DISABLED:
            cure = f"`launchctl enable {self._job}`, or allow it in System Settings, Login Items; then try again"
        else:
            cure = f"`plutil -lint '{self.file}'`; else log out and in"
        return Failure(errors.OS_LIMIT, message, cure)

    def _launchctl(self, *arguments: str) -> subprocess.CompletedProcess:
        return run("launchctl", *arguments)


def _field(said: str, name: str) -> str | None:
    """The first `name = value` of launchctl print: the job's own lines come before those of its parts."""
    found = re.search(rf"^\s*{name} = (.+?)\s*$", said, re.MULTILINE)
    return found[1] if found else None
