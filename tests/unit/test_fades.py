"""Fades touch an utterance's edges and nothing else; the click detector hears a seam that jumps."""

import numpy as np
import pytest

from misod.pcm import EDGE_MS, fade_in, fade_out
from tests.clicks import worst_click

RATE = 24_000
EDGE = round(EDGE_MS / 1000 * RATE)


def sound(seconds: float = 0.5) -> np.ndarray:
    t = np.arange(round(seconds * RATE)) / RATE
    return (0.3 * np.sin(2 * np.pi * 180 * t + 1.3)).astype(np.float32)


def test_the_fades_rise_from_silence_and_leave_the_rest_to_the_bit():
    pcm = sound()
    faded = fade_in(pcm, RATE)
    assert faded.dtype == np.float32 and faded[0] == 0
    np.testing.assert_array_equal(faded[EDGE:], pcm[EDGE:])
    share = faded[1:EDGE] / pcm[1:EDGE]
    assert (np.diff(share) > 0).all() and share[EDGE // 2 - 1] == pytest.approx(0.5, abs=1e-6)
    np.testing.assert_array_equal(fade_out(pcm, RATE), fade_in(pcm[::-1], RATE)[::-1])


def test_the_input_is_left_as_it_was_and_short_ones_fade_wholly():
    pcm = np.ones(10, np.float32)
    assert fade_in(pcm, RATE)[0] == 0 and fade_out(pcm, RATE)[-1] == 0 and pcm.all()
    assert fade_in(pcm[:1], RATE).tolist() == [0] and fade_out(pcm[:0], RATE).size == 0


def test_an_edge_in_the_middle_of_a_wave_clicks_and_its_fade_does_not():
    pcm = sound()
    assert worst_click(pcm, [0, len(pcm)], RATE) > 4
    assert worst_click(fade_out(fade_in(pcm, RATE), RATE), [0, len(pcm)], RATE) < 1


def test_the_detector_hears_a_jump_a_gap_and_a_doubling_and_not_a_seam_that_runs_on():
    pcm = sound()
    seam = RATE // 4 + 31
    assert worst_click(pcm, [seam], RATE) < 1.1
    turned, louder, missing = pcm.copy(), pcm.copy(), np.delete(pcm, slice(seam, seam + 60))
    turned[seam:] *= -1
    louder[seam:] *= 2
    for broken in (turned, louder, missing):
        assert worst_click(broken, [seam], RATE) > 1.5
