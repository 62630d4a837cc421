"""The 8B's whole path at its true size, with random weights: no network needed, nothing sounds like speech.

  python -m benchmarks.full_size DIR [--precision q4 q8 ...] [--load] [--say] [--keep-source]

Writes DIR/source (16.4 GB in bf16, the reference's names; a Mimi at its true dims; a stand-in tokenizer), converts it
to DIR/home/models/miso-PRECISION and prints seconds, bytes, bytes by arithmetic and peak memory of each step, each in
a process of its own. With --load it loads each model too, and says how much more memory than its size that took.
With --say it speaks three frames of each through misoctl and a real daemon.
"""

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from misod.weights import layout
from misod.weights.budget import CODEC_BYTES, disk_bytes
from misod.weights.dims import MISO_8B, ModelArgs, expected_shapes
from misod.weights.tensors import Writer, blocks

UNITS = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


def write_source(folder: Path, args: ModelArgs = MISO_8B, mimi: dict = layout.MIMI_CONFIG, seed: int = 0) -> None:
    """A checkpoint, a codec and a tokenizer, a block at a time."""
    folder.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    shapes = expected_shapes(args)
    writer = Writer(folder / "model.safetensors", {name: ("BF16", shape) for name, shape in shapes.items()})
    for shape in shapes.values():
        if len(shape) == 1:
            writer.write(np.full(shape, 0x3F80, "<u2"))  # norms: 1.0
            continue
        for start, stop in blocks(shape[0], 2 * int(np.prod(shape[1:]))):
            writer.write(random_bf16(rng, (stop - start, *shape[1:])))
    writer.finish()
    write_codec(folder / "codec", mimi, rng)
    write_tokenizer(folder / "tokenizer.json")


