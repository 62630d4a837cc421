"""Our engine beside mlx-audio's and csm-mlx's: the same random weights in 4 bits, turn by turn, no codec.

  python -m benchmarks.peers [--contexts 100 500 1500] [--rounds N] [--python PATH]
  python -m benchmarks.peers --full            the 8B's shapes, activations in bf16, context 500: for a GPU
  python -m benchmarks.peers --memory          40 requests of different lengths
  python -m benchmarks.peers --count           primitives a frame, all of the 8B's layers, nothing computed

Small dims and fp32 activations unless --full: MLX's CPU backend emulates bf16. Each engine is a process of its own and
loaded before the first round; in a round each makes --frames frames at each context, one engine after the other. Before
that each makes three greedy frames, which are to be the same codes in all (in bf16, nearly).

The peers need only the files that hold their models, in PATH's environment or in a directory of PYTHONPATH:
  pip install --no-deps mlx-audio mlx-lm git+https://github.com/senstella/csm-mlx
"""

import argparse
import json
import os
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median

import mlx.core as mx

from benchmarks.frame import NO_KERNEL, as_on_a_gpu, narrow, primitives
from benchmarks.peer_engines import ENGINES, SMALL, Missing, random_weights
from misod.weights.dims import MISO_8B

REQUESTS = 40


