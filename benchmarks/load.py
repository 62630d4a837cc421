"""How long a model takes to load, and how much memory at most.

  python -m benchmarks.load [--model NAME] [--rounds N] [--json FILE] [--plot FILE]

Each load is a process of its own, from files that the system has read before: imports, then open_engine as the daemon
calls it, warm-up included, then one short sentence to the first sound. benchmarks.full_size has the 8B's own.
"""

import json
import resource
import subprocess
import sys
import time

from benchmarks.figures import arguments, in_turn, keep, show
from misod.engine import Say, model_directory, open_engine
from protocol.paths import find_paths

RSS_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


def load_once(model: str) -> dict[str, float]:
    directory = model_directory(model, find_paths().models)
    began_s = time.perf_counter()
    engine = open_engine(directory, max_rows=8)
    loaded_s = time.perf_counter()
    row = engine.prefill(Say(text="It is done.", seed=1))
    while not len(engine.step([row])[0].pcm):
        pass
    heard_s, memory = time.perf_counter(), engine.memory()
    return {
        "load, ms": (loaded_s - began_s) * 1e3,
        "then to the first sound, ms": (heard_s - loaded_s) * 1e3,
        "held by MLX, MB": memory.active_bytes / 1e6,
        "at most, MB": memory.peak_bytes / 1e6,
        "resident at most, MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * RSS_UNIT / 1e6,
    }


def main() -> None:
    p = arguments(__doc__, rounds=5)
    p.add_argument("--once", action="store_true", help="In this process, as JSON.")
    a = p.parse_args()
    if a.once:
        print(json.dumps(load_once(a.model)))
        return
    loads: list[dict[str, float]] = []

    def process_ms() -> float:
        began_s = time.perf_counter()
        command = [sys.executable, "-m", "benchmarks.load", "--once", "--model", a.model]
        done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
        loads.append(json.loads(done.stdout))
        return (time.perf_counter() - began_s) * 1e3

    found = in_turn(a.rounds, {"process, ms": process_ms})
    found |= {name: [load[name] for load in loads[1:]] for name in loads[0]}
    show(found, "")
    keep(a, found, "", "ms or MB")


if __name__ == "__main__":
    main()
