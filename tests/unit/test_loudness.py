"""Loudness against answers known from the standards and a second computation; the gain and the ceiling by promise."""

import numpy as np
import pytest

from misod.limiter import Limiter
from misod.loudness import GAIN_DB, TARGET_LUFS, KFilter, Leveller, Meter, coefficients, measure
from tests.sounds import FRAME, RATE, speechlike

CEILING = 10 ** (-1 / 20)
MONO_DB = 10 * np.log10(2)  # EBU Tech 3341 plays its tones on two channels, which count as twice the power of one


def tone(dbfs: float, seconds: float, hz: float = 1000.0, rate_hz: int = RATE) -> np.ndarray:
    return 10 ** (dbfs / 20) * np.sin(2 * np.pi * hz * np.arange(round(seconds * rate_hz)) / rate_hz)


def level(leveller: Leveller, pcm: np.ndarray, sizes=None) -> np.ndarray:
    cuts = np.cumsum(sizes) if sizes is not None else np.arange(FRAME, len(pcm), FRAME)
    return np.concatenate([leveller.process(part) for part in np.split(pcm, cuts)])


def directly(pcm: np.ndarray, rate_hz: int) -> float:
    """Integrated loudness by the letter of BS.1770-4: one sample, one block, one decibel at a time."""
    for b, a in coefficients(rate_hz):
        x1 = x2 = y1 = y2 = 0.0
        out = []
        for x in pcm.tolist():
            y = b[0] * x + b[1] * x1 + b[2] * x2 - a[1] * y1 - a[2] * y2
            x1, x2, y1, y2 = x, x1, y, y1
            out.append(y)
        pcm = np.array(out)
    length, step = rate_hz * 4 // 10, rate_hz // 10
    power = [np.mean(pcm[i : i + length] ** 2) for i in range(0, len(pcm) - length + 1, step)]
    blocks = [(p, -0.691 + 10 * np.log10(p)) for p in power if p > 0]
    heard = [p for p, lufs in blocks if lufs > -70]
    gate = -0.691 + 10 * np.log10(np.mean(heard)) - 10
    return -0.691 + 10 * np.log10(np.mean([p for p, lufs in blocks if lufs > max(gate, -70)]))


# ---- the measure


def test_at_48_khz_the_coefficients_are_those_of_the_standard():
    """BS.1770-4, tables 1 and 2, as printed."""
    (shelf_b, shelf_a), (pass_b, pass_a) = coefficients(48_000)
    np.testing.assert_allclose(shelf_b, [1.53512485958697, -2.69169618940638, 1.19839281085285], rtol=0, atol=1e-9)
    np.testing.assert_allclose(shelf_a, [1, -1.69065929318241, 0.73248077421585], rtol=0, atol=1e-9)
    np.testing.assert_allclose(pass_a, [1, -1.99004745483398, 0.99007225036621], rtol=0, atol=1e-9)
    assert pass_b.tolist() == [1, -2, 1]


@pytest.mark.parametrize("rate_hz", [16_000, 22_050, 24_000, 44_100, 48_000, 96_000])
@pytest.mark.parametrize("hz", [997.0, 1000.0])
def test_a_full_scale_tone_in_one_channel_is_minus_3_01(rate_hz, hz):
    assert measure(tone(0, 5, hz, rate_hz), rate_hz) == pytest.approx(-3.01, abs=0.06)


@pytest.mark.parametrize(
    ("parts", "lufs"),
    [
        ([(-23, 20)], -23),
        ([(-33, 20)], -33),
        ([(-36, 10), (-23, 60), (-36, 10)], -23),
        ([(-72, 10), (-36, 10), (-23, 60), (-36, 10), (-72, 10)], -23),
        ([(-26, 20), (-20, 20.1), (-26, 20)], -23),
    ],
    ids=["tech 3341 case 1", "case 2", "case 3", "case 4", "case 5"],
)
def test_the_cases_of_ebu_tech_3341_in_one_channel(parts, lufs):
    pcm = np.concatenate([tone(dbfs + MONO_DB, seconds) for dbfs, seconds in parts])
    assert measure(pcm, RATE) == pytest.approx(lufs, abs=0.1)


@pytest.mark.parametrize("seed", range(3))
def test_it_is_what_the_standard_says_computed_another_way(seed):
    pcm = np.concatenate([speechlike(seed, 3, -24), np.zeros(RATE), 0.001 * speechlike(seed, 1, -20)])
    assert measure(pcm, RATE) == pytest.approx(directly(pcm, RATE), abs=1e-6)