class Engine:
    """A child process with one engine in it. `ask` sends what to do and reads what came of it."""

    def __init__(self, name: str, python: str, arguments: list[str]):
        self.name = name
        command = [python, "-m", "benchmarks.peers", *arguments, "--child", name]
        paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
        env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
        self._process = subprocess.Popen(command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.first = self._read()

    def ask(self, do: str, **how) -> dict:
        self._process.stdin.write(json.dumps({"do": do} | how) + "\n")
        self._process.stdin.flush()
        return self._read()

    def _read(self) -> dict:
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"{self.name}: the process died")
        return json.loads(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


# ---- in the child


def serve(a: argparse.Namespace) -> None:
    """One JSON line for each line that comes in, and one before the first."""
    began_s = time.perf_counter()
    args = narrow(MISO_8B) if a.count else MISO_8B if a.full else SMALL
    try:
        weights = random_weights(args, mx.bfloat16 if a.full or a.count else mx.float32)
        with as_on_a_gpu() if a.count and a.child == "ours" else nullcontext():  # ours chooses at load
            engine = ENGINES[a.child](weights)
    except Missing as missing:
        print(json.dumps({"missing": str(missing)}), flush=True)
        return
    print(json.dumps({"load_s": time.perf_counter() - began_s, "device": str(mx.default_device())}), flush=True)
    speeches = {}
    does = {"greedy": greedy, "memory": memory, "count": count}
    for line in sys.stdin:
        how = json.loads(line)
        if (what := how.pop("do")) == "time":
            if (context := how["context"]) not in speeches:
                speeches[context] = engine.speech(context)
            answer = {"ms": speeches[context].run(how["frames"])}
        else:
            answer = does[what](engine, **how)
        print(json.dumps(answer), flush=True)


def greedy(engine) -> dict:
    codes = engine.greedy(mx.random.randint(1, 2048, (1, 12, 32), key=mx.random.key(1)), frames=3)
    return {"codes": mx.concatenate(codes).flatten().tolist()}


def count(engine) -> dict:
    speech = engine.speech(2)
    with as_on_a_gpu():
        found = primitives(*engine.build(speech))
    return {"launching": sum(n for kind, n in found.items() if kind not in NO_KERNEL), "all": sum(found.values())}


def memory(engine, longest: int) -> dict:
    """Bytes in use after each request, and at most during one. Each has another length, in positions."""
    mx.clear_cache()
    mx.reset_peak_memory()
    before, after = mx.get_active_memory(), []
    for seed in range(REQUESTS):
        length = longest * (7 * seed % REQUESTS + 1) // REQUESTS
        engine.greedy(mx.random.randint(1, 2048, (1, length, 32), key=mx.random.key(seed)), frames=3)
        after.append(mx.get_active_memory())
    return {"loaded": before, "after": after, "peak": mx.get_peak_memory()}


# ---- in the parent


def started(a: argparse.Namespace) -> list[Engine]:
    """One after the other; who is not installed is told of, and left out."""
    engines = []
    for name in a.engines:
        engine = Engine(name, sys.executable if name == "ours" else a.python, sys.argv[1:])
        if "missing" in engine.first:
            print(f"without {name}: {engine.first['missing']}", file=sys.stderr)
            engine.close()
            continue
        print(f"{name}: loaded in {engine.first['load_s']:.1f} s", file=sys.stderr)
        engines.append(engine)
    if not engines:
        raise SystemExit("none of these engines is here")
    return engines


def timed(engines: list[Engine], a: argparse.Namespace) -> dict:
    codes = {engine.name: engine.ask("greedy")["codes"] for engine in engines}
    first = next(iter(codes.values()))
    alike = {name: sum(x == y for x, y in zip(each, first, strict=True)) / len(first) for name, each in codes.items()}
    for engine in engines:
        for context in a.contexts:
            ms = engine.ask("time", context=context, frames=a.frames)["ms"]
            print(f"warm: {engine.name}, context {context}, {ms:.1f} ms a frame at first", file=sys.stderr, flush=True)
    rounds, began_s = [], time.monotonic()
    while len(rounds) < a.rounds and (not rounds or time.monotonic() - began_s < a.seconds):
        one = {context: {} for context in a.contexts}
        for context in a.contexts:
            for engine in engines:
                one[context][engine.name] = engine.ask("time", context=context, frames=a.frames)["ms"]
        rounds.append(one)
    return {"alike": alike, "rounds": rounds}


def show_times(found: dict, a: argparse.Namespace) -> None:
    print("greedy codes as the first's:", ", ".join(f"{name} {x:.0%}" for name, x in found["alike"].items()))
    rounds, names = found["rounds"], list(found["alike"])
    print(f"{len(rounds)} rounds of {a.frames} frames; medians, and the median ratio to {names[0]}'s of the same round")
    print(f"| context | {' | '.join(names)} |")
    print("| --- |" + " --- |" * len(names))
    for context in a.contexts:
        cells = []
        for name in names:
            ms = median(r[context][name] for r in rounds)
            ratio = median(r[context][name] / r[context][names[0]] for r in rounds)
            cells.append(f"{ms:.1f} ms, {ratio:.2f} x")
        print(f"| {context} | {' | '.join(cells)} |")


def show_counts(found: dict) -> None:
    for name, each in found.items():
        print(f"| {name} | {each['launching']} launching of {each['all']} |")


def show_memory(found: dict) -> None:
    for name, each in found.items():
        loaded, peak = each["loaded"] / 1e6, each["peak"] / 1e6
        low, high = min(each["after"][1:]) / 1e6, max(each["after"][1:]) / 1e6
        print(f"| {name} | {loaded:.1f} MB loaded | {low:.1f} to {high:.1f} MB after each | {peak:.1f} MB at most |")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--full", action="store_true")
    p.add_argument("--contexts", type=int, nargs="+")
    p.add_argument("--frames", type=int, default=8)
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--seconds", type=float, default=float("inf"), help="Begin no round later than this.")
    p.add_argument("--engines", nargs="+", choices=ENGINES, default=list(ENGINES))
    p.add_argument("--python", default=sys.executable, help="Whose environment has the peers.")
    p.add_argument("--memory", action="store_true")
    p.add_argument("--longest", type=int, default=400, help="Positions of the longest request of --memory.")
    p.add_argument("--count", action="store_true")
    p.add_argument("--json", type=Path, help="All figures, into this file.")
    p.add_argument("--child", choices=ENGINES, help=argparse.SUPPRESS)
    a = p.parse_args()
    a.contexts = a.contexts or ([500] if a.full else [100, 500, 1500])
    if a.child:
        serve(a)
        return
    engines = started(a)
    if a.count or a.memory:
        how = {"do": "count"} if a.count else {"do": "memory", "longest": a.longest}
        found = {engine.name: engine.ask(**how) for engine in engines}
        (show_counts if a.count else show_memory)(found)
    else:
        found = timed(engines, a)
        show_times(found, a)
    for engine in engines:
        engine.close()
    if a.json:
        a.json.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
