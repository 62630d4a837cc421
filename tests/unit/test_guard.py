"""Each kind of degenerate speech is told of in time, with the frame it began at; what only resembles it is not."""

import copy

import numpy as np
import pytest

from misod.guard import CLIPPING, HISS, REPEAT, SILENCE, Watch, flatness, level
from tests.sounds import FRAME, RATE, speechlike

RATE_HZ, K = 12.5, 8
BEFORE = 10  # frames of good speech before it goes wrong


def speech(frames: int, seed: int = 0) -> np.ndarray:
    """(frames, FRAME)"""
    return speechlike(seed, frames * FRAME / RATE, -23)[: frames * FRAME].reshape(frames, FRAME)


def codes(frames: int, seed: int = 0) -> np.ndarray:
    """(frames, K), no frame like another."""
    return np.random.default_rng(seed).permuted(np.tile(np.arange(500), (K, 1)), axis=1).T[:frames]


def noise(frames: int, dbfs: float) -> np.ndarray:
    rng = np.random.default_rng(1)
    return (10 ** (dbfs / 20) * rng.standard_normal((frames, FRAME))).astype(np.float32)


def watch(codes: np.ndarray, pcm: np.ndarray, **options) -> tuple[str | None, int, int | None]:
    """The first thing told of, after how many frames, and when it began."""
    guard = Watch(RATE_HZ, **options)
    for frame, sound in zip(codes, pcm, strict=True):
        if kind := guard.see(frame, sound):
            return kind, guard.frames, guard.began
    return None, guard.frames, guard.began


def after_speech(pcm: np.ndarray) -> np.ndarray:
    return np.concatenate([speech(BEFORE), pcm])


def looped(period: int, codebooks: int, frames: int = 40) -> np.ndarray:
    made = codes(BEFORE + frames)
    for i in range(BEFORE, len(made)):
        made[i, :codebooks] = made[i - period, :codebooks]
    return made


@pytest.mark.parametrize("seed", range(5))
def test_speech_with_pauses_is_never_told_of(seed):
    assert watch(codes(125), speech(125, seed)) == (None, 125, None)


def test_silence_after_speech_is_told_of_after_two_seconds():
    pcm = after_speech(np.zeros((40, FRAME), np.float32))
    assert watch(codes(len(pcm)), pcm) == (SILENCE, BEFORE + 25, BEFORE)


def test_a_start_without_speech_is_told_of_after_one_second():
    assert watch(codes(40), noise(40, -70)) == (SILENCE, 13, 0)


def test_a_pause_of_a_second_and_a_half_is_no_silence_even_of_one_frame_over_and_over():
    pause = 18
    pcm = after_speech(np.concatenate([noise(pause, -75), speech(20, 1)]))
    made = codes(len(pcm))
    made[BEFORE : BEFORE + pause] = made[BEFORE]
    assert watch(made, pcm)[0] is None


def test_a_quiet_voice_is_a_voice():
    assert watch(codes(100), speech(100) * np.float32(10 ** (-19 / 20)))[0] is None


def test_noise_that_flickers_about_the_border_is_one_silence():
    loud = max(level(frame) for frame in speech(BEFORE))
    pcm = after_speech(np.concatenate([noise(1, loud - 30 + (-2, 3)[i % 2]) for i in range(40)]))
    assert watch(codes(len(pcm)), pcm, ignore=frozenset({HISS})) == (SILENCE, BEFORE + 25, BEFORE)


@pytest.mark.parametrize(("period", "frames"), [(1, 7), (2, 7), (3, 7), (4, 8)])
def test_a_cycle_of_whole_frames_is_told_of_in_half_a_second(period, frames):
    made = looped(period, K)
    assert watch(made, speech(len(made))) == (REPEAT, BEFORE + frames, BEFORE)


def test_a_cycle_with_a_silent_frame_in_it_is_a_cycle():
    made, pcm = looped(4, K), speech(BEFORE + 40)
    pcm[BEFORE + 1 :: 4] = 0
    kind, frames, began = watch(made, pcm)
    assert kind == REPEAT and frames <= BEFORE + 12 and began == BEFORE


@pytest.mark.parametrize("period", [1, 2, 3, 4])
def test_a_cycle_of_codebook_0_alone_is_told_of_later(period):
    made = looped(period, 1)
    assert watch(made, speech(len(made))) == (REPEAT, BEFORE + 15, BEFORE)


