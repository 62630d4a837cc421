"""How the watch does on a voice: false alarms on its speech, and what it tells of streams made to be bad.

    python -m benchmarks.degenerate lines.txt [--voice DIR] [--temperatures 0.3 0.9]

Every line is spoken by speakers 0 and 1 at each temperature; then every fourth utterance goes wrong after a loud frame,
once in each way. Last, what watching and levelling cost, as a share of the frame's own time. docs/guards.md has the
bundled voice's table.
"""

import argparse
import itertools
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import mlx.core as mx
import numpy as np

from misod.engine import Say, open_engine
from misod.guard import Watch, level
from misod.loudness import Leveller
from misod.miso.engine import MisoEngine
from misod.weights.models import bundled

GOES_ON = 40  # frames
LOUD_DBFS = -30.0


@dataclass(frozen=True)
class Stream:
    """codes (T, K), pcm (T, n), and the frame from which on it is bad."""

    codes: np.ndarray
    pcm: np.ndarray
    bad: int = 0


def speak(engine: MisoEngine, say: Say) -> Stream:
    row, codes, pcm, end = engine.prefill(say), [], [], None
    while end is None:
        made = np.array(row.frame[0])[0]
        (chunk,) = engine.step([row])
        if chunk.pcm.size:
            codes.append(made)
            pcm.append(chunk.pcm)
        end = chunk.end
    engine.release(row)
    return Stream(np.stack(codes), np.stack(pcm))


class Spoiler:
    """Ways for good speech to go wrong."""

    def __init__(self, engine: MisoEngine):
        self.mimi, self.rng = engine.mimi, np.random.default_rng(0)
        self.silence = self._encode(np.zeros(GOES_ON * engine.frame_samples))

    def _encode(self, pcm: np.ndarray) -> np.ndarray:
        return np.array(self.mimi.encode(mx.array(pcm[None].astype(np.float32))))[0].T

    def _sounded(self, head: np.ndarray, tail: np.ndarray, pcm: np.ndarray | None = None) -> Stream:
        codes = np.concatenate([head, tail])
        if pcm is None:
            pcm = np.array(self.mimi.decode(mx.array(np.ascontiguousarray(codes.T)[None])))[0]
        return Stream(codes, pcm.reshape(len(codes), -1), len(head))

    def streams(self, good: Stream) -> Iterator[tuple[str, Stream]]:
        loud = [i for i, frame in enumerate(good.pcm) if i >= 4 and level(frame) > LOUD_DBFS]
        if not loud:
            return
        cut = int(self.rng.choice(loud)) + 1
        head, size = good.codes[:cut], good.pcm.shape[1]
        yield "silence", self._sounded(head, self.silence)
        for period in (1, 2, 3, 4):
            yield f"loop of {period}", self._sounded(head, np.tile(head[-period:], (GOES_ON // period, 1)))
        mixed = good.codes[self.rng.integers(0, len(good.codes), GOES_ON)].copy()
        mixed[:, 0] = head[-1, 0]
        yield "codebook 0 held", self._sounded(head, mixed)
        yield "random codes", self._sounded(head, self.rng.integers(0, self.mimi.config.bins, (GOES_ON, head.shape[1])))
        for dbfs in (-20, -26, -30, -40):
            noise = 10 ** (dbfs / 20) * self.rng.standard_normal(GOES_ON * size)
            codes = self._encode(noise)
            yield (
                f"white noise, {dbfs} dBFS",
                self._sounded(head, codes, np.concatenate([good.pcm[:cut].ravel(), noise])),
            )
            yield f"noise by the codec, {dbfs} dBFS", self._sounded(head, codes)
        for times in (4, 8, 16):
            louder = np.concatenate([good.pcm[:cut], times * good.pcm[cut:]])
            yield f"{times} times too loud", Stream(good.codes, np.clip(louder, -1, 1), cut)


def watch(stream: Stream, frame_rate_hz: float) -> tuple[str, int]:
    """What is told of first, and after how many bad frames."""
    guard = Watch(frame_rate_hz)
    for codes, pcm in zip(stream.codes, stream.pcm, strict=True):
        if kind := guard.see(codes, pcm):
            return kind, guard.frames - stream.bad
    return "-", 0


def table(rows: dict[str, list[tuple[str, int]]]) -> None:
    print("| stream | how many | told as | after frames, median |\n| --- | --- | --- | --- |")
    for name, told in rows.items():
        kinds = ", ".join(f"{kind} {count}" for kind, count in Counter(kind for kind, _ in told).most_common())
        after = [frames for kind, frames in told if kind != "-"]
        print(f"| {name} | {len(told)} | {kinds} | {np.median(after) if after else '':} |")


def cost(stream: Stream, frame_rate_hz: float) -> None:
    """Measured in turn, frame by frame; medians."""
    rate_hz = round(stream.pcm.shape[1] * frame_rate_hz)
    guard, leveller, spent = Watch(frame_rate_hz), Leveller(rate_hz, start_gain_db=8.0), defaultdict(list)
    for codes, pcm in itertools.islice(itertools.cycle(list(zip(stream.codes, stream.pcm, strict=True))), 500):
        for name, call in (("watching", partial(guard.see, codes, pcm)), ("levelling", partial(leveller.process, pcm))):
            began_s = time.perf_counter()
            call()
            spent[name].append(time.perf_counter() - began_s)
    for name, times_s in spent.items():
        print(f"{name}: {np.median(times_s) * frame_rate_hz:.2%} of a frame's time")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("lines", type=Path, help="one sentence a line")
    parser.add_argument("--voice", type=Path, default=bundled())
    parser.add_argument("--temperatures", type=float, nargs="+", default=[0.3, 0.9])
    options = parser.parse_args()
    engine = open_engine(options.voice, 1)
    lines = [line for line in options.lines.read_text().splitlines() if line.strip()]
    rows, spoiler, good = defaultdict(list), Spoiler(engine), []
    for temperature, speaker, (seed, line) in itertools.product(options.temperatures, (0, 1), enumerate(lines)):
        good.append(speak(engine, Say(line, seed, speaker, sampling={"temperature": temperature})))
        rows[f"speech, speaker {speaker}, temperature {temperature}"].append(watch(good[-1], engine.frame_rate_hz))
    for stream in good[::4]:
        for name, bad in spoiler.streams(stream):
            rows[name].append(watch(bad, engine.frame_rate_hz))
    table(rows)
    cost(good[0], engine.frame_rate_hz)


if __name__ == "__main__":
    main()
