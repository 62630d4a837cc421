"""What another request's numbers do to the frames of a row that speaks: python -m benchmarks.jitter [frames]

One nano row speaks plain text. Another request is 3,000 words of dense numbers, for which the grammars are asked
  nobody   there is no other request
  worker   on the worker's thread: every PIECE_FRAMES frames, when its next piece is wanted
  child    in the child process (misod/text/reader.py), the piece after next while one is spoken
and, so that they work all the time, without a pause
  thread   on another thread of the process
  quick    likewise, with the interpreter changing threads each 0.5 ms, not 5
  beside   in the child process
Prints the time from frame to frame, p50, p99 and the longest, as ratios to p50 with nobody beside. The ways take
turns, ROUNDS times the same frames and the same text, and of each frame the least time counts: what else runs on
the machine makes longer pauses than any of this.
"""

import gc
import sys
import threading
import time
from collections.abc import Callable
from contextlib import contextmanager

import numpy as np
import psutil

from misod.engine import Say, open_engine
from misod.text import Limits, Reader, child
from misod.text.grammar import Answers, runs
from misod.text.reader import Grammars
from misod.weights.models import bundled

PLAIN = "The quick brown fox jumps over the lazy dog, and then it sleeps in the warm sun until the evening. " * 200
NUMBERS = (
    "On {m}/{d}/20{y} it sold {a},{b} shares at ${c}.{d} each, {y}.{d}% more than the {b} of {m}/{m}/19{y}; "
    "by {m}:{y} PM it was {a} km, {b} kg, {c} °C and {d} m away from {a}th Street. "
)
WORDS = 3000
PIECE_FRAMES = 40  # 3.2 s of speech: a short piece
ROUNDS = 8
LIMITS = Limits(max_words=18, max_characters=105, letters=True)


def dense(words: int) -> str:
    """The same each time; no two sentences alike."""
    rng, text = np.random.default_rng(1), []
    while sum(len(part.split()) for part in text) < words:
        low, high = rng.integers(10, 12), rng.integers(21, 28)
        a, b, c = rng.integers(100, 999, 3)
        text.append(NUMBERS.format(m=low, d=high, y=rng.integers(10, 59), a=a, b=b, c=c))
    return "".join(text)


DENSE = dense(WORDS)


class Local:
    """Grammars asked here and now, in the place of the child."""

    def ask(self, run: str) -> str:
        return run

    def answer(self, run: str) -> str:
        return child.answer(run)


@contextmanager
def working(grammars, quick: bool):
    """The grammars at work on a text of numbers all the while, asked from another thread."""
    done, usual_s = threading.Event(), sys.getswitchinterval()

    def work() -> None:
        while not done.is_set():
            for start, end in runs(DENSE):
                grammars.answer(grammars.ask(DENSE[start:end]))
                if done.is_set():
                    return

    thread = threading.Thread(target=work)
    if quick:
        sys.setswitchinterval(0.0005)
    thread.start()
    yield
    done.set()
    thread.join()
    sys.setswitchinterval(usual_s)


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


def measure(engine, frames: int, way: str, grammars) -> list[float]:
    if way == "nobody":
        return step_times(engine, frames, lambda: None)
    if way in ("worker", "child"):
        reader = Reader(DENSE, LIMITS, grammars=grammars)
        times = step_times(engine, frames, reader.next)
        reader.close()
        return times
    with working(grammars, way == "quick"):
        return step_times(engine, frames, lambda: None)


def main() -> None:
    frames = int(sys.argv[1]) if len(sys.argv) > 1 else 120
    engine = open_engine(bundled(), max_rows=4)
    here, grammars = Local(), Grammars(Answers(most=0))
    grammars.start()
    ways = {"nobody": None, "worker": here, "child": grammars, "thread": here, "quick": here, "beside": grammars}
    for each in (here, grammars):
        each.answer(each.ask("12 of 345"))  # has the grammars read
    rounds: dict[str, list[list[float]]] = {way: [] for way in ways}
    for _ in range(ROUNDS):
        for way, how in ways.items():
            gc.collect()
            rounds[way].append(measure(engine, frames, way, how))
    least = {way: np.min(all_s, axis=0) for way, all_s in rounds.items()}
    base_s = float(np.median(least["nobody"]))
    print(f"p50 with nobody beside: {base_s * 1000:.0f} ms a frame (a frame is 80 ms of sound)")
    print(f"{'':10} {'mean':>6} {'p50':>6} {'p99':>6} {'max':>6}")
    for way, all_s in least.items():
        p50, p99 = np.percentile(all_s, (50, 99)) / base_s
        print(f"{way:10} {all_s.mean() / base_s:6.2f} {p50:6.2f} {p99:6.2f} {all_s.max() / base_s:6.2f}")
    print(f"child: {psutil.Process(grammars.pid).memory_info().rss / 1e6:.0f} MB resident")
    grammars.close()


if __name__ == "__main__":
    main()