def test_the_filter_is_the_same_however_the_sound_is_cut():
    rng = np.random.default_rng(5)
    pcm = rng.standard_normal(20_000)
    whole, filter = KFilter(RATE).process(pcm), KFilter(RATE)
    cuts = np.sort(rng.integers(0, len(pcm), 60))
    np.testing.assert_allclose(
        np.concatenate([filter.process(part) for part in np.split(pcm, cuts)]), whole, atol=1e-10
    )


def test_nothing_is_known_of_less_than_400_ms_nor_of_silence():
    meter = Meter(RATE)
    meter.feed(tone(-20, 0.399))
    assert meter.lufs is None
    meter.feed(tone(-20, 0.001))
    assert meter.lufs is not None
    assert measure(np.zeros(5 * RATE), RATE) is None and measure(tone(-75, 5), RATE) is None
    assert measure(np.zeros(0), RATE) is None


# ---- the gain


@pytest.mark.parametrize("lufs", [-40, -33, -23, -18, -11, -5])
def test_speech_of_any_level_is_within_1_lu_of_the_target_after_3_s(lufs):
    for seed in range(4):
        pcm = speechlike(seed, 12, lufs)
        leveller = Leveller(RATE)
        out = level(leveller, pcm[: 3 * RATE])
        assert leveller.gain_db == pytest.approx(TARGET_LUFS - measure(pcm[: 3 * RATE], RATE), abs=1)
        out = np.concatenate([out, level(leveller, pcm[3 * RATE :])])
        assert measure(out[3 * RATE :], RATE) == pytest.approx(TARGET_LUFS, abs=1)
        assert leveller.output_lufs == pytest.approx(measure(out, RATE), abs=1e-9)


