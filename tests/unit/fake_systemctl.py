"""A `systemctl --user` with one unit, whose program it runs. FAKE_SYSTEMD is its directory; `calls` is kept there."""

import os
import shlex
import subprocess
import sys
from pathlib import Path

import psutil

HERE = Path(os.environ["FAKE_SYSTEMD"])
UNIT, PID = Path(os.environ["XDG_CONFIG_HOME"]) / "systemd" / "user" / "misod.service", HERE / "pid"


def show() -> None:
    pid = PID.read_text() if PID.exists() else "0"
    if pid != "0" and not alive(int(pid)):
        pid = "0"
    print(f"LoadState={'loaded' if UNIT.exists() else 'not-found'}")
    print(f"ActiveState={'active' if pid != '0' else 'inactive'}\nMainPID={pid}\nExecMainStatus=0")


def alive(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def start() -> None:
    stop()
    said = [line.split("=", 1) for line in UNIT.read_text().splitlines() if "=" in line]
    environ = dict(shlex.split(value)[0].split("=", 1) for name, value in said if name == "Environment")
    environ |= {name: os.environ[name] for name in ["PYTHONPATH"] if name in os.environ}  # a tree that is not installed
    (command,) = [shlex.split(value) for name, value in said if name == "ExecStart"]
    (file,) = [value.removeprefix("append:") for name, value in said if name == "StandardError"]
    with open(file, "ab") as stderr:
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "start_new_session": True}
        child = subprocess.Popen(command, env=environ, cwd="/", stderr=stderr, **quiet)
    PID.write_text(str(child.pid))


def stop() -> None:
    if PID.exists():
        if alive(int(PID.read_text())):
            os.kill(int(PID.read_text()), 15)
        PID.unlink()


with (HERE / "calls").open("a") as calls:
    print(*sys.argv[2:], file=calls)
verb = sys.argv[2]
if verb == "show":
    show()
elif verb == "restart":
    start()
elif verb == "disable":
    stop()
    sys.exit(not UNIT.exists())
