"""What a check says, and what it may look at. A check is a function from a Site to one Finding."""

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from misod.doctor.probe import Probe, ProbeFailed, run_probe
from protocol.paths import Paths

OK, WARN, FAIL = "ok", "warn", "fail"
COMMAND_S = 5.0


@dataclass(frozen=True)
class Finding:
    """`name` and `detail` are a line each; `cure` says what to do, and is there unless the state is ok."""

    name: str
    state: str
    detail: str
    cure: str = ""


def ok(name: str, detail: str) -> Finding:
    return Finding(name, OK, detail)


def warn(name: str, detail: str, cure: str) -> Finding:
    return Finding(name, WARN, detail, cure)


def fail(name: str, detail: str, cure: str) -> Finding:
    return Finding(name, FAIL, detail, cure)


@dataclass(frozen=True)
class Site:
    """The machine and the home that are looked at. `platform` is sys.platform, `machine` is platform.machine()."""

    paths: Paths
    environ: Mapping[str, str]
    platform: str
    machine: str

    @property
    def mac(self) -> bool:
        return self.platform == "darwin"

    @cached_property
    def probe(self) -> Probe | ProbeFailed:
        """MLX, tried once, in a child of its own."""
        try:
            return run_probe()
        except ProbeFailed as error:
            return error


def run(*command: str) -> str | None:
    """What `command` prints, stripped; None where it is not there, fails, or takes too long."""
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()
