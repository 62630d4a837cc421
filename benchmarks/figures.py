"""What the benchmarks of the whole path share: a daemon of their own, cases in turn, medians, JSON, a plot."""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from protocol.paths import find_paths

Cases = dict[str, Callable[[], float]]


def arguments(doc: str, rounds: int) -> argparse.ArgumentParser:
    p = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", default="nano", help="One that `misoctl list` shows.")
    p.add_argument("--rounds", type=int, default=rounds)
    p.add_argument("--json", type=Path, help="All figures, into this file.")
    p.add_argument("--plot", type=Path, help="A PNG, where matplotlib is installed.")
    return p


@contextmanager
def own_daemon(model: str) -> Iterator[None]:
    """misod in a home of its own, with the models of the user's; `find_paths` finds it meanwhile."""
    models, home = find_paths().models, Path(tempfile.mkdtemp(prefix="mb", dir="/tmp"))  # short, for the socket
    if models.is_dir():
        (home / "models").symlink_to(models)
    before = dict(os.environ)
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH"))))
    os.environ |= {"MISO_HOME": str(home), "MISO_MODEL": model, "PYTHONPATH": paths}
    try:
        subprocess.run([sys.executable, "-m", "misoctl", "start", "-q"], check=True)
        yield
    finally:
        subprocess.run([sys.executable, "-m", "misoctl", "stop", "-q"], check=False)
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(home)


def in_turn(rounds: int, cases: Cases) -> dict[str, list[float]]:
    """Each case once a round; the round before the first does not count."""
    found: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(rounds + 1):
        for name, case in cases.items():
            took = case()
            if number:
                found[name].append(took)
    return found


def show(found: dict[str, list[float]], unit: str) -> None:
    """Medians, spans, and the median ratio to the first case of the same round."""
    first = next(iter(found.values()))
    for name, values in found.items():
        ratio = median(value / base for value, base in zip(values, first, strict=True))
        span = f"{min(values):.1f} to {max(values):.1f}"
        print(f"| {name} | {median(values):.1f} {unit} | {span} | {ratio:.2f} x |")


def keep(a: argparse.Namespace, found: dict, x: str, y: str) -> None:
    """`found`: case -> figures, by round. The JSON and the plot that were asked for."""
    if a.json:
        a.json.write_text(json.dumps(found))
    if not a.plot:
        return
    try:
        from matplotlib.figure import Figure
    except ImportError:
        print("no plot: matplotlib is not installed (`pip install matplotlib`)", file=sys.stderr)
        return
    figure = Figure(figsize=(7, 4))
    axes = figure.subplots()
    axes.boxplot(list(found.values()), tick_labels=list(found))
    axes.set(xlabel=x, ylabel=y, ylim=(0, None))
    figure.savefig(a.plot, dpi=120, bbox_inches="tight")
