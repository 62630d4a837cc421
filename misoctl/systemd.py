"""Linux's login agent: a user unit of systemd."""

import os
import subprocess
from pathlib import Path

from misoctl.agent import Agent, State, program, run
from protocol import errors
from protocol.errors import Failure
from protocol.paths import Paths

UNIT = "misod.service"
FINAL = (
    errors.OS_LIMIT,
    errors.CANT_CREATE,
    errors.IO_ERROR,
    errors.TRY_AGAIN,
    errors.NO_PERMISSION,
    errors.BAD_CONFIG,
)  # refusals of a start: another would be no better

TEXT = """\
[Unit]
Description=miso, the speech daemon

[Service]
Type=exec
ExecStart={program}
{environment}Restart=on-failure
RestartSec=10
RestartPreventExitStatus={final}
KillMode=mixed
TimeoutStopSec=20
UMask=0077
LimitNOFILE=16384:524288
StandardError=append:{stderr}

[Install]
WantedBy=default.target
"""


class Systemd(Agent):
    name = "user unit"

    def __init__(self, paths: Paths, config: Path, executable: str, environ: dict[str, str]):
        """`config`: XDG_CONFIG_HOME; `executable`: the Python that has misod."""
        self.paths, self.file = paths, config / "systemd" / "user" / UNIT
        self._program, self._environ = program(executable), environ

    def render(self) -> bytes:
        command = " ".join(_quoted(part).replace("$", "$$") for part in self._program)
        environment = "".join(f"Environment={_quoted(f'{k}={v}')}\n" for k, v in self._environ.items())
        final = " ".join(map(str, FINAL))
        stderr = str(self.paths.stderr).replace("%", "%%")
        return os.fsencode(TEXT.format(program=command, environment=environment, final=final, stderr=stderr))

    def state(self) -> State:
        wanted = ("LoadState", "ActiveState", "MainPID", "ExecMainStatus")
        said = self._systemctl("show", *(f"--property={name}" for name in wanted), UNIT).stdout
        found = dict(line.split("=", 1) for line in said.splitlines() if "=" in line)
        loaded, pid = found.get("LoadState") == "loaded", int(found.get("MainPID") or 0)
        last = found.get("ExecMainStatus") if loaded and not pid else None
        return State(loaded, found.get("ActiveState", "unknown"), pid or None, last)

    def load(self) -> None:
        self._systemctl("daemon-reload")
        self._systemctl("enable", UNIT)
        self._systemctl("reset-failed", UNIT, may_fail=True)  # the rate limit counts earlier ones
        self._systemctl("restart", UNIT)

    def remove(self) -> None:
        self._systemctl("disable", "--now", UNIT, may_fail=not self.file.exists())
        self.file.unlink(missing_ok=True)
        self._systemctl("daemon-reload")

    def _systemctl(self, *arguments: str, may_fail: bool = False) -> subprocess.CompletedProcess:
        said = run("systemctl", "--user", *arguments)
        why = (said.stderr.strip().splitlines() or [f"exit {said.returncode}"])[0]
        if "to connect to" in why:  # "Failed to connect to bus: No medium found", and its variants
            cure = f"log in as this user, not by su or sudo; or set XDG_RUNTIME_DIR=/run/user/{os.getuid()}"
            raise Failure(errors.OS_LIMIT, f"no systemd of this user answers: {why}", cure)
        if said.returncode and not may_fail:
            raise Failure(errors.OS_LIMIT, f"systemctl: {why}", f"`systemctl --user status {UNIT}` says more")
        return said


def _quoted(word: str) -> str:
    """One word of a unit: in quotes, with no specifier in it."""
    for plain, escaped in (("\\", "\\\\"), ('"', '\\"'), ("\n", "\\n"), ("%", "%%")):
        word = word.replace(plain, escaped)
    return f'"{word}"'
