"""Does the whole text come, with the guards and without? Speaks lines in this process and has a recogniser listen.

    pip install 'miso-speech[eval]'
    python -m benchmarks.guards --recogniser DIR benchmarks/everyday.txt [--seeds 5] [--speaker 0]

Off: no floor of frames, nothing watched, nothing drawn anew; the cap stays, or nothing would end. docs/guards.md has
the table this printed.
"""

import argparse
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import jiwer
import numpy as np
from faster_whisper import WhisperModel

from benchmarks.intelligible import hear, plain
from misod.engine import Chunk, Say, open_engine
from misod.guard import KINDS
from misod.miso import engine as miso
from misod.miso.load import Pace
from misod.weights.models import bundled

NO_FLOOR = 1e9  # words a second


@dataclass
class Count:
    ends: Counter = field(default_factory=Counter)
    mended: int = 0  # utterances in which something was drawn anew
    last_words: int = 0
    said: list[str] = field(default_factory=list)
    heard: list[str] = field(default_factory=list)

    def row(self, name: str) -> str:
        ends = ", ".join(f"{end} {n}" for end, n in self.ends.most_common())
        wer, last = jiwer.wer(self.said, self.heard), self.last_words / len(self.said)
        return f"| {name} | {len(self.said)} | {ends} | {self.mended} | {last:.1%} | {wer:.1%} |"


def speak(engine: miso.MisoEngine, line: str, seed: int, speaker: int) -> tuple[np.ndarray, str, list[str]]:
    row, pcm = engine.prefill(Say(text=line, seed=seed, speaker=speaker)), []
    while True:
        (result,) = engine.step([row])
        if not isinstance(result, Chunk):
            return np.concatenate([*pcm, np.zeros(1, np.float32)]), result.code, row.mended
        pcm.append(result.pcm)
        if result.end:
            engine.release(row)
            return np.concatenate(pcm), result.end, row.mended


def measure(engine, recogniser, lines: list[str], seeds: int, speaker: int) -> Count:
    count = Count()
    for line in lines:
        for seed in range(seeds):
            pcm, end, mended = speak(engine, line, seed, speaker)
            said, heard = plain(line), plain(hear(recogniser, pcm, engine.sample_rate))
            count.ends[end] += 1
            count.mended += bool(mended)
            count.last_words += said.split()[-1] in heard.split()[-2:]
            count.said.append(said)
            count.heard.append(heard)
    return count


def without_guards(engine: miso.MisoEngine) -> None:
    engine.speech = replace(engine.speech, pace=replace(Pace(), fastest=NO_FLOOR))
    watch = miso.Watch
    miso.Watch = lambda rate_hz, frames=0: watch(rate_hz, frames, frozenset(KINDS))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("lines", type=Path)
    parser.add_argument("--recogniser", required=True)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--speaker", type=int, default=0)
    asked = parser.parse_args()
    lines = [line for line in asked.lines.read_text().splitlines() if line.strip()]
    engine = open_engine(bundled(), 1)
    recogniser = WhisperModel(asked.recogniser, compute_type="int8")
    print("| guards | utterances | ends | drawn anew | last word heard | word error rate |\n|---|---|---|---|---|---|")
    print(measure(engine, recogniser, lines, asked.seeds, asked.speaker).row("on"), flush=True)
    without_guards(engine)
    print(measure(engine, recogniser, lines, asked.seeds, asked.speaker).row("off"), flush=True)


if __name__ == "__main__":
    main()
