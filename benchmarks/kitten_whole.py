"""The whole of kitten where the extra is installed: kittenml's normaliser, encoders and codec around random weights.

  python -m benchmarks.kitten_whole [--seconds N] [--rounds N]

No network and no speech: the tiny repository of the tests, and a codec and a speaker encoder of the true shapes with
weights of their own making, 1.2 GB in a temporary folder. Learns a voice, then reads a text as the repository's own
voice and as that one. Prints what each takes, the longest step of it, and whether all rounds are the same to the byte.
"""

import argparse
import importlib.util
import tempfile
import time
from pathlib import Path

import numpy as np

from misod.engine import Say, returned
from misod.kitten.around import INSTALL, SAMPLE_RATE
from misod.kitten.engine import KittenEngine
from misod.voices import Voice
from tests.model.kitten_fixture import make_repository

TEXT = (
    "[joyful] We won the grant <laugh> and I can (((hardly))) believe it! It is $12.50 a day. *Really*, 3 times over."
)
WORDS = "What is said in the recording."


def save(module, path: Path) -> None:
    """A torch module's weights, as they were drawn."""
    from safetensors.torch import save_file

    path.parent.mkdir(exist_ok=True)
    save_file({name: w.contiguous().clone() for name, w in module.state_dict().items()}, path)
    count = sum(w.numel() for w in module.state_dict().values())
    print(f"{path.name} of {path.parent.name}: {count / 1e6:.1f} million weights", flush=True)


def open_engine(directory: Path) -> KittenEngine:
    import soundfile
    import torch
    from kittenml.kittentts2.s3gen import S3Gen
    from kittenml.kittentts2.speaker_embedding import XVectorSincNet

    from misod.kitten.around import CODEC

    torch.manual_seed(0)
    make_repository(directory)
    save(S3Gen(meanflow=True), directory / CODEC)
    save(XVectorSincNet(), directory / "speaker" / "model.safetensors")
    soundfile.write(directory / "voices" / "tiny.wav", tone(220), SAMPLE_RATE)
    began_s = time.perf_counter()
    engine = KittenEngine.open("kitten", directory, 1)
    print(f"opened in {time.perf_counter() - began_s:.1f} s", flush=True)
    return engine


def tone(hz: float, seconds: float = 7.0) -> np.ndarray:
    return (0.3 * np.sin(2 * np.pi * hz * np.arange(int(seconds * SAMPLE_RATE)) / SAMPLE_RATE)).astype(np.float32)


def learn(engine: KittenEngine) -> Voice:
    began_s = time.perf_counter()
    heard = returned(engine.hear(tone(330), WORDS, 0))
    voice = Voice("anna", text=WORDS, speaker=0, **vars(heard))
    took_s = time.perf_counter() - began_s
    print(f"learned a voice in {took_s:.1f} s: {voice.codes.shape[1]} tokens, {len(voice.pack())} bytes", flush=True)
    return voice


def read(engine: KittenEngine, say: Say) -> bytes:
    """Its samples; prints how it went."""
    row, pcm, longest_s, end = engine.prefill(say), [], 0.0, None
    began_s = time.perf_counter()
    while not end:
        step_s = time.perf_counter()
        (chunk,) = engine.step([row])
        longest_s = max(longest_s, time.perf_counter() - step_s)
        pcm.append(chunk.pcm)
        end = chunk.end
    sound = np.concatenate(pcm)
    who = say.voice.name if say.voice else "its own voice"
    print(f"{who}: {len(sound) / SAMPLE_RATE:.2f} s ({end}) in {time.perf_counter() - began_s:.1f} s, ", end="")
    print(f"longest step {longest_s:.2f} s, finite: {np.isfinite(sound).all()}: {' '.join(row.spoken)}", flush=True)
    return sound.tobytes()


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--seconds", type=float, default=4.0)
    p.add_argument("--rounds", type=int, default=2)
    a = p.parse_args()
    if importlib.util.find_spec("kittenml") is None:
        p.error(f"it needs the package kittenml: {INSTALL}")
    with tempfile.TemporaryDirectory() as folder:
        engine = open_engine(Path(folder) / "kitten")
        says = [Say(text=TEXT, seed=1, max_seconds=a.seconds, voice=voice) for voice in (None, learn(engine))]
        readings = [{read(engine, say) for _ in range(a.rounds)} for say in says]
        engine.close()
    same = all(len(each) == 1 for each in readings)
    print("the same to the byte" if same else "NOT the same")
    raise SystemExit(not same)


if __name__ == "__main__":
    main()
