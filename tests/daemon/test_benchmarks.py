"""That the benchmarks of the whole path still run: their figures are for people to judge, so none is judged here."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WHOLE = [
    pytest.param("ttfa", ["--words", "1"], {"1 words"}, id="ttfa"),
    pytest.param(
        "client", [], {"the daemon", "misoctl say", "Python", "connect and hello"}, id="client", marks=pytest.mark.slow
    ),
    pytest.param("batch", ["--rows", "2", "--seconds", "0.5"], {"2 rows"}, id="batch", marks=pytest.mark.slow),
    pytest.param(
        "together",
        ["--rows", "2", "--seconds", "0.5"],
        {"daemon, cores", "clients, cores", "real-time factor, slowest", "gap p99, ms", "late p99, ms"},
        id="together",
        marks=pytest.mark.slow,
    ),
    pytest.param("load", [], {"load, ms", "at most, MB"}, id="load", marks=pytest.mark.slow),
]


def run(name: str, *arguments: str, hang_s: float = 60) -> subprocess.CompletedProcess:
    command = [sys.executable, "-m", f"benchmarks.{name}", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=hang_s, check=False)


@pytest.mark.parametrize(("name", "arguments", "cases"), WHOLE)
def test_it_runs_and_keeps_its_figures(name, arguments, cases, tmp_path):
    kept = tmp_path / "kept.json"
    done = run(name, *arguments, "--rounds", "1", "--json", str(kept))
    assert done.returncode == 0, done.stderr
    found = json.loads(kept.read_text())
    assert cases <= found.keys() and all(len(values) == 1 for values in found.values())
    assert all(f"| {case} |" in done.stdout for case in cases - {"Python", "connect and hello"})


@pytest.mark.slow
def test_ours_is_counted_and_a_peer_that_is_not_here_is_named():
    done = run("peers", "--count", "--engines", "ours", "mlx-audio", hang_s=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("| ours | 3702 launching")
    assert "without mlx-audio: mlx_audio is not here: pip install --no-deps mlx-audio" in done.stderr
