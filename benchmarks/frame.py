"""The frame: milliseconds at the 8B's shapes or with the bundled voice, and what the host must build for it. No codec.

  python -m benchmarks.frame [--nano] [--layers N] [--rows 1 2 4 8] [--rounds N] [--plain] [--compiled] [--against DIR]
  python -m benchmarks.frame --first [--layers N]
  python -m benchmarks.frame --count [--rows ...] [--compiled] [--against DIR]

A round times some frames of each case, one case after the other; what is printed is the median over the rounds and the
median ratio to one row in the same round. Each frame is in flight while the one before is read, as the engine does.
Weights are random and in 4 bits, but for --nano. --layers makes backbone and depth decoder shallower: the rest of the
shapes are the 8B's, for machines that are slow.

--compiled: each case once more, as it is where frames are compiled (misod/miso/compiled.py).
--first: how many frame times pass until the first samples of a text of 20 tokens: read, a frame, the codec's step.
--against another checkout of this project: rounds alternate between the two, each in a process of its own.
--count evaluates nothing: primitives a frame that launch work on a GPU, where a norm, a rotation and an attention are
one each, and the host's own time to build a frame. All layers, but narrow ones: neither depends on their width.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from unittest.mock import patch

import mlx.core as mx
from mlx.utils import tree_map

from misod import cuda
from misod.miso.cache import KVCache, RowsCache
from misod.miso.load import load_model, read_config
from misod.miso.mimi import Mimi, MimiConfig
from misod.miso.model import Model
from misod.miso.sampling import Sampler, Settings, draw_noise
from misod.weights.dims import MISO_8B, ModelArgs
from misod.weights.layout import MIMI_CONFIG
from misod.weights.models import bundled
from misod.weights.plan import plan

CONTEXT = 500  # positions read before the first frame
FRAMES = 8  # a case a round
TEXT = 20  # tokens of --first
NO_KERNEL = {
    "AsStrided", "Bitcast", "Broadcast", "BroadcastAxes", "Depends", "ExpandDims", "Flatten", "NumberOfElements",
    "Reshape", "Slice", "Split", "Squeeze", "StopGradient", "Transpose", "Unflatten", "View",
}  # fmt: skip


def random_model(args: ModelArgs, wide: bool = False) -> Model:
    """Packed in 4 bits as `pull --precision q4` does it; activations in bf16, on a CPU (`wide`) in fp32."""
    model = Model(args)
    model.keep_packed(plan(args, "q4"))
    keys = iter(mx.random.split(mx.random.key(0), 4096))

    def fill(empty: mx.array) -> mx.array:
        if empty.dtype == mx.uint32:
            return mx.random.randint(-(2**31), 2**31 - 1, empty.shape, key=next(keys)).view(mx.uint32)
        if empty.ndim == 1:
            return mx.ones_like(empty, mx.float32 if wide else mx.bfloat16)
        return (mx.random.normal(empty.shape, key=next(keys)) * 0.003).astype(mx.bfloat16)

    model.update(tree_map(fill, model.parameters()))
    mx.eval(model.parameters())
    model.prepare()
    return model


def narrow(args: ModelArgs) -> ModelArgs:
    """Of the same layers and heads."""
    backbone = replace(args.backbone, embed_dim=512, intermediate_dim=256)
    decoder = replace(args.decoder, embed_dim=384, intermediate_dim=256)
    return replace(args, backbone=backbone, decoder=decoder, text_vocab_size=64)


@dataclass
class Case:
    """So many rows that speak, each with its own past; guided ones have a shadow each."""

    name: str
    model: Model
    rows: int
    guidance: float
    context: int = CONTEXT
    compiled: bool = False

    def __post_init__(self):
        args, shadows = self.model.args, self.rows if self.guidance != 1 else 0
        self.settings = [Settings(temperature=0.9, top_k=50, guidance=self.guidance)] * self.rows
        self.keys = [mx.random.key(seed) for seed in range(self.rows)]
        self.caches: list[KVCache] = []
        for _ in range(self.rows + shadows):
            self.caches.append(self.model.new_cache())
            prompt = mx.random.normal((1, self.context, args.backbone.embed_dim)).astype(self.model.dtype)
            self.last_h = self.model.read(prompt, self.caches[-1])
            mx.eval(self.last_h)
        self.last_h = mx.repeat(self.last_h, self.rows + shadows, axis=0)
        mx.eval(self.last_h)
        self.flight: deque[mx.array] = deque()
        if self.compiled:
            from misod.miso.compiled import Compiled  # an older checkout has none

            self.frames = Compiled(self.model, args.audio_vocab_size - 3, self.rows)

    def build(self) -> mx.array:
        """The next frame's codes; nothing is computed."""
        if self.compiled:
            K = self.model.args.audio_num_codebooks
            codes, self.finite, self.keys = self.frames.draw(self.last_h, self.keys, self.settings, K)
            self.last_h = self.frames.read(codes, None, self.caches)
            return codes
        split = [mx.random.split(key) for key in self.keys]
        self.keys = [key for key, _ in split]
        args = self.model.args
        noise = draw_noise([key for _, key in split], args.audio_num_codebooks, args.audio_vocab_size)
        codes, self.finite = self.model.frame(self.last_h, Sampler(self.settings, noise, args.audio_vocab_size - 3))
        self.last_h = self.model.read(self.model.embed_frame(codes), RowsCache(self.caches))
        return codes

    def _launch(self) -> None:
        codes = self.build()
        mx.async_eval(codes, self.last_h)
        self.flight.append(codes)

    def run(self, frames: int) -> float:
        """-> milliseconds a frame."""
        if not self.flight:
            self._launch()
        began_s = time.perf_counter()
        for _ in range(frames):
            self._launch()
            mx.eval(self.flight.popleft())
        mx.eval(self.last_h)
        for cache in self.caches:
            cache.rewind(self.context)  # as long a past in every round
        return (time.perf_counter() - began_s) / frames * 1e3


