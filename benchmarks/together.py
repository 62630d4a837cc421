"""So many `misoctl say` at once through a real daemon: processor time, and how evenly their frames come.

  python -m benchmarks.together [--rows N] [--seconds S] [--rounds N] [--json FILE] [--plot FILE]

The daemon's and the clients' processor seconds a second of speech, times the rows: the cores that all need to speak in
real time. And of the frames of each client, as they leave it: the factor of its speech, how long after the frame
before they came, and how long after the sound before them was over, were it played from the first one on. Only the
processor time means anything on a machine that others use.
"""

import resource
import selectors
import subprocess
import sys
import time

import numpy as np
import psutil

from benchmarks.figures import arguments, keep, own_daemon, show
from misoctl.client import Client
from protocol.paths import find_paths

TEXT = "The quick brown fox jumps over the lazy dog near the old river bank, and then it goes home to sleep. "
FRAME_BYTES, FRAME_S, S16 = 3840, 0.08, 2
RATE_HZ = FRAME_BYTES / S16 / FRAME_S


def say_together(rows: int, seconds: float) -> list[list[tuple[float, int]]]:
    """Of each client, when how many bytes came."""
    command = [sys.executable, "-m", "misoctl", "say", "--raw", "-o", "-", "--max-seconds", str(seconds), TEXT * 20]
    ready, heard = selectors.DefaultSelector(), [[] for _ in range(rows)]
    for own in heard:
        child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)
        ready.register(child.stdout, selectors.EVENT_READ, (child, own))
    while ready.get_map():
        for key, _ in ready.select():
            data, (child, own) = key.fileobj.read(FRAME_BYTES), key.data
            own.append((time.monotonic(), len(data)))
            if not data:
                ready.unregister(key.fileobj)
                key.fileobj.close()
                child.wait()
    return [own[:-1] for own in heard]


def late_s(heard: list[tuple[float, int]]) -> list[float]:
    """Of each frame: how long a player that began with the first is silent before it."""
    late, due_s = [], heard[0][0]
    for at_s, size in heard:
        late.append(max(0.0, at_s - due_s))
        due_s = max(due_s, at_s) + size / S16 / RATE_HZ
    return late


def processor_s(of: psutil.Process) -> float:
    times = of.cpu_times()
    return times.user + times.system


def clients_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def measure(daemon: psutil.Process, rows: int, seconds: float) -> dict[str, float]:
    before = processor_s(daemon), clients_s()
    heard = say_together(rows, seconds)
    spoken_s = sum(size for own in heard for _, size in own) / S16 / RATE_HZ
    after = processor_s(daemon), clients_s()
    gaps_s = np.concatenate([np.diff([at for at, _ in own]) for own in heard])
    factors = [(own[-1][0] - own[0][0]) / (seconds - FRAME_S) for own in heard]
    return {
        "daemon, cores": (after[0] - before[0]) / spoken_s * rows,
        "clients, cores": (after[1] - before[1]) / spoken_s * rows,
        "real-time factor, slowest": max(factors),
        "gap p50, ms": np.percentile(gaps_s, 50) * 1e3,
        "gap p99, ms": np.percentile(gaps_s, 99) * 1e3,
        "late p99, ms": np.percentile([late for own in heard for late in late_s(own)], 99) * 1e3,
    }


def main() -> None:
    p = arguments(__doc__, rounds=3)
    p.add_argument("--rows", type=int, default=8)
    p.add_argument("--seconds", type=float, default=10.0, help="Of speech each.")
    a = p.parse_args()
    with own_daemon(a.model):
        with Client(find_paths()) as client:
            daemon = psutil.Process(client.welcome.pid)
        measure(daemon, 1, 1.0)
        rounds = [measure(daemon, a.rows, a.seconds) for _ in range(a.rounds)]
    found = {name: [each[name] for each in rounds] for name in rounds[0]}
    show(found, "")
    keep(a, found, "", "cores, factor or ms")


if __name__ == "__main__":
    main()
