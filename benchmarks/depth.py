"""What `say --depth N` costs and saves, with the bundled voice: the table of docs/performance.md.

    pip install 'miso-speech[eval]'
    python -m benchmarks.depth --recogniser DIR benchmarks/everyday.txt [--depths 4 6 8 12 16] [--seeds 1]

Each line is spoken at each depth, one after the other, and written down by a recogniser (see intelligible.py). The
real-time factor is processor time over the time of the speech: what else runs on the machine disturbs that less.
Then the 8B's bytes a frame at each depth, by arithmetic.
"""

import argparse
import resource
from pathlib import Path

import jiwer
import numpy as np
from faster_whisper import WhisperModel

from benchmarks.intelligible import hear, plain
from misod.engine import Engine, Say, open_engine
from misod.weights.budget import MISO_8B, frame_bytes
from misod.weights.models import bundled


def processor_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def speak(engine: Engine, say: Say) -> tuple[np.ndarray, float, str]:
    """pcm, processor seconds, and how it ended."""
    began_s = processor_s()
    row, pcm = engine.prefill(say), []
    while True:
        (chunk,) = engine.step([row])
        pcm.append(chunk.pcm)
        if chunk.end:
            engine.release(row)
            return np.concatenate(pcm), processor_s() - began_s, chunk.end


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="one sentence a line")
    parser.add_argument("--recogniser", required=True, help="a faster-whisper model directory")
    parser.add_argument("--depths", type=int, nargs="+", default=[4, 6, 8, 12, 16])
    parser.add_argument("--seeds", type=int, default=1, help="how often each line is spoken")
    a = parser.parse_args()
    recogniser = WhisperModel(a.recogniser, device="cpu", compute_type="int8", cpu_threads=2)
    engine = open_engine(bundled(), max_rows=1)
    said: list[str] = []
    heard: dict[int, list[str]] = {depth: [] for depth in a.depths}
    took_s, made_s, cut = (dict.fromkeys(a.depths, 0.0) for _ in range(3))
    for line in filter(None, map(str.strip, a.file.read_text().splitlines())):
        for seed in range(a.seeds):
            said.append(plain(line))
            for depth in a.depths:
                pcm, seconds, end = speak(engine, Say(text=line, seed=seed, sampling={"depth": depth}))
                took_s[depth] += seconds
                made_s[depth] += len(pcm) / engine.sample_rate
                cut[depth] += end != "eos"
                heard[depth].append(plain(hear(recogniser, pcm, engine.sample_rate)) or "-")
    print("| depth | words wrong | letters wrong | cut | seconds a line | processor time over time |")
    for depth in a.depths:
        wrong = f"{jiwer.wer(said, heard[depth]):.1%} | {jiwer.cer(said, heard[depth]):.1%} | {cut[depth]:.0f}"
        print(f"| {depth} | {wrong} | {made_s[depth] / len(said):.2f} | {took_s[depth] / made_s[depth]:.2f} |")
    for precision in ("q4", "q4-d3", "q8"):
        sizes = [f"{depth}: {frame_bytes(MISO_8B, precision, depth) / 1e9:.2f}" for depth in (8, 16, 24, 32)]
        print(f"8B, {precision}, GB a frame at depth", ", ".join(sizes))


if __name__ == "__main__":
    main()
