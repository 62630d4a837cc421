"""The whole of kitten where the extra is installed: kittenml's normaliser and codec around random weights.

  python -m benchmarks.kitten_whole [--seconds N] [--rounds N]

No network and no speech: the tiny repository of the tests, and a codec of the true shapes with weights of its own
making. Prints what a reading takes, the longest step of it, and whether every reading is the same to the byte.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np

from misod.engine import Say
from misod.kitten.engine import KittenEngine
from tests.model.kitten_fixture import make_repository

TEXT = (
    "[joyful] We won the grant <laugh> and I can (((hardly))) believe it! It is $12.50 a day. *Really*, 3 times over."
)


def make_codec(path: Path) -> None:
    import torch
    from kittenml.kittentts2.s3gen import S3Gen
    from safetensors.torch import save_file

    torch.manual_seed(0)
    weights = S3Gen(meanflow=True).state_dict()
    parts: dict[str, int] = {}
    for name, w in weights.items():
        parts[name.split(".")[0]] = parts.get(name.split(".")[0], 0) + w.numel()
    print("codec, millions of weights:", {part: round(count / 1e6, 1) for part, count in parts.items()})
    save_file({name: w.contiguous().clone() for name, w in weights.items()}, path)


def open_engine(folder: Path) -> KittenEngine:
    import soundfile
    from kittenml.kittentts2 import vocoder

    make_codec(folder / "codec.safetensors")
    vocoder.hf_hub_download = lambda **_: str(folder / "codec.safetensors")  # in the hub's place
    repository = make_repository(folder / "kitten")
    tone = 0.3 * np.sin(2 * np.pi * 220 * np.arange(72_000) / 24_000)
    soundfile.write(repository / "voices" / "tiny.wav", tone.astype(np.float32), 24_000)
    return KittenEngine.open("kitten", repository, 1)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--seconds", type=float, default=4.0)
    p.add_argument("--rounds", type=int, default=2)
    a = p.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        engine, readings = open_engine(Path(folder)), set()
        for _ in range(a.rounds):
            row, pcm, longest_s, end = engine.prefill(Say(text=TEXT, seed=1, max_seconds=a.seconds)), [], 0.0, None
            began_s = time.perf_counter()
            while not end:
                step_s = time.perf_counter()
                (chunk,) = engine.step([row])
                longest_s = max(longest_s, time.perf_counter() - step_s)
                pcm.append(chunk.pcm)
                end = chunk.end
            sound = np.concatenate(pcm)
            readings.add(sound.tobytes())
            print(f"{len(sound) / 24_000:.2f} s ({end}) in {time.perf_counter() - began_s:.1f} s, ", end="")
            print(f"longest step {longest_s:.2f} s, finite: {np.isfinite(sound).all()}: {' '.join(row.spoken)}")
        print("the same to the byte" if len(readings) == 1 else "NOT the same")


if __name__ == "__main__":
    main()
