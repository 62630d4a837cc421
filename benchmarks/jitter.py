"""What another request's numbers do to the frames of a row that speaks: python -m benchmarks.jitter [frames]

One nano row speaks plain text. Every PIECE_FRAMES frames another request, 3,000 words of dense numbers, wants
its next piece; the grammars are asked for it
  nobody   there is no other request
  worker   on the worker's thread, when the piece is wanted
  thread   on another thread of the process, the piece after next while this one is spoken
  quick    likewise, with the interpreter changing threads each 0.5 ms, not 5
  child    in the child process (misod/text/reader.py), likewise
Prints the time from frame to frame, p50, p99 and the longest, as ratios to p50 with nobody beside: of each way the
calmest of ROUNDS rounds, in turn, for what else runs on the machine makes longer pauses than any of this.
"""

import gc
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import psutil

from misod.engine import Say, open_engine
from misod.miso.engine import bundled_voice
from misod.text import Limits, Reader, child
from misod.text.reader import Grammars

PLAIN = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm sun until the evening. " * 200
NUMBERS = (
    "On {m}/{d}/20{y} it sold {a},{b} shares at ${c}.{d} each, {y}.{d}% more than the {b} of {m}/{m}/19{y}; "
    "by {m}:{y} PM it was {a} km, {b} kg, {c} °C and {d} m away from {a}th Street. "
)
WORDS = 3000
PIECE_FRAMES = 40  # 3.2 s of speech: a short piece
ROUNDS = 6
LIMITS = Limits(max_words=18, max_characters=105, letters=True)


def dense(words: int, seed: int) -> str:
    """No two sentences alike, so that nothing is remembered."""
    rng, text = np.random.default_rng(seed), []
    while sum(len(part.split()) for part in text) < words:
        low, high = rng.integers(10, 12), rng.integers(21, 28)
        a, b, c = rng.integers(100, 999, 3)
        text.append(NUMBERS.format(m=low, d=high, y=rng.integers(10, 59), a=a, b=b, c=c))
    return "".join(text)


class Local:
    """Grammars asked here and now, or on `pool`'s thread, in the place of the child."""

    def __init__(self, pool: ThreadPoolExecutor | None = None):
        self._pool = pool

    def ask(self, run: str):
        return self._pool.submit(child.answer, run) if self._pool else run

    def answer(self, asked) -> str:
        return asked.result() if self._pool else child.answer(asked)


def step_times(engine, frames: int, wanted: Callable[[], None]) -> list[float]:
    row = engine.prefill(Say(text=PLAIN, seed=1))
    times, began_s = [], time.perf_counter()
    for frame in range(frames):
        engine.step([row])
        if frame % PIECE_FRAMES == PIECE_FRAMES - 1:
            wanted()
        now_s = time.perf_counter()
        times.append(now_s - began_s)
        began_s = now_s
    engine.release(row)
    return times


def measure(engine, frames: int, way: str, seed: int, grammars) -> list[float]:
    if way == "nobody":
        return step_times(engine, frames, lambda: None)
    reader = Reader(dense(WORDS, seed), LIMITS, grammars=grammars)
    usual_s = sys.getswitchinterval()
    if way == "quick":
        sys.setswitchinterval(0.0005)
    times = step_times(engine, frames, reader.next)
    sys.setswitchinterval(usual_s)
    reader.close()
    return times


def calm(times_s: list[float]) -> float:
    return float(np.percentile(times_s, 99))


def main() -> None:
    frames = int(sys.argv[1]) if len(sys.argv) > 1 else 160
    engine = open_engine(bundled_voice(), max_rows=4)
    pool, grammars = ThreadPoolExecutor(1), Grammars()
    grammars.start()
    ways = {"nobody": None, "worker": Local(), "thread": Local(pool), "quick": Local(pool), "child": grammars}
    for way in ("worker", "thread", "child"):  # each has the grammars read
        ways[way].answer(ways[way].ask("12 of 345"))
    times: dict[str, list[float]] = {way: [] for way in ways}
    for turn in range(ROUNDS):
        for way, how in ways.items():
            gc.collect()
            took_s = measure(engine, frames, way, turn * 10 + len(way), how)
            if not times[way] or calm(took_s) < calm(times[way]):
                times[way] = took_s
    base_s = float(np.median(times["nobody"]))
    print(f"p50 with nobody beside: {base_s * 1000:.0f} ms a frame (a frame is 80 ms of sound)")
    print(f"{'':10} {'p50':>6} {'p99':>6} {'max':>6}  frames late")
    for way, all_s in times.items():
        p50, p99 = np.percentile(all_s, (50, 99)) / base_s
        late = sum(t > 0.08 for t in all_s) / len(all_s)
        print(f"{way:10} {p50:6.2f} {p99:6.2f} {max(all_s) / base_s:6.2f}  {late:.1%}")
    print(f"child: {psutil.Process(grammars.pid).memory_info().rss / 1e6:.0f} MB resident")
    grammars.close()


if __name__ == "__main__":
    main()
