"""MLX, tried in a child: importing it where there is no Metal device may abort the process (mlx #3148).

Run as a program, this file prints one Probe as JSON. Only then is mlx imported.
"""

import json
import signal
import subprocess
import sys
import time
from dataclasses import asdict, dataclass

PROBE_S = 30.0  # a cold disk; 2 s is usual on a CPU
COPIED_BYTES = 256 << 20  # beyond the caches of the machines at hand
COPIES = 4  # queued at once, so that launching them costs nothing
MEASURE_S = 0.5


@dataclass(frozen=True)
class Probe:
    """`memory_bytes`: what the device may hold, 0 where MLX names no limit (a CPU)."""

    version: str
    backend: str
    device: str
    memory_bytes: int
    bandwidth_bytes_per_s: float


class ProbeFailed(Exception):
    """MLX does not work here: its own last words, or the signal it died of."""


def run_probe() -> Probe:
    """Takes about 2 s. Raises ProbeFailed."""
    command = [sys.executable, "-P", __file__]  # -P: not what lies in the caller's directory
    try:
        child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_S, check=False)
    except subprocess.TimeoutExpired:
        raise ProbeFailed(f"MLX did not answer within {PROBE_S:g} s") from None
    if child.returncode == 0:
        return Probe(**json.loads(child.stdout))
    if child.returncode < 0:
        raise ProbeFailed(f"MLX ends the process with {signal.Signals(-child.returncode).name}")
    said = child.stderr.decode(errors="replace").strip().splitlines()
    raise ProbeFailed(said[-1] if said else f"MLX ends the process with exit code {child.returncode}")


def look() -> Probe:
    import mlx.core as mx

    backend = "cpu" if mx.default_device() == mx.cpu else "metal" if mx.metal.is_available() else "cuda"
    info = _device_info(mx)
    limits = {"metal": "max_recommended_working_set_size", "cuda": "total_memory"}
    return Probe(
        version=mx.__version__,
        backend=backend,
        device=str(info.get("device_name", "unnamed")),
        memory_bytes=int(info.get(limits.get(backend), 0)),
        bandwidth_bytes_per_s=measure_bandwidth(mx),
    )


def _device_info(mx) -> dict:
    """MLX 0.30.0 knows only Metal's."""
    if hasattr(mx, "device_info"):
        return mx.device_info()
    return mx.metal.device_info() if mx.metal.is_available() else {}


def measure_bandwidth(mx) -> float:
    """Bytes read and written a second by copies through the default device: the best of at least three tries."""
    import psutil

    values = min(COPIED_BYTES, psutil.virtual_memory().available // 8) // 4
    source = mx.zeros(values, dtype=mx.float32)
    mx.eval(source)
    best, tries, end_s = 0.0, 0, time.perf_counter() + MEASURE_S
    while tries < 3 or time.perf_counter() < end_s:
        began_s, copy = time.perf_counter(), source
        for _ in range(COPIES):
            copy = -copy
        mx.eval(copy)
        tries += 1
        best = max(best, COPIES * 2 * 4 * values / (time.perf_counter() - began_s))
    return best


if __name__ == "__main__":
    print(json.dumps(asdict(look())))
