"""What `bench` measures, through the socket as any client: first sound, speed of many rows, memory. And what arithmetic
says of this machine, which is misod's to know.
"""

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass
from statistics import median

from misoctl.client import Client
from protocol import errors
from protocol import messages as m
from protocol.errors import Failure

SENTENCE = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm sun until the evening comes. "
SENTENCE_S = 4.0  # at the pace of fast speech: so that a row has something to say for as long as it is measured
FIRST_S = 0.4  # of speech, for a first sound
ROWS = (1, 2, 4, 8)
FRAME_MS = 80.0

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Speed:
    """`rows` spoke at once. `rtf`: time over speech between the first sound and the last, the median row's; less than
    1 is faster than real time. `together`: seconds of speech, of all, in a second."""

    rows: int
    rtf: float
    together: float

    @property
    def frame_ms(self) -> float:
        return self.rtf * FRAME_MS


@dataclass(frozen=True)
class Bench:
    model: str
    digest: str
    backend: str
    version: str
    ttfa_ms: list[float]  # as a client sees it: asked -> the first sound is here
    speeds: list[Speed]
    active_bytes: int
    peak_bytes: int
    rss_bytes: int
    predicted: dict


def measure(client: Client, model: str | None, seconds: float, rounds: int, tell: Tell) -> Bench:
    """Raises Failure. The first sound and the slowest row of each number are waited for."""
    from misoctl.speech import telling

    *_, now = telling(client.load(model), tell)
    tell(f"first sound, {rounds} times")
    first_sound(client, now.model)  # the first request after a load is no usual one
    ttfa_ms = [first_sound(client, now.model) for _ in range(rounds)]
    speeds = []
    for rows in (n for n in ROWS if n <= now.max_rows):
        tell(f"{rows} at once, {seconds:g} s of speech" if rows > 1 else f"1 row, {seconds:g} s of speech")
        speeds.append(speed(client, now.model, rows, seconds))
    now = client.status()
    memory = {name: getattr(now, name) for name in ("active_bytes", "peak_bytes", "rss_bytes")}
    who = {name: getattr(now, name) for name in ("model", "digest", "backend", "version")}
    return Bench(**who, ttfa_ms=ttfa_ms, speeds=speeds, **memory, predicted=predicted(now.model))


def first_sound(client: Client, model: str) -> float:
    asked_s, heard_s = time.perf_counter(), None
    with closing(client.say(text=SENTENCE, model=model, max_seconds=FIRST_S)) as stream:
        for message in stream:
            if isinstance(message, m.Pcm):
                heard_s = heard_s or time.perf_counter()
    return ((heard_s or _silent()) - asked_s) * 1e3


def speed(client: Client, model: str, rows: int, seconds: float) -> Speed:
    text = SENTENCE * math.ceil(seconds / SENTENCE_S)
    requests = [{"text": text, "model": model, "max_seconds": seconds, "seed": seed} for seed in range(rows)]
    heard: dict[int, list[tuple[float, float]]] = {}  # request -> when, and how many seconds of speech
    with closing(client.say_together(requests)) as stream:
        for message in stream:
            if isinstance(message, m.Pcm):
                part = time.perf_counter(), len(message.data) / 2 / message.rate
                heard.setdefault(message.id, []).append(part)
            elif isinstance(message, m.Done) and message.end not in ("eos", "cap"):
                raise Failure(errors.FAILED, f"the speech ended early ({message.end})")
    paces = [(parts[-1][0] - parts[0][0]) / sum(s for _, s in parts[1:]) for parts in heard.values() if len(parts) > 1]
    if len(paces) < rows:
        _silent()
    began_s, ended_s = min(parts[0][0] for parts in heard.values()), max(parts[-1][0] for parts in heard.values())
    spoken_s = sum(s for parts in heard.values() for _, s in parts[1:])
    return Speed(rows, median(paces), spoken_s / (ended_s - began_s))


def _silent() -> float:
    raise Failure(errors.FAILED, "too little sound came to measure", "try it with more --seconds")


def predicted(model: str) -> dict:
    """As misod's `predict` has it: {low_ms, high_ms, ...}, or {why} there is no figure."""
    command = [sys.executable, "-P", "-m", "misod", "predict", model]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode:
        return {"why": f"no prediction: {done.stderr.strip().removeprefix('misod: ')}"}
    return json.loads(done.stdout)


def to_json(bench: Bench) -> str:
    speeds = [asdict(each) | {"frame_ms": each.frame_ms} for each in bench.speeds]
    return json.dumps(asdict(bench) | {"speeds": speeds})


def lines(bench: Bench) -> list[str]:
    """For a person."""
    ttfa = f"{median(bench.ttfa_ms):.0f} ms, median of {len(bench.ttfa_ms)}"
    ttfa += f" ({min(bench.ttfa_ms):.0f} to {max(bench.ttfa_ms):.0f})"
    mb = [f"{value / 1e6:.0f} MB" for value in (bench.active_bytes, bench.peak_bytes, bench.rss_bytes)]
    shown = [f"{bench.model} {bench.digest[:12]} on {bench.backend}, misod {bench.version}"]
    shown += [f"  first sound  {ttfa}"]
    shown += [f"  memory       {mb[0]} held by MLX, {mb[1]} at most, {mb[2]} resident", ""]
    shown += ["  rows   a frame   real-time factor   speech a second, together"]
    for each in bench.speeds:
        shown.append(f"  {each.rows:4}  {each.frame_ms:5.0f} ms  {each.rtf:17.2f}  {each.together:25.2f} s")
    return [*shown, "", f"  {_beside(bench)}"]


def _beside(bench: Bench) -> str:
    """The prediction beside what was measured."""
    if "why" in bench.predicted:
        return bench.predicted["why"]
    low, high, measured = bench.predicted["low_ms"], bench.predicted["high_ms"], bench.speeds[0].frame_ms
    of = f"{bench.predicted['chip']}, {bench.predicted['gb_per_s']} GB/s"
    return f"predicted for 1 row on {of}: {low:.0f} to {high:.0f} ms a frame; measured {measured:.0f} ms"
