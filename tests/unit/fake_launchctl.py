"""A launchctl with one job. FAKE_LAUNCHD is its directory:

plan.json   {verb: [[exit code, what it says, "load" or ""], ...]}: answers in turn, before it behaves of itself
lingers     how often `print` still knows the job after a bootout; as long as it ends
spawn       if there, a loaded job's program is run
calls       each command line, kept for the test
"""

import json
import os
import sys
from pathlib import Path

HERE = Path(os.environ["FAKE_LAUNCHD"])
JOB, PLAN = HERE / "job.json", HERE / "plan.json"


def main(verb: str, *arguments: str) -> None:
    with (HERE / "calls").open("a") as calls:
        print(verb, *arguments, file=calls)
    plan = json.loads(PLAN.read_text()) if PLAN.exists() else {}
    if plan.get(verb):
        code, says, effect = plan[verb].pop(0)
        PLAN.write_text(json.dumps(plan))
        if effect == "load":
            load(arguments[-1])
        leave(code, says)
    VERBS[verb](*arguments)


def leave(code: int, says: str = "") -> None:
    print(says, file=sys.stderr)
    sys.exit(code)


def job() -> dict | None:
    return json.loads(JOB.read_text()) if JOB.exists() else None


def load(file: str) -> None:
    JOB.write_text(json.dumps({"file": file, "pid": start(file), "ending": -1}))


def start(file: str) -> int:
    if not (HERE / "spawn").exists():
        return 4242
    import plistlib
    import subprocess

    told = plistlib.loads(Path(file).read_bytes())
    with open(told["StandardErrorPath"], "ab") as stderr:
        return subprocess.Popen(
            told["ProgramArguments"],
            env=told["EnvironmentVariables"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            umask=told["Umask"],
        ).pid


def print_job(_target: str) -> None:
    found = job()
    if found and found["ending"] == 0:
        JOB.unlink()
        found = None
    if not found:
        leave(113, 'Could not find service "miso.misod" in domain for user gui: 501')
    if found["ending"] > 0:
        JOB.write_text(json.dumps(found | {"ending": found["ending"] - 1}))
    state, pid = "running" if found["ending"] < 0 else "SIGTERMed", f"\n\tpid = {found['pid']}"
    if (HERE / "spawn").exists() and not alive(found["pid"]):
        state, pid = "not running", ""
    print(f"gui/501/miso.misod = {{\n\tactive count = 1\n\tstate = {state}\n\n\tprogram = x\n\truns = 1{pid}")
    print("\tlast exit code = (never exited)\n\tendpoints = {\n\t\tstate = no\n\t}\n}")


def alive(pid: int) -> bool:
    import psutil

    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


def bootout(_target: str) -> None:
    if not (found := job()):
        leave(3, "Boot-out failed: 3: No such process")
    if (HERE / "spawn").exists() and alive(found["pid"]):
        os.kill(found["pid"], 15)
    lingers = HERE / "lingers"
    JOB.write_text(json.dumps(found | {"ending": int(lingers.read_text()) if lingers.exists() else 0}))


def enable(_target: str) -> None:
    (HERE / "disabled").unlink(missing_ok=True)


def bootstrap(_domain: str, file: str) -> None:
    if (HERE / "disabled").exists():
        leave(119, f"{file}: Service is disabled\nBootstrap failed: 119: Service is disabled")
    if job():
        leave(5, "Bootstrap failed: 5: Input/output error\nTry re-running the command as root for richer errors.")
    load(file)


def kickstart(*arguments: str) -> None:
    if not (found := job()):
        leave(113, 'Could not find service "miso.misod" in domain for user gui: 501')
    if "-k" in arguments:
        load(found["file"])


VERBS = {"print": print_job, "bootout": bootout, "enable": enable, "bootstrap": bootstrap, "kickstart": kickstart}

if __name__ == "__main__":
    main(*sys.argv[1:])
