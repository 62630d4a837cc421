"""Frames that are compiled say what frames that are not say, and their graphs are made once.

mx.compile is the true one here, but for `slow` it fuses nothing: for fused kernels a CPU takes g++, and that a minute.
"""

import ctypes
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest
from test_miso import TINY, load

from misod import mlx_device
from misod.engine import Say, open_engine
from misod.miso.cache import BLOCK, KVCache
from misod.miso.compiled import WINDOWS, Compiled, Plain, window
from misod.miso.engine import MisoEngine
from misod.miso.model import Model
from misod.miso.sampling import Settings
from misod.weights.models import bundled

CODES, K = 96, 32  # of TINY; three codes have no sound
FEW = 5  # codebooks, where all of them would show no more
NO_FUSE, ENABLED = 2, 3  # of MLX's CompileMode, which its Python does not know
STEPS = [[0]] * 4 + [[0, 1]] * 6 + [[2, 1, 0]] * 4 + [[2, 0]] * 3 + [[2]] * 3  # who speaks: they join and leave


@pytest.fixture(scope="module", params=[NO_FUSE, pytest.param(ENABLED, marks=pytest.mark.slow)])
def compile_mode(request) -> Iterator[None]:
    library = ctypes.CDLL(str(next((Path(mx.__file__).parent / "lib").glob("libmlx.*"))))
    set_mode = library._ZN3mlx4core16set_compile_modeENS0_11CompileModeE
    set_mode(request.param)
    yield
    set_mode(ENABLED)


@pytest.fixture(scope="module")
def model() -> Model:
    return load(TINY)


@pytest.fixture
def compiled(model, compile_mode) -> Compiled:
    return Compiled(model, CODES, 3)


@pytest.fixture(scope="module")
def nano() -> MisoEngine:
    return open_engine(bundled(), max_rows=3)


class Speakers:
    """Rows, each after so many positions of noise, and a shadow after fewer where it is guided."""

    def __init__(self, frames: Plain, lengths: list[int], guided: bool = False):
        self.frames, self.guided = frames, guided
        self.rows = [self._read(length, seed) for seed, length in enumerate(lengths)]
        self.keys = [mx.random.key(seed) for seed in range(len(lengths))]

    def _read(self, length: int, seed: int) -> list[list]:
        model, each = self.frames.model, []
        for positions in [length, 9][: 1 + self.guided]:
            cache, width = model.new_cache(), model.args.backbone.embed_dim
            prompt = mx.random.normal((1, positions, width), key=mx.random.key(seed)).astype(model.dtype)
            each.append([cache, model.read(prompt, cache)])
        return each

    def step(self, who: list[int], settings: list[Settings], depth: int = FEW) -> np.ndarray:
        """The frame that each of them says, (B, K)."""
        lanes = [self.rows[i][part] for part in range(1 + self.guided) for i in who]
        last_h, keys = mx.concatenate([lane[1] for lane in lanes]), [self.keys[i] for i in who]
        codes, finite, keys = self.frames.draw(last_h, keys, settings, depth)
        read = self.frames.read(codes, None, [lane[0] for lane in lanes])
        for lane, h in zip(lanes, mx.split(read, len(lanes)), strict=True):
            lane[1] = h
        for i, key in zip(who, keys, strict=True):
            self.keys[i] = key
        assert finite.all()
        return np.array(codes[: len(who)])


@pytest.mark.parametrize(
    "settings",
    [
        Settings(0.0, 50),
        Settings(1.0, 96, top_p=0.9, min_p=0.01),
        Settings(0.7, 90, min_p=0.02, guidance=0.5, may_end=False),
    ],
)
def test_rows_that_join_and_leave_and_outgrow_their_window_say_what_they_say_uncompiled(model, compiled, settings):
    """The first row goes from 256 to 512 positions at its tenth frame, while the second speaks beside it."""
    each = [
        Speakers(frames, [WINDOWS[0] - 9, 40, 300], settings.guidance != 1)
        for frames in (Plain(model, CODES), compiled)
    ]
    for number, who in enumerate(STEPS):
        own = [replace(settings, top_k=settings.top_k - i) for i in who]
        plain, ours = (speakers.step(who, own) for speakers in each)
        np.testing.assert_array_equal(ours, plain, err_msg=f"frame {number}")
    assert each[1].rows[0][0][0].capacity == 512 and each[1].rows[1][0][0].capacity == 256


@pytest.mark.parametrize(
    "changing",
    [
        lambda i: Settings(0.02 * i if i % 5 else 1, 1 + i, may_end=i % 2 > 0),
        lambda i: Settings(1.0, 96, top_p=1 - i / 50, min_p=(i + 1) / 99),
        lambda i: Settings(0.5, 9, guidance=1.1 + i / 10),
    ],
    ids=["temperature, top-k, end", "top-p, min-p", "guidance"],
)
def test_nothing_is_traced_anew_while_a_rows_settings_change(compiled, changing):
    speakers = Speakers(compiled, [20], guided=changing(0).guidance != 1)
    for i in range(40):
        speakers.step([0], [changing(i)])
    assert compiled.graphs == 2, "one to draw, one to read"