def test_a_vowel_held_for_half_a_second_is_no_repeat():
    made = looped(1, 1, 40)
    made[BEFORE + 6 :, 0] += 1000 + np.arange(34)
    assert watch(made, speech(len(made)))[0] is None


@pytest.mark.parametrize("dbfs", [-20, -30, -45])
def test_steady_noise_is_told_of_in_a_second(dbfs):
    pcm = after_speech(noise(30, dbfs))
    kind, frames, began = watch(codes(len(pcm)), pcm)
    assert kind == HISS and frames <= BEFORE + 13 and BEFORE - 2 <= began <= BEFORE


def test_hiss_from_the_first_frame_is_hiss():
    assert watch(codes(30), noise(30, -35)) == (HISS, 13, 0)


def test_a_long_s_and_a_whisper_are_no_hiss():
    hissing = after_speech(np.concatenate([noise(8, -25), speech(20, 1)]))
    assert watch(codes(len(hissing)), hissing)[0] is None
    syllables = 10 ** (np.where(np.arange(100) % 4 < 2, -20.0, -34.0) / 20)
    whisper = noise(100, 0) * syllables[:, None].astype(np.float32)
    assert watch(codes(100), whisper)[0] is None


@pytest.mark.parametrize("clip", [True, False], ids=["cut off", "beyond full scale"])
def test_speech_driven_into_full_scale_is_told_of_in_half_a_second(clip):
    pcm = after_speech(speech(20, 1) * np.float32(10))
    pcm = np.clip(pcm, -1, 1) if clip else pcm
    kind, frames, began = watch(codes(len(pcm)), pcm)
    assert kind == CLIPPING and frames <= BEFORE + 7 and began == BEFORE


def test_a_few_samples_at_full_scale_are_no_clipping():
    pcm = speech(40)
    pcm[:, ::500] = 1.0  # impulses: as flat as noise
    assert watch(codes(40), pcm, ignore=frozenset({HISS}))[0] is None


def test_what_is_ignored_is_not_told_of_but_the_next_kind_is():
    silent = after_speech(np.zeros((40, FRAME), np.float32))
    assert watch(codes(50), silent, ignore=frozenset({SILENCE}))[0] is None
    made, pcm = looped(1, K), after_speech(noise(40, -25))
    assert watch(made, pcm)[0] == REPEAT
    assert watch(made, pcm, ignore=frozenset({REPEAT}))[0] == HISS


def test_a_watch_that_begins_later_counts_what_was_there_before():
    made, pcm = looped(1, K), speech(BEFORE + 40)
    guard = Watch(RATE_HZ, frames=100)
    told = [guard.see(*frame) for frame in zip(made, pcm, strict=True)]
    assert told.index(REPEAT) == BEFORE + 6 and guard.began == 100 + BEFORE


def test_a_copy_is_a_place_to_return_to():
    made, pcm = looped(1, K), speech(BEFORE + 40)
    guard = Watch(RATE_HZ)
    for i in range(BEFORE + 6):
        assert guard.see(made[i], pcm[i]) is None
    kept = copy.deepcopy(guard)
    assert guard.see(made[BEFORE + 6], pcm[BEFORE + 6]) == REPEAT
    other = codes(1, seed=9)[0]
    assert kept.see(other, pcm[BEFORE + 6]) is None and kept.frames == BEFORE + 7 and kept.began is None


def test_the_caller_may_use_its_codes_array_again():
    made, pcm, guard, buffer = codes(40), speech(40), Watch(RATE_HZ), np.zeros(K, int)
    for frame, sound in zip(made, pcm, strict=True):
        buffer[:] = frame
        assert guard.see(buffer, sound) is None


def test_flatness_knows_noise_from_a_tone_at_any_rate():
    for rate_hz in (16_000, 24_000, 48_000):
        n = int(rate_hz / RATE_HZ)
        white = np.random.default_rng(0).standard_normal(n).astype(np.float32)
        hum = np.sin(2 * np.pi * 200 * np.arange(n) / rate_hz)
        assert flatness(white, RATE_HZ) > 0.8 and flatness(hum, RATE_HZ) < 0.001
    assert flatness(np.zeros(FRAME), RATE_HZ) == pytest.approx(1) and level(np.zeros(FRAME)) == -120
