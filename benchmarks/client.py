"""What a `misoctl` process adds to the first sound, and where that goes.

  python -m benchmarks.client [--rounds N] [--json FILE] [--plot FILE]

`misoctl say -o -` is timed from its start to the first sample on its standard output. In turn with it, a connected
client says the same with the same seed: what the daemon itself took (the receipt's ttfa_ms) is subtracted, round by
round. Where it goes: processes that each end one step later, in processor time, which what else runs on the machine
disturbs less; the differences are what each step adds.
"""

import os
import subprocess
import sys
import time
from statistics import median

from benchmarks.figures import arguments, in_turn, keep, own_daemon, show
from misoctl.client import Client
from misoctl.sink import HEADER_BYTES
from protocol import messages as m
from protocol.paths import find_paths

TEXT = "It is done."
COMMAND_LINE = "import gc; gc.set_threshold(100_000); import misoctl.cli, misoctl.say"
IMPORTS = "import misoctl.saying, misoctl.client, protocol.paths"
STEPS = {
    "Python": "pass",
    "click": "import click",
    "the command line": COMMAND_LINE,
    "what say imports": f"{COMMAND_LINE}; {IMPORTS}",
    "zmq": f"{COMMAND_LINE}; {IMPORTS}; import zmq",
    "connect and hello": f"{COMMAND_LINE}; {IMPORTS}; misoctl.client.Client(protocol.paths.find_paths()).close()",
}


def processor_ms(code: str) -> float:
    """Of a process that ends at once: nothing is cleaned up."""
    process = subprocess.Popen([sys.executable, "-c", f"{code}; import os; os._exit(0)"])
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{code}: exit code {process.returncode}")
    return (used.ru_utime + used.ru_stime) * 1e3


def process_ms() -> float:
    """From its start to the first sample; then it is read to its end."""
    command = [sys.executable, "-m", "misoctl", "say", "-q", "--seed", "1", "-o", "-", TEXT]
    began_s = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        process.stdout.read(HEADER_BYTES + 2)
        heard_s = time.perf_counter()
        process.stdout.read()
    if process.returncode:
        raise SystemExit(f"misoctl say exited with {process.returncode}")
    return (heard_s - began_s) * 1e3


def daemon_ms(client: Client) -> float:
    [done] = [message for message in client.say(text=TEXT, seed=1) if isinstance(message, m.Done)]
    return done.ttfa_ms


def main() -> None:
    a = arguments(__doc__, rounds=15).parse_args()
    with own_daemon(a.model), Client(find_paths()) as client:
        cases = {"the daemon": lambda: daemon_ms(client), "misoctl say": process_ms}
        found = in_turn(a.rounds, cases | {name: lambda code=code: processor_ms(code) for name, code in STEPS.items()})
    show({name: found[name] for name in cases}, "ms")
    added = [process - daemon for daemon, process in zip(found["the daemon"], found["misoctl say"], strict=True)]
    print(f"a process adds {median(added):.0f} ms ({min(added):.0f} to {max(added):.0f})")
    print(f"of the processor, up to the daemon's welcome: {median(found[[*STEPS][-1]]):.0f} ms")
    before = [0.0] * a.rounds
    for name in STEPS:
        print(f"  {name}: {median(x - y for x, y in zip(found[name], before, strict=True)):.0f} ms")
        before = found[name]
    keep(a, found, "case", "ms")


if __name__ == "__main__":
    main()