def test_a_graph_is_made_for_what_is_new_alone(compiled):
    speakers, plain, shares = Speakers(compiled, [240, 20]), Settings(0.9, 50), Settings(0.9, 50, min_p=0.1)

    def made(who: list[int], settings: Settings, depth: int = FEW) -> int:
        before = compiled.graphs
        speakers.step(who, [settings] * len(who), depth)
        return compiled.graphs - before

    assert made([0], plain) == 2 and made([1], plain) == 0
    assert made([0, 1], plain) == 2 and made([1, 0], plain) == 0
    assert made([0], shares) == 1 and made([1], shares) == 0
    assert made([1], plain, 8) == 1 and made([1], plain, 8) == 0
    for _ in range(WINDOWS[0] - speakers.rows[0][0][0].offset):
        assert made([0], plain) == 0
    assert made([0], plain) == 1, "a wider window"
    assert made([0, 1], plain) == 1 and made([1, 0], plain) == 0, "two windows, in whatever order"
    assert compiled.graphs_s > 0


def test_what_is_made_ahead_is_all_that_rows_without_a_shadow_need_and_takes_no_memory(compiled):
    held = mx.get_active_memory()
    mx.reset_peak_memory()
    while compiled.prepare():
        pass
    made = compiled.graphs
    assert made == 3 * (2 + len(WINDOWS)) and not compiled.prepare()
    assert mx.get_peak_memory() - held < 1 << 20
    speakers = Speakers(compiled, [20, 30, 10])
    for who in ([0], [0, 1], [2, 0, 1], [2]):
        speakers.step(who, [Settings(0.9, 50)] * len(who), K)
        speakers.step(who, [Settings(0.9, 50, top_p=0.9)] * len(who), K)
    Speakers(compiled, [600]).step([0], [Settings(0.9, 50)], K)
    assert compiled.graphs == made


def test_keys_and_values_are_written_in_place(compiled):
    mx.clear_cache()
    before = mx.get_active_memory()
    speakers = Speakers(compiled, [520])
    for _ in range(3):
        speakers.step([0], [Settings(0.0, 1)])
    ((cache, last_h),) = speakers.rows[0]
    mx.eval(last_h, cache.kv)
    held, each = mx.get_active_memory(), sum(kv.nbytes for kv in cache.kv)
    assert cache.kv[0].shape[3] == 1024 and held - before < each * 5 / 4
    mx.reset_peak_memory()
    mx.eval(compiled.read(mx.zeros((1, K), mx.uint32), None, [cache]), cache.kv)
    assert mx.get_peak_memory() - held < each * 3 / 4


def test_a_past_that_goes_on_from_a_voices_comes_to_a_window_too(compiled):
    speakers = Speakers(compiled, [100])
    lane = speakers.rows[0][0]
    lane[0] = KVCache.fork(lane[0].packed())
    lane[1] = compiled.model.read(mx.zeros((1, 20, compiled.model.args.backbone.embed_dim)), lane[0])
    assert lane[0].capacity == 100 + BLOCK
    speakers.step([0], [Settings(0.9, 50)])
    assert lane[0].capacity == 512 and lane[0].offset == 121


def test_a_window_is_the_smallest_that_holds_them():
    assert [window(n) for n in (1, 256, 257, 1000, 2048, 2049, 5000)] == [256, 256, 512, 1024, 2048, 4096, 8192]


def samples(engine: MisoEngine, **say) -> tuple[np.ndarray, str]:
    row, pcm = engine.prefill(Say(seed=1, **say)), []
    while True:
        (chunk,) = engine.step([row])
        pcm.append(chunk.pcm)
        if chunk.end:
            engine.release(row)
            return np.concatenate(pcm), chunk.end


@pytest.mark.parametrize(
    "sampling", [{"guidance": 2.0, "min_p": 0.1, "depth": 5}, pytest.param({}, marks=pytest.mark.slow)]
)
def test_an_engine_speaks_the_same_samples_compiled(nano, compile_mode, sampling, monkeypatch):
    say = {"text": "Oh? Hello from Miso.", "sampling": sampling, "max_seconds": 0.8}
    plain, end = samples(nano, **say)
    monkeypatch.setattr(nano, "frames", Compiled(nano.model, nano.codes, nano.max_rows))
    ours, our_end = samples(nano, **say)
    assert (our_end, ours.size) == (end, plain.size) and nano.memory().graphs == 2
    np.testing.assert_allclose(ours, plain, rtol=0, atol=2e-4)


def test_on_a_cpu_nothing_is_compiled(nano):
    assert type(nano.frames) is Plain and not nano.prepare()
    assert (nano.memory().graphs, nano.memory().graphs_s) == (0, 0.0)


@pytest.mark.parametrize(("backend", "pays"), [("mlx cpu", False), ("mlx cuda", False), ("mlx metal", True)])
def test_frames_are_compiled_on_metal_alone(backend, pays, monkeypatch):
    monkeypatch.setattr(mlx_device, "backend", lambda: backend)
    assert mlx_device.compiles() is pays