def random_bf16(rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
    """Bit patterns of both signs, of magnitudes 2^-15 to 2^-7, log-uniform: cheap, and finite through all layers."""
    bits = np.frombuffer(rng.bytes(2 * int(np.prod(shape))), "<u2").reshape(shape)
    return (bits & 0x83FF) | 0x3800


def write_codec(folder: Path, mimi: dict, rng: np.random.Generator) -> None:
    from misod.miso.mimi import MimiConfig, expected_tensors

    folder.mkdir()
    shapes = expected_tensors(MimiConfig.from_dict(mimi))
    (folder / "config.json").write_text(json.dumps({"mimi_config": mimi}))
    writer = Writer(folder / "model.safetensors", {name: ("F32", shape) for name, shape in shapes.items()})
    for name, shape in shapes.items():
        ones = name.endswith(("_initialized", "cluster_usage", "norm1.weight", "norm2.weight"))
        writer.write(np.ones(shape, "<f4") if ones else (rng.standard_normal(shape) * 0.02).astype("<f4"))
    writer.finish()


def write_tokenizer(path: Path) -> None:
    """Bytes as tokens, with Llama's special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in (layout.BOS, layout.EOS)])
    tokenizer.save(str(path))


def convert(source: Path, home: Path, precision: str) -> dict:
    from misod.miso import mimi  # noqa: F401  mlx is part of the idle process
    from misod.weights.convert import Parts
    from misod.weights.convert import convert as run

    models = home / "models"
    models.mkdir(parents=True, exist_ok=True)
    idle_bytes, began_s = peak_rss_bytes(), time.monotonic()
    parts = Parts(source, source / "codec" / "model.safetensors", source / "tokenizer.json")
    folder = run(parts, models, f"miso-{precision}", precision, origin={"repo": "random weights"}, card="Random.\n")
    seconds = time.monotonic() - began_s
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    predicted = disk_bytes(MISO_8B, precision) + CODEC_BYTES
    return {
        "step": f"convert to {precision}",
        "seconds": round(seconds, 1),
        "bytes": size,
        "predicted_bytes": predicted,
        "off_percent": round(100 * (size / predicted - 1), 3),
        "idle_rss_mb": idle_bytes >> 20,
        "peak_rss_over_idle_mb": (peak_rss_bytes() - idle_bytes) >> 20,
    }


def load(home: Path, precision: str) -> dict:
    from misod.miso.load import load_model, mx, read_config  # misod.miso before mlx, for OpenBLAS
    from misod.weights.manifest import check

    folder = home / "models" / f"miso-{precision}"
    began_s = time.monotonic()
    manifest = check(folder, anew=True)
    hashed_s, began_s = time.monotonic() - began_s, time.monotonic()
    args, _, quantization = read_config(folder / "config.json")
    size, idle_bytes = sum(manifest.files[name].bytes for name in manifest.weights), peak_rss_bytes()
    load_model([folder / name for name in manifest.weights], args, quantization)
    return {
        "step": f"load {precision}",
        "hash_seconds": round(hashed_s, 1),
        "load_seconds": round(time.monotonic() - began_s, 1),
        "model_mb": size >> 20,
        "peak_mlx_over_model_mb": (mx.get_peak_memory() - size) >> 20,
        "peak_rss_over_model_mb": (peak_rss_bytes() - idle_bytes - size) >> 20,
    }


def say(home: Path, precision: str) -> dict:
    """`misoctl say` through a daemon of its own; on a CPU a frame of the 8B takes seconds."""
    run = Path(tempfile.mkdtemp(prefix="miso-full-"))  # a short path, for the socket
    (run / "models").symlink_to(home.absolute() / "models")
    settings = {"MISO_HOME": str(run), "MISO_MODEL": f"miso-{precision}", "MISO_STEP_TIMEOUT_S": "600"}
    environment = os.environ | settings | {"PYTHONPATH": os.pathsep.join(sys.path)}
    misoctl, out = [sys.executable, "-m", "misoctl"], run / "speech.wav"
    words = ["say", "Three frames of it.", "--max-seconds", "0.24", "--seed", "1", "-o", str(out), "--json"]
    began_s = time.monotonic()
    try:
        said = subprocess.run([*misoctl, *words], env=environment, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - began_s
    finally:
        subprocess.run([*misoctl, "stop"], env=environment, capture_output=True, check=False)
    wav_bytes = out.stat().st_size if out.exists() else 0
    shutil.rmtree(run)
    figures = {"step": f"say {precision}", "exit": said.returncode, "seconds": round(seconds, 1)}
    return figures | {"wav_bytes": wav_bytes, "stderr": said.stderr, "receipt": said.stdout}


def peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNITS


def in_child(step: str, *arguments: str) -> None:
    """Run one step in a process of its own, so that its peak memory is its own."""
    command = [sys.executable, "-m", "benchmarks.full_size", "--step", step, *arguments]
    subprocess.run(command, check=True, env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)})


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("dir", type=Path)
    p.add_argument("--precision", nargs="+", default=["q4"])
    p.add_argument("--load", action="store_true")
    p.add_argument("--say", action="store_true")
    p.add_argument("--keep-source", action="store_true")
    p.add_argument("--step", choices=["source", "convert", "load", "say"], help=argparse.SUPPRESS)
    a = p.parse_args()
    source, home = a.dir / "source", a.dir / "home"
    if a.step == "source":
        began_s = time.monotonic()
        write_source(source)
        print(json.dumps({"step": "write source", "seconds": round(time.monotonic() - began_s, 1)}), flush=True)
    elif a.step:
        run = {"load": load, "say": say, "convert": lambda *last: convert(source, *last)}[a.step]
        print(json.dumps(run(home, *a.precision)), flush=True)
    else:
        if not source.exists():
            in_child("source", str(a.dir))
        for precision in a.precision:
            for step in ("convert", *(["load"] if a.load else []), *(["say"] if a.say else [])):
                in_child(step, str(a.dir), "--precision", precision)
        if not a.keep_source:
            shutil.rmtree(source)


if __name__ == "__main__":
    main()
