"""The codec's rows share a state while they are decoded together, and it is copied only where their set changes."""

import gc
import weakref
from pathlib import Path

import mlx.core as mx
import numpy as np
import pytest

from misod.miso import streams as s
from misod.miso.mimi import load_mimi
from misod.miso.mimi_numpy import NumpyDecoder

TINY = Path(__file__).parent / "fixtures" / "mimi_tiny"


@pytest.fixture(scope="module")
def mimi():
    return load_mimi(TINY)


@pytest.fixture(params=["mlx", "numpy"])
def codec(request, mimi):
    return NumpyDecoder(mimi) if request.param == "numpy" else mimi


def codes_of(name: str) -> np.ndarray:
    return np.random.default_rng(ord(name)).integers(0, 64, (1, 32, 30)).astype(np.int32)


def speak(codec, plan: list[str]) -> tuple[dict[str, np.ndarray], list[s.Stream]]:
    """A row a letter; each step decodes the next frame of those named, in that order -> each one's pcm."""
    streams, rows, heard = s.Streams(codec), {}, {}
    for names in plan:
        frames = [codes_of(name)[..., len(heard.setdefault(name, [])), None] for name in names]
        held = [rows.pop(name, None) or streams.open() for name in names]
        pcm, held = streams.begin(np.concatenate(frames), held)()
        for name, stream, samples in zip(names, held, pcm, strict=True):
            rows[name] = stream
            heard[name].append(samples)
    return {name: np.concatenate(pieces) for name, pieces in heard.items()}, list(rows.values())


@pytest.mark.parametrize(
    "plan",
    [
        ["ab"] * 4 + ["a"] * 4 + ["ab"] * 3,  # one waits, and comes again
        ["a", "ab", "abc", "acb", "cb", "bc", "abcd", "d", "dcba"],
        ["abcd", "abd", "ad", "da", "cbad"],
        ["abc", "a", "abc", "b", "abc", "abc"],  # one is decoded by itself in between, as where a sentence ends
    ],
)
def test_rows_that_join_wait_and_leave_sound_as_they_do_alone(mimi, codec, plan):
    for name, pcm in speak(codec, plan)[0].items():
        alone = np.array(mimi.decode(mx.array(codes_of(name)[..., : len(pcm) // 1920])))[0]
        np.testing.assert_allclose(pcm, alone, rtol=0, atol=2e-5)


def test_nothing_is_copied_while_the_same_rows_are_decoded(codec, monkeypatch):
    joins = []
    join = s.concat_states
    monkeypatch.setattr(s, "concat_states", lambda parts: (joins.append(len(parts)), join(parts))[1])
    monkeypatch.setattr(s, "take_rows", lambda *_: pytest.fail("a row was copied"))
    speak(codec, ["abc"] * 6)
    assert joins == [3]  # once, where they came together
    joins.clear()
    speak(codec, ["abcd", "abcd", "acd"])
    assert joins == [4, 2]  # a, and its neighbours c and d: two runs


def test_a_row_that_waits_holds_no_state_but_its_own(codec):
    streams = s.Streams(codec)
    codes = [codes_of(name) for name in "abc"]
    _, rows = streams.step(np.concatenate([c[..., :1] for c in codes]), [streams.open() for _ in "abc"])
    waiting, going = rows[2], rows[:2]
    del rows
    for frame in (1, 2):
        _, going = streams.step(np.concatenate([c[..., frame, None] for c in codes[:2]]), going)
    assert all(len(array) == 1 for array in waiting.state.values()) and waiting.row == 0
    gone = weakref.ref(going[0])
    del going
    gc.collect()
    assert gone() is None, "a row that is released is held by nobody"
