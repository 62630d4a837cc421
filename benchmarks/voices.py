"""What a voice costs: python -m benchmarks.voices [rounds]

nano, through a real daemon: the time to the first PCM with a voice of 10 s, against none. With and without take turns,
in one run; then the daemon is killed and started again, and the voice's prefix is read from disk.
nano, in this process: what hearing a clip, and a first use, do to the frames of a row that speaks.
The 8B's backbone at its true dims, random fp32 weights, LAYERS of its 32 layers (a CPU has no room for more): a short
text read alone, on a fork of a 10 s voice, and after the voice is read anew. And its prefix at full size, in bf16:
forked by all 32 layers, written to disk and read; and fifty of them in the memory that they may take.
Times are medians, as ratios.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import zmq

from misod.engine import PrefixRoom, Say, open_engine
from misod.miso.cache import KVCache
from misod.miso.prefix import Prefixes
from misod.miso.transformer import Transformer
from misod.voices import Voice
from misod.weights.dims import MISO_8B
from misod.weights.models import bundled
from protocol import codec
from protocol import messages as m

TEXT = "The weather in London is cold and wet today."
VOICE_S = 10
LAYERS = 2
POSITIONS, TEXT_POSITIONS = 125 + 1 + 40, 14  # a voice of 10 s: frames, EOS, transcript; and a short text


class Client:
    """One request at a time, to a daemon of its own."""

    def __init__(self, home: Path):
        environ = os.environ | {"MISO_HOME": str(home), "MISO_LOG_LEVEL": "error"}
        self._misod = subprocess.Popen([sys.executable, "-m", "misod", "serve"], env=environ)
        while not (home / "run" / "misod.sock").exists():
            time.sleep(0.05)
        self._socket = zmq.Context.instance().socket(zmq.DEALER)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.connect(f"ipc://{home / 'run' / 'misod.sock'}")
        self._last = 0

    def ask(self, kind: type[m.Message], **fields) -> tuple[bytes, m.Message]:
        """All pcm, and what came last."""
        self._last += 1
        self._socket.send(codec.pack(kind(id=self._last, **fields)))
        pcm = []
        while True:
            got = codec.unpack(self._socket.recv(), m.FROM_DAEMON)
            if isinstance(got, m.Pcm):
                pcm.append(got.data)
                self._socket.send(codec.pack(m.Ack(id=got.id, seq=got.seq)))
            elif isinstance(got, m.Error):
                sys.exit(got.message)
            elif not isinstance(got, m.Accepted | m.Progress):
                return b"".join(pcm), got

    def ttfa_ms(self, voice: str | None) -> float:
        return self.ask(m.Say, text=TEXT, seed=1, max_seconds=0.4, voice=voice)[1].ttfa_ms

    def close(self) -> None:
        self._socket.close()
        self._misod.kill()
        self._misod.wait()


def first_pcm(rounds: int) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        client = Client(Path(folder))
        client.ask(m.Load)
        pcm = b"".join(client.ask(m.Say, text=TEXT, seed=seed)[0] for seed in range(5))
        pcm = pcm[: VOICE_S * 48_000]
        about = {"clip_digest": "0" * 64, "permission": True, "licence": "", "replace": False}
        client.ask(m.Learn, name="anna", clip=pcm, text=TEXT, speaker=0, **about)
        client.ttfa_ms(None)
        first_ms = client.ttfa_ms("anna")
        turns = [(client.ttfa_ms(None), client.ttfa_ms("anna")) for _ in range(rounds)]
        client.close()
        client = Client(Path(folder))
        client.ask(m.Load)
        client.ttfa_ms(None)
        disk_ms = client.ttfa_ms("anna")
        client.close()
    without_ms, with_ms = np.median(turns, axis=0)
    thirds = [np.median(part, axis=0) for part in np.array_split(np.array(turns), 3)]
    print(f"nano, first PCM, {len(pcm) / 48_000:.1f} s of voice, {rounds} turns each; without: {without_ms:.0f} ms")
    print(f"  with, after the first use  {with_ms / without_ms:.2f}  (by thirds of the run:", end="")
    print("".join(f" {b / a:.2f}" for a, b in thirds) + ")")
    print(f"  with, its first use        {first_ms / without_ms:.2f}")
    print(f"  with, after a restart      {disk_ms / without_ms:.2f}")


def frames_beside(engine, frames: int, beside: Callable[[], object] = lambda: None) -> np.ndarray:
    """Seconds from frame to frame of a row that speaks, with `beside` called between."""
    row, times = engine.prefill(Say(text=TEXT * 20, seed=1)), []
    for _ in range(frames):
        began_s = time.perf_counter()
        engine.step([row])
        beside()
        times.append(time.perf_counter() - began_s)
    engine.release(row)
    return np.array(times)


def holds(rounds: int) -> None:
    """What holds a speaking row up: a piece of a clip, and the first use of a voice, with and without a disk."""
    clip = np.random.default_rng(0).normal(0, 0.1, VOICE_S * 24_000).astype(np.float32)
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        engine = open_engine(bundled(), 2, PrefixRoom(directory=Path(folder)))
        alone, heard, first = [], [], {True: [], False: []}
        for _ in range(rounds):
            alone.append(np.median(frames_beside(engine, 25)))
            hearing = engine.hear(clip, TEXT, 0)
            heard.append(np.median(frames_beside(engine, 25, hearing.__next__)))
            for named in first:
                first[named].append(first_use_s(engine, clip, "anna" if named else ""))
    alone_s = np.median(alone)
    print(f"nano, a frame of a row that speaks, in its usual {alone_s * 1000:.0f} ms")
    print(f"  while a clip is heard           {np.median(heard) / alone_s:.2f}")
    print(f"  and the first use of a voice    {1 + np.median(first[False]) / alone_s:.2f}")
    print(f"  the same, and written to disk   {1 + np.median(first[True]) / alone_s:.2f}")


def first_use_s(engine, clip: np.ndarray, name: str) -> float:
    hearing = engine.hear(clip, TEXT, 0)
    while True:
        try:
            next(hearing)
        except StopIteration as end:
            heard = end.value
            break
    voice = Voice(name, heard.codes, TEXT, heard.spoken, 0, heard.codec_digest, "0" * 64)
    engine.forget(voice.digest)
    for path in engine.prefixes._room.directory.glob("*"):
        path.unlink()
    began_s = time.perf_counter()
    row = engine.prefill(Say(text=TEXT, seed=1, voice=voice))
    took_s = time.perf_counter() - began_s
    engine.release(row)
    return took_s


def timed_s(work: Callable[[], object]) -> float:
    began_s = time.perf_counter()
    mx.eval(work())
    return time.perf_counter() - began_s


def full_size(rounds: int) -> None:
    args = replace(MISO_8B.backbone, num_layers=LAYERS)
    backbone = Transformer(args)
    mx.eval(backbone.parameters())
    backbone.prepare()
    voice, text = (mx.random.normal((1, n, args.embed_dim)) for n in (POSITIONS, TEXT_POSITIONS))
    kept = KVCache(LAYERS)
    mx.eval(backbone(voice, kept))
    kv = kept.packed()
    mx.eval(kv)
    ways = {
        "alone": lambda: backbone(text, KVCache(LAYERS)),
        "on a fork of the voice": lambda: backbone(text, KVCache.fork(kv)),
        "after the voice, read anew": lambda: backbone(mx.concatenate([voice, text], axis=1), KVCache(LAYERS)),
    }
    times = {way: [] for way in ways}
    for _ in range(rounds):
        for way, work in ways.items():
            times[way].append(timed_s(work))
    alone_s = np.median(times["alone"])
    print(f"8B's dims, {LAYERS} layers, fp32: {TEXT_POSITIONS} positions of text read")
    for way, all_s in times.items():
        print(f"  {way:27} {np.median(all_s) / alone_s:.2f}")
    on_disk(rounds, np.median(times["after the voice, read anew"]) * MISO_8B.backbone.num_layers / LAYERS)


def on_disk(rounds: int, anew_s: float) -> None:
    """A whole prefix. `anew_s`: what all layers would take here to read the voice, by those that did."""
    args = MISO_8B.backbone
    layout = 2 * args.num_layers, args.num_kv_heads, args.head_dim
    kv = mx.random.normal((*layout[:2], POSITIONS, layout[2])).astype(mx.bfloat16)
    mx.eval(kv)
    token = mx.zeros((1, args.num_kv_heads, 1, args.head_dim), mx.bfloat16)
    both = mx.stack([token, token])
    times: dict[str, list[float]] = {"forked, and written to": [], "written to disk": [], "read from disk": []}

    def write_to(fork: KVCache) -> list[mx.array]:
        return [fork.attend(layer, token, both, 1.0) for layer in range(args.num_layers)]

    with tempfile.TemporaryDirectory(dir="/tmp") as folder:

        def prefixes() -> Prefixes:
            return Prefixes(PrefixRoom(directory=Path(folder)), "m" * 64, layout, mx.bfloat16)

        for _ in range(rounds):
            times["forked, and written to"].append(timed_s(lambda: write_to(KVCache.fork(kv))))
            times["written to disk"].append(timed_s(lambda: prefixes().store("d" * 64, kv)))
            times["read from disk"].append(timed_s(lambda: prefixes().find(["d" * 64], POSITIONS)[1].kv))
    print(f"a prefix of the 8B, {kv.nbytes / 1e6:.0f} MB: ms, and the share of reading the voice anew here")
    for way, all_s in times.items():
        print(f"  {way:27} {np.median(all_s) * 1000:4.0f} ms  {np.median(all_s) / anew_s:.4f}")


def fifty_voices() -> None:
    """Of 10 s each, in the memory that they may take."""
    args, room = MISO_8B.backbone, PrefixRoom()
    layout = 2 * args.num_layers, args.num_kv_heads, args.head_dim
    kept, base_bytes = Prefixes(room, "m" * 64, layout, mx.bfloat16), mx.get_active_memory()
    for number in range(50):
        kv = mx.full((*layout[:2], POSITIONS, layout[2]), number, mx.bfloat16)
        mx.eval(kv)
        kept.add(str(number), kv)
    held_bytes = mx.get_active_memory() - base_bytes
    wanted, counted, held = (each / room.limit_bytes for each in (50 * kv.nbytes, kept.bytes, held_bytes))
    print(f"50 such prefixes, as shares of the memory they may take: {wanted:.2f}")
    print(f"  counted {counted:.2f}, held by MLX {held:.2f}, dropped {kept.evictions}")


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 30
    first_pcm(rounds)
    holds(max(3, rounds // 5))
    full_size(max(3, rounds // 5))
    fifty_voices()


if __name__ == "__main__":
    main()