@pytest.mark.parametrize("lufs", [-40, -5])
def test_the_gain_moves_by_less_than_1_db_in_100_ms(lufs):
    pcm = speechlike(1, 8, lufs)
    leveller, track = Leveller(RATE), []
    for part in np.split(pcm, np.arange(RATE // 100, len(pcm), RATE // 100)):
        leveller.process(part)
        track.append(leveller.gain_db)
    track = np.array(track)
    assert np.abs(track[10:] - track[:-10]).max() < 1
    assert abs(track[-1] - track[0]) > 12


def test_a_gain_that_starts_right_stays_there_through_quiet_and_loud_syllables():
    for seed in range(4):
        leveller, track = Leveller(RATE, start_gain_db=6.0), []
        for part in np.split(speechlike(seed, 10, -24), np.arange(FRAME, 10 * RATE, FRAME)):
            leveller.process(part)
            track.append(leveller.gain_db)
        assert max(track) - min(track) < 2.0 and track[-1] == pytest.approx(6.0, abs=1)


def test_the_gain_is_frozen_in_silence_and_in_the_noise_of_a_pause():
    leveller = Leveller(RATE)
    level(leveller, speechlike(2, 2, -30))
    level(leveller, np.zeros(RATE // 2, np.float32))  # the last block that speech reaches into is over
    before = leveller.gain_db
    level(leveller, np.zeros(10 * RATE, np.float32))
    hiss = np.random.default_rng(0).standard_normal(10 * RATE).astype(np.float32) * 10 ** (-60 / 20)
    level(leveller, hiss)
    assert leveller.gain_db == pytest.approx(before, abs=0.01)


def test_the_gain_has_ends():
    quiet, loud = Leveller(RATE), Leveller(RATE)
    level(quiet, speechlike(0, 8, -60))
    level(loud, speechlike(0, 8, 12))
    assert (quiet.gain_db, loud.gain_db) == pytest.approx(GAIN_DB[::-1], abs=0.1)
    assert Leveller(RATE, start_gain_db=99.0).gain_db == pytest.approx(GAIN_DB[1])


def test_the_gain_told_is_the_gain_of_the_last_sample():
    leveller, pcm = Leveller(RATE), speechlike(0, 2, -35)
    for part in np.split(pcm, np.arange(1111, len(pcm), 1111)):
        out = leveller.process(part)
        assert out[-1] == pytest.approx(part[-1] * 10 ** (leveller.gain_db / 20), rel=1e-4)


def test_a_text_that_grows_quieter_after_a_minute_is_followed():
    leveller = Leveller(RATE)
    level(leveller, np.concatenate([speechlike(0, 60, -15), speechlike(1, 30, -25)]))
    assert leveller.gain_db == pytest.approx(7, abs=1)


def test_the_output_does_not_depend_on_how_the_sound_is_cut():
    rng = np.random.default_rng(3)
    pcm = speechlike(3, 6, -30)
    sizes = rng.choice([0, 1, 7, 480, 1919, 1920, 1921, 2400, 5000], 60)
    frames, pieces = level(Leveller(RATE), pcm), level(Leveller(RATE), pcm, sizes)
    assert frames.dtype == pieces.dtype == np.float32 and frames.shape == pieces.shape == pcm.shape
    np.testing.assert_allclose(pieces, frames, rtol=0, atol=1e-6)


def test_same_calls_same_bytes():
    pcm = speechlike(4, 5, -8)
    assert level(Leveller(RATE), pcm).tobytes() == level(Leveller(RATE), pcm).tobytes()


def test_a_voice_at_the_target_passes_untouched_while_nothing_is_known():
    pcm = speechlike(0, 3, -18)[: RATE * 3 // 10]
    np.testing.assert_array_equal(level(Leveller(RATE), pcm), pcm)


def test_digital_silence_stays_digital_silence():
    leveller = Leveller(RATE, start_gain_db=20)
    level(leveller, speechlike(0, 2, -10))
    assert not level(leveller, np.zeros(RATE, np.float32)).any()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_refused_and_leaves_no_trace(value):
    leveller, pcm = Leveller(RATE), speechlike(0, 1, -20)
    with pytest.raises(ValueError, match="not finite"):
        leveller.process(np.array([0.1, value, 0.1], np.float32))
    assert level(leveller, pcm).tobytes() == level(Leveller(RATE), pcm).tobytes()


# ---- the ceiling


@pytest.mark.parametrize("at", [0, 1, 30, 960, 1919])
@pytest.mark.parametrize("height", [0.9, 1.5, 4.0, -4.0, 100.0])
def test_a_peak_anywhere_in_a_frame_stays_under_the_ceiling(at, height):
    pcm = 0.2 * tone(0, 0.4).astype(np.float32)
    pcm[2 * FRAME + at] = height
    out = level(Leveller(RATE), pcm)
    assert 0.8 < np.abs(out).max() <= CEILING + 1e-7


def test_the_limiter_turns_down_before_the_peak_and_never_steps():
    """A tone that becomes four times too loud: what multiplies it is a line of bounded slope, also across calls."""
    x = np.concatenate([tone(-6, 0.5, 150), tone(12, 0.5, 150), tone(-6, 1.5, 150)])
    limiter = Limiter(RATE, -1.0)
    out = np.concatenate([limiter.process(part) for part in np.split(x, np.arange(FRAME, len(x), FRAME))])
    assert np.abs(out).max() <= CEILING
    loud = np.abs(x) > 0.05
    factor = np.interp(np.arange(len(x)), np.flatnonzero(loud), (out[loud] / x[loud]))
    start = RATE // 2
    assert factor[start - 60] == 1.0 and factor[start + 40] < 0.3, "turned down within a quarter of a period"
    untouched = np.abs(out) < 10 ** (-1.5 / 20)  # by the knee
    steps = np.abs(np.diff(factor))[untouched[1:] & untouched[:-1]]
    assert steps.max() <= 1 / (0.004 * RATE) + 1e-9
    assert factor[start + RATE // 2 + RATE // 10] < 0.6, "released slowly"
    assert factor[-1] == 1.0 and out[-1] == x[-1], "and wholly"


def test_a_step_into_full_overload_at_the_first_sample_of_a_call_is_no_click():
    """Where there is no time to turn down, the knee takes it: bounded, and back to clean sound in 4 ms."""
    x = np.concatenate([np.zeros(FRAME), tone(20, 0.4, 200)])
    limiter = Limiter(RATE, -1.0)
    out = np.concatenate([limiter.process(part) for part in np.split(x, np.arange(FRAME, len(x), FRAME))])
    assert np.abs(out).max() <= CEILING
    settled = slice(FRAME + RATE // 250, FRAME + RATE // 10)
    factor = (out[settled] @ x[settled]) / (x[settled] @ x[settled])
    np.testing.assert_allclose(out[settled], x[settled] * factor, atol=0.1)


def test_a_peak_at_the_first_sample_of_a_call_does_not_pull_its_neighbours_down_at_once():
    limiter, x = Limiter(RATE, -1.0), np.full(FRAME, 0.5)
    limiter.process(x)
    x[0] = 4.0
    out = limiter.process(x)
    assert out[0] <= CEILING and out[1] > 0.48 and (np.abs(np.diff(out[1:])) < 0.01).all()


@pytest.mark.parametrize("seed", range(3))
def test_no_size_of_call_gets_a_sample_past_the_ceiling(seed):
    rng = np.random.default_rng(seed)
    pcm = speechlike(seed, 4, -3) * np.float32(3)
    out = level(Leveller(RATE, start_gain_db=20), pcm, rng.integers(0, 3000, 40))
    assert np.abs(out).max() <= CEILING + 1e-7


def test_sound_under_the_ceiling_is_not_touched():
    x = 0.8 * np.random.default_rng(0).uniform(-1, 1, FRAME)
    limiter = Limiter(RATE, -1.0)
    assert limiter.process(x) is x
