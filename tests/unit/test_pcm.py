"""Float samples to 16 bits: clipped before the cast, and counted."""

import numpy as np
import pytest

from misod.loudness import TARGET_LUFS, Leveller, measure
from misod.pcm import Samples


def s16(values, dtype=np.float32) -> list[int]:
    return np.frombuffer(Samples().to_s16(np.array(values, dtype)), "<i2").tolist()


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_full_scale_is_32767_both_ways(dtype):
    assert s16([0, 1, -1, 0.5, -0.5], dtype) == [0, 32767, -32767, 16384, -16384]


def test_too_loud_is_clipped_and_never_wraps_around():
    assert s16([1.0001, 2, 1e30, -1.0001, -2, -1e30]) == [32767] * 3 + [-32767] * 3


def test_what_is_not_finite_is_silence():
    assert s16([np.nan, np.inf, -np.inf, 0.25]) == [0, 0, 0, 8192]


def test_the_bytes_are_little_endian():
    assert Samples().to_s16(np.array([1.0], np.float32)) == b"\xff\x7f"


def test_counts_add_up_over_an_utterance():
    samples = Samples()
    samples.to_s16(np.array([0.5, 1.0, -1.0, 1.5, np.nan], np.float32))
    samples.to_s16(np.array([-7, np.inf], np.float32))
    samples.to_s16(np.zeros(0, np.float32))
    assert (samples.total, samples.clipped, samples.nonfinite) == (7, 2, 2)


def test_the_engine_s_samples_are_left_as_they_were():
    pcm = np.array([2.0, np.nan], np.float32)
    Samples().to_s16(pcm)
    assert pcm[0] == 2.0
    assert np.isnan(pcm[1])


def test_no_warning_is_raised_by_any_sample():
    with np.errstate(all="raise"):
        s16([np.nan, np.inf, 1e38, -1e38, 1e-45])


def test_an_utterance_is_faded_at_its_two_edges_and_nowhere_else():
    samples, loud = Samples(), np.full(480, 0.5, np.float32)
    first, middle, last = (
        np.frombuffer(samples.finish(loud, 24000, last=part == 2), "<i2").astype(int) for part in range(3)
    )
    assert first[0] == 0 and (np.diff(first) >= 0).all() and (first[200:] == 16384).all()
    assert (middle == 16384).all()
    assert last[-1] == 0 and (np.diff(last) <= 0).all() and (last[:280] == 16384).all()


def test_what_is_not_finite_does_not_reach_the_leveller():
    samples = Samples(leveller=Leveller(24000))
    broken = np.full(4800, np.nan, np.float32)
    assert samples.finish(broken, 24000, last=False) == bytes(9600) and samples.nonfinite == 4800


def test_speech_is_brought_to_the_target_and_kept_under_full_scale():
    rng = np.random.default_rng(1)
    quiet = (0.01 * rng.standard_normal(24000 * 6)).astype(np.float32)
    samples = Samples(leveller=Leveller(24000, start_gain_db=10.0))
    for frame in quiet.reshape(-1, 1920):
        samples.finish(frame, 24000, last=False)
    assert abs(samples.leveller.output_lufs - TARGET_LUFS) < 3 and samples.clipped == 0


def test_what_one_voice_says_before_another_has_edges_as_an_utterance_has():
    loud = np.full(4800, 0.5, np.float32)
    alone, after = Samples(), Samples()
    after.finish(loud, 24_000, last=True)
    after.finish(np.zeros(0, np.float32), 24_000, last=False)
    parts = [(loud, False), (loud, True)]
    said = [[samples.finish(pcm, 24_000, last) for pcm, last in parts] for samples in (alone, after)]
    assert said[0] == said[1]
    heard = np.frombuffer(b"".join(said[1]), "<i2")
    assert heard[0] == heard[-1] == 0 and heard[4800] == heard[4799] == 16384


def test_a_second_voice_is_levelled_as_it_is_alone_and_the_loudness_is_of_both():
    rng = np.random.default_rng(1)
    quiet, loud = (gain * rng.standard_normal(48_000).astype(np.float32) for gain in (0.01, 0.2))
    first, alone = Leveller(24_000), Leveller(24_000, start_gain_db=-6.0)
    before = first.process(quiet)
    second = Leveller(24_000, start_gain_db=-6.0, after=first)
    assert second.process(loud).tobytes() == alone.process(loud).tobytes()
    both = np.concatenate([before, Leveller(24_000, start_gain_db=-6.0).process(loud)])
    assert second.output_lufs == pytest.approx(measure(both, 24_000), abs=1e-9) != alone.output_lufs
