"""Milliseconds a frame at the 8B's shapes: one row, one with guidance, several rows. Random 4-bit weights, no codec.

  python -m benchmarks.frame [--layers N] [--rounds N] [--rows 1 2 4 8]

A round times some frames of each case, one case after the other; what is printed is the median over the rounds and the
median ratio to one row in the same round. Each frame is in flight while the one before is read, as the engine does.
--layers makes backbone and depth decoder shallower: the rest of the shapes are the 8B's, for machines that are slow.
"""

import argparse
import time
from collections import deque
from dataclasses import dataclass, replace
from statistics import median

import mlx.core as mx
from mlx.utils import tree_map

from misod.miso.cache import KVCache, RowsCache
from misod.miso.model import Model
from misod.miso.sampling import Sampler, Settings, draw_noise
from misod.weights.dims import MISO_8B, ModelArgs
from misod.weights.plan import plan

CONTEXT = 500  # positions read before the first frame
FRAMES = 8  # a case a round
CODES = 2048  # of a codebook that have a sound


def random_model(args: ModelArgs) -> Model:
    """Packed in 4 bits as `pull --precision q4` does it, activations in bf16."""
    model = Model(args)
    model.keep_packed(plan(args, "q4"))
    keys = iter(mx.random.split(mx.random.key(0), 4096))

    def fill(empty: mx.array) -> mx.array:
        if empty.dtype == mx.uint32:
            return mx.random.randint(-(2**31), 2**31 - 1, empty.shape, key=next(keys)).view(mx.uint32)
        return (mx.random.normal(empty.shape, key=next(keys)) * 0.003).astype(mx.bfloat16)

    model.update(tree_map(fill, model.parameters()))
    for transformer in (model.backbone, model.decoder):
        transformer.norm.scale = mx.ones_like(transformer.norm.scale)
        for layer in transformer.layers:
            layer.sa_norm.scale, layer.mlp_norm.scale = (mx.ones_like(transformer.norm.scale) for _ in range(2))
    mx.eval(model.parameters())
    model.prepare()
    return model


@dataclass
class Case:
    """So many rows that speak, each with its own past; guided ones have a shadow each."""

    name: str
    model: Model
    rows: int
    guidance: float

    def __post_init__(self):
        args, shadows = self.model.args, self.rows if self.guidance != 1 else 0
        self.settings = [Settings(temperature=0.9, top_k=50, guidance=self.guidance)] * self.rows
        self.keys = [mx.random.key(seed) for seed in range(self.rows)]
        self.caches: list[KVCache] = []
        for _ in range(self.rows + shadows):
            self.caches.append(self.model.new_cache())
            prompt = mx.random.normal((1, CONTEXT, args.backbone.embed_dim)).astype(mx.bfloat16)
            self.last_h = self.model.read(prompt, self.caches[-1])
        self.last_h = mx.repeat(self.last_h, self.rows + shadows, axis=0)
        self.flight: deque[mx.array] = deque()
        self._launch()

    def _launch(self) -> None:
        split = [mx.random.split(key) for key in self.keys]
        self.keys = [key for key, _ in split]
        args = self.model.args
        noise = draw_noise([key for _, key in split], args.audio_num_codebooks, args.audio_vocab_size)
        codes, _ = self.model.frame(self.last_h, Sampler(self.settings, noise, CODES))
        self.last_h = self.model.read(self.model.embed_frame(codes), RowsCache(self.caches))
        mx.async_eval(codes, self.last_h)
        self.flight.append(codes)

    def run(self, frames: int) -> float:
        """-> milliseconds a frame."""
        began_s = time.perf_counter()
        for _ in range(frames):
            self._launch()
            mx.eval(self.flight.popleft())
        mx.eval(self.last_h)
        for cache in self.caches:
            cache.rewind(CONTEXT)  # as long a past in every round
        return (time.perf_counter() - began_s) / frames * 1e3


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--layers", type=int)
    p.add_argument("--rounds", type=int, default=12)
    p.add_argument("--rows", type=int, nargs="*", default=[2, 4, 8])
    a = p.parse_args()
    args = MISO_8B
    if a.layers:
        shallow = [replace(part, num_layers=a.layers) for part in (args.backbone, args.decoder)]
        args = replace(args, backbone=shallow[0], decoder=shallow[1])
    model = random_model(args)
    cases = [Case("1 row", model, 1, 1.0), Case("1 row, guided", model, 1, 3.0)]
    cases += [Case(f"{rows} rows", model, rows, 1.0) for rows in a.rows]
    for case in cases:
        print(f"warm: {case.name}, {case.run(FRAMES):.1f} ms a frame at first", flush=True)
    rounds = [[case.run(FRAMES) for case in cases] for _ in range(a.rounds)]
    print(f"{mx.default_device()}, {args.backbone.num_layers} + {args.decoder.num_layers} layers")
    for i, case in enumerate(cases):
        ratio = median(times[i] / times[0] for times in rounds)
        print(f"| {case.name} | {median(times[i] for times in rounds):.1f} ms | {ratio:.2f} x |")


if __name__ == "__main__":
    main()
