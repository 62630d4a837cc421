"""The bundled voice's own sound under the watch, at its seams and at its level."""

import json

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.degenerate import speak
from misod.engine import Say, open_engine
from misod.guard import REPEAT, Watch
from misod.loudness import TARGET_LUFS, Leveller, measure
from misod.miso.engine import MisoEngine
from misod.weights.models import bundled
from tests.clicks import worst_click

FRAME = 1920
LOUDNESS = json.loads((bundled() / "config.json").read_text())["loudness_lufs"]


@pytest.fixture(scope="module")
def nano() -> MisoEngine:
    return open_engine(bundled(), max_rows=4)


@pytest.fixture(scope="module")
def spoken(nano) -> dict[int, list[tuple[np.ndarray, np.ndarray]]]:
    """By speaker, of two texts at the defaults and one at 0.9: codes (T, K) and their sound (T, FRAME)."""
    texts = [("A fox and a lazy dog.", {}), ("Wait, what? I am here.", {}), ("Buns are fine.", {"temperature": 0.9})]
    return {
        speaker: [frames(nano, Say(text, seed=4, speaker=speaker, sampling=sampling)) for text, sampling in texts]
        for speaker in (0, 1)
    }


def frames(engine: MisoEngine, say: Say) -> tuple[np.ndarray, np.ndarray]:
    stream = speak(engine, say)
    return stream.codes, stream.pcm


def level(pcm: np.ndarray, start_gain_db: float) -> np.ndarray:
    leveller = Leveller(24_000, start_gain_db=start_gain_db)
    return np.concatenate([leveller.process(frame) for frame in pcm])


def test_its_speech_is_never_told_of(spoken):
    for codes, pcm in (utterance for speaker in spoken.values() for utterance in speaker):
        watch = Watch(12.5)
        assert [watch.see(*frame) for frame in zip(codes, pcm, strict=True)] == [None] * len(codes)


@pytest.mark.parametrize("period", [1, 3])
def test_its_codec_in_a_loop_is_told_of(nano, spoken, period):
    codes, pcm = spoken[0][0]
    at = int(np.square(pcm[period:]).mean(axis=1).argmax()) + period + 1  # after its loudest frame
    looped = np.concatenate([codes[:at], *[codes[at - period : at]] * (20 // period)])
    pcm = np.array(nano.mimi.decode(mx.array(looped.T[None])))[0].reshape(-1, FRAME)
    watch = Watch(12.5)
    told = [watch.see(*frame) for frame in zip(looped, pcm, strict=True)]
    assert told.index(REPEAT) < at + 10 and watch.began in range(at, at + period)


def test_no_seam_between_its_frames_clicks_nor_does_levelling_make_one(spoken):
    for _, pcm in (utterance for speaker in spoken.values() for utterance in speaker):
        seams = range(FRAME, pcm.size, FRAME)
        assert worst_click(pcm.ravel(), seams, 24_000) < 1.5  # 0.87 over 256 utterances; a jump there: 2 to 20
        assert worst_click(level(pcm, 8.0), seams, 24_000) < 1.5


@pytest.mark.parametrize("speaker", [0, 1])
def test_its_config_knows_how_loud_each_speaker_is(spoken, speaker):
    heard = [measure(pcm.ravel(), 24_000) for _, pcm in spoken[speaker]]
    assert np.mean(heard) == pytest.approx(LOUDNESS[str(speaker)], abs=1.5)


@pytest.mark.parametrize("speaker", [0, 1])
def test_levelled_from_there_each_utterance_is_near_the_target(spoken, speaker):
    for _, pcm in spoken[speaker]:
        out = level(pcm, TARGET_LUFS - LOUDNESS[str(speaker)])
        assert measure(out, 24_000) == pytest.approx(TARGET_LUFS, abs=2.5)
        assert np.abs(out).max() <= 10 ** (-1 / 20) + 1e-7
        assert out.tobytes() == level(pcm, TARGET_LUFS - LOUDNESS[str(speaker)]).tobytes()