@contextmanager
def as_on_a_gpu() -> Iterator[None]:
    """A CPU spells these out; here each is one primitive of the same inputs and shape, never to be computed."""
    stand_ins = {
        "rms_norm": lambda x, weight, eps: mx.cumsum(x, -1),
        "rope": lambda x, *_, offset, **__: mx.cummax(x, -1),
        "scaled_dot_product_attention": lambda q, k, v, **_: mx.cumprod(mx.depends(q, [k, v]), -1),
    }
    with patch.multiple(mx.fast, **stand_ins), patch.object(mx, "default_device", lambda: mx.Device(mx.gpu)):
        yield


def primitives(*outputs: mx.array) -> Counter:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "graph.dot")
        mx.export_to_dot(str(path), *outputs)
        names = re.findall(r'label ="([^" ]+)[^"]*", shape=rectangle', path.read_text())
    return Counter("Compiled" if name.startswith("Compiled") else name for name in names)


def counts(name: str, model: Model, rows: int, guidance: float, compiled: bool) -> dict:
    case, hosts_ms = Case(name, model, rows, guidance, 2, compiled), []
    with as_on_a_gpu():
        found = primitives(case.build(), case.finite, case.last_h)
        for _ in range(8):  # each builds on what the one before left to compute
            began_s = time.thread_time()
            case.build()
            hosts_ms.append((time.thread_time() - began_s) * 1e3)
    launching = sum(n for kind, n in found.items() if kind not in NO_KERNEL)
    return {"name": name, "launching": launching, "all": sum(found.values()), "host_ms": min(hosts_ms)}


def first_sound_ms(model: Model, mimi: Mimi) -> float:
    args = model.args
    began_s = time.perf_counter()
    tokens = mx.zeros((TEXT, args.audio_num_codebooks + 1), mx.int32)
    x = model.embed_prompt(tokens, mx.arange(args.audio_num_codebooks + 1)[None] == args.audio_num_codebooks)
    last_h = model.read(x, model.new_cache())
    noise = draw_noise([mx.random.key(0)], args.audio_num_codebooks, args.audio_vocab_size)
    codes, _ = model.frame(last_h, Sampler([Settings(0.9, 50)], noise, args.audio_vocab_size - 3))
    pcm, _ = mimi.step(codes[:, :, None], mimi.new_state())
    mx.eval(pcm)
    return (time.perf_counter() - began_s) * 1e3


def show_first_sound(model: Model, rounds: int) -> None:
    config = MimiConfig.from_dict(MIMI_CONFIG)
    mimi = Mimi(config, lambda _, shape: mx.random.normal(shape) * 0.01)
    case, ratios = Case("", model, 1, 1.0), []
    for i in range(rounds + 2):
        first_ms, frame_ms = first_sound_ms(model, mimi), case.run(FRAMES)
        if i > 1:  # kernels are built at first use
            ratios.append(first_ms / frame_ms)
    print(f"first samples after {first_ms:.1f} ms, a frame {frame_ms:.1f} ms; median ratio {median(ratios):.2f}")


