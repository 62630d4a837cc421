"""How loud each speaker of an exported voice is: "loudness_lufs" of its config.json, then its manifest.json anew.

  python -m training.loudness FOLDER

A daemon that levels speech starts from this number, so that no utterance has to wait for its loudness to be known and
the same request gives the same bytes. It is the mean over 20 everyday lines of each one's integrated loudness (ITU-R
BS.1770-4), spoken through misod's engine at the voice's defaults, seeds 0 to 19, without levelling.
"""

import json
import pathlib
import random
import statistics
import sys

import numpy as np

from misod.engine import Chunk, Engine, Say, open_engine
from misod.loudness import measure
from misod.weights.manifest import read_manifest
from training.everyday import everyday
from training.seal import seal

LINES = 20


def lines():
    drawn = dict.fromkeys(everyday(random.Random(LINES), 10 * LINES))
    return [line for line in drawn if 4 <= len(line.split()) <= 20][:LINES]  # shorter ones have no 400 ms to measure


def speak(engine: Engine, say: Say):
    row, pcm, end = engine.prefill(say), [], None
    while end is None:
        (chunk,) = engine.step([row])
        if not isinstance(chunk, Chunk):
            raise SystemExit(f"{say}: {chunk.message}")
        pcm.append(chunk.pcm)
        end = chunk.end
    engine.release(row)
    return np.concatenate(pcm)


def add_loudness(folder):
    """Measures every speaker and writes config.json and manifest.json. Prints mean and extremes."""
    path, precision = folder / "config.json", read_manifest(folder).precision
    config = json.loads(path.read_text())
    engine, found = open_engine(folder, 1), {}
    for speaker in range(config["speakers"]):
        spoken = [speak(engine, Say(line, seed, speaker)) for seed, line in enumerate(lines())]
        heard = [measure(pcm, engine.sample_rate) for pcm in spoken]
        found[str(speaker)] = round(statistics.mean(heard), 1)
        print(f"speaker {speaker}: {statistics.mean(heard):.2f} LUFS ({min(heard):.1f} to {max(heard):.1f})")
    engine.close()
    last = {"quantization": config.pop("quantization")} if "quantization" in config else {}  # long: it stays at the end
    path.write_text(json.dumps(config | {"loudness_lufs": found} | last, indent=1) + "\n")
    seal(folder, precision)


if __name__ == "__main__":
    add_loudness(pathlib.Path(sys.argv[1]))