class Child:
    """This of one checkout, prepared as its package has it: `ask` runs a round, or counts."""

    def __init__(self, checkout: Path, arguments: list[str]):
        command = [sys.executable, "-m", "benchmarks.frame", *arguments, "--child"]
        env = os.environ | {"PYTHONPATH": str(checkout.resolve())}
        self.checkout = checkout
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(command, cwd=checkout, env=env, **pipes)

    def ask(self) -> list[dict]:
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        if not (line := self._process.stdout.readline()):
            raise SystemExit(f"{self.checkout}: the process died")
        return json.loads(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()


def serve(a: argparse.Namespace) -> None:
    """One JSON line for each line that comes in."""
    named = {f"{rows} row{'s' * (rows > 1)}": (rows, 1.0) for rows in a.rows} | {"1 row, guided": (1, 3.0)}
    kinds = [("", False), (", compiled", True)][: 1 + a.compiled]
    cases = {name + kind: (*case, compiled) for name, case in named.items() for kind, compiled in kinds}
    if a.count:
        with as_on_a_gpu():  # what is chosen at load
            model = random_model(narrow(MISO_8B))
        for _ in sys.stdin:
            print(json.dumps([counts(name, model, *case) for name, case in cases.items()]), flush=True)
        return
    with patch.object(cuda, "is_here", lambda: False) if a.plain else nullcontext():  # asked as the model is prepared
        model = chosen_model(a)
    cases = [Case(name, model, *case[:2], compiled=case[2]) for name, case in cases.items()]
    for case in cases:
        print(f"warm: {case.name}, {case.run(FRAMES):.1f} ms a frame at first", file=sys.stderr)
    for _ in sys.stdin:
        print(json.dumps([{"name": case.name, "ms": case.run(FRAMES)} for case in cases]), flush=True)


def chosen_model(a: argparse.Namespace) -> Model:
    if a.nano:
        args, _, quantization = read_config(bundled() / "config.json")
        return load_model([bundled() / "model.safetensors"], args, quantization)
    args = MISO_8B
    if a.layers:
        shallow = [replace(part, num_layers=a.layers) for part in (args.backbone, args.decoder)]
        args = replace(args, backbone=shallow[0], decoder=shallow[1])
    return random_model(args, wide=mx.default_device() == mx.cpu)


def show_times(rounds: list[list[list[dict]]]) -> None:
    """rounds[round][checkout][case]."""
    for i, first in enumerate(rounds[0][0]):
        row = [f"| {first['name']}"]
        for side in range(len(rounds[0])):
            row.append(f"{median(r[side][i]['ms'] for r in rounds):.1f} ms")
            row.append(f"{median(r[side][i]['ms'] / r[side][0]['ms'] for r in rounds):.2f} x")
        if len(rounds[0]) > 1:
            row.append(f"{median(r[0][i]['ms'] / r[1][i]['ms'] for r in rounds):.2f} of the other's")
        print(" | ".join(row), "|")


def show_counts(sides: list[list[dict]]) -> None:
    for each in zip(*sides, strict=True):
        cells = [f"{c['launching']} launching of {c['all']} | {c['host_ms']:.1f} ms of host" for c in each]
        print(" | ".join([f"| {each[0]['name']}", *cells]), "|")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--nano", action="store_true")
    p.add_argument("--layers", type=int)
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--rows", type=int, nargs="*", default=[1, 2, 4, 8])
    p.add_argument("--first", action="store_true")
    p.add_argument("--count", action="store_true")
    p.add_argument("--plain", action="store_true", help="without misod/cuda.py")
    p.add_argument("--compiled", action="store_true", help="each case once more")
    p.add_argument("--against", type=Path)
    p.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    a = p.parse_args()
    if a.child:
        serve(a)
        return
    if a.first:
        show_first_sound(chosen_model(a), a.rounds)
        return
    here = Path(__file__).parents[1]
    children = [Child(checkout, sys.argv[1:]) for checkout in (here, a.against) if checkout]
    if a.count:
        show_counts([child.ask() for child in children])
    else:
        show_times([[child.ask() for child in children] for _ in range(a.rounds)])
    for child in children:
        child.close()


if __name__ == "__main__":
    main()
