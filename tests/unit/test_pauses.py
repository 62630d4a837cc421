"""Speech cut in its pauses: where, and that neither a click nor a gap comes of it."""

import numpy as np
import pytest

from misoctl.playing.pauses import LEFT_MS, PAUSE_MS, Pauses
from misoctl.playing.samples import FADE_MS, decay, fade_out, peak
from tests.clicks import worst_click

RATE = 24_000


def tone(seconds: float, loud: float = 0.3) -> bytes:
    t = np.arange(round(seconds * RATE)) / RATE
    return np.round(loud * 32767 * np.sin(2 * np.pi * 180 * t)).astype("<i2").tobytes()


def hiss(seconds: float) -> bytes:
    noise = np.random.default_rng(1).uniform(-60, 60, round(seconds * RATE))
    return np.round(noise).astype("<i2").tobytes()


def fed(*parts: bytes) -> Pauses:
    pauses, pcm = Pauses(RATE), b"".join(parts)
    for at in range(0, len(pcm), 3840):
        pauses.add(pcm[at : at + 3840])
    return pauses


def seconds(pcm: bytes) -> float:
    return len(pcm) / 2 / RATE


def test_it_is_cut_at_the_last_pause_there_is():
    pauses = fed(tone(1), hiss(0.3), tone(1), hiss(0.3), tone(0.5))
    assert seconds(pauses.take(False, 0)) == pytest.approx(2.3 + LEFT_MS / 1000, abs=0.03)
    assert pauses.take(False, 0) == b""
    assert seconds(pauses.take(True, 0)) == pytest.approx(0.8 - LEFT_MS / 1000, abs=0.03)


@pytest.mark.parametrize("parts", [(tone(3),), (tone(1), hiss(PAUSE_MS / 1000 - 0.04), tone(1)), (hiss(1), tone(1))])
def test_without_a_pause_after_some_speech_nothing_is_cut(parts):
    pauses = fed(*parts)
    assert pauses.take(False, 0) == b""
    assert pauses.take(True, 0) == b"".join(parts)


def test_a_pause_that_still_goes_on_is_one():
    pauses = fed(tone(1), hiss(0.3))
    first = pauses.take(False, 0)
    pauses.add(hiss(0.3) + tone(1))
    assert seconds(first + pauses.take(True, 0)) == pytest.approx(2.6, abs=0.001)


@pytest.mark.parametrize(("dropped_ms", "lost_s"), [(0, 0), (150, 0.15), (5000, 0.46)])
def test_what_the_player_takes_between_two_pieces_is_taken_out_of_the_pause_and_of_nothing_else(dropped_ms, lost_s):
    pauses = fed(tone(1), hiss(0.5), tone(1))
    first, second = pauses.take(False, dropped_ms), pauses.take(True, dropped_ms)
    assert 2.5 - seconds(first + second) == pytest.approx(lost_s, abs=0.03)
    assert second.endswith(tone(1)[480:])


def test_no_cut_clicks_and_the_speech_is_untouched():
    whole = tone(1) + hiss(0.5) + tone(1)
    pauses = fed(whole)
    first, second = pauses.take(False, 0), pauses.take(True, 0)
    joined = np.frombuffer(first + second, "<i2") / 32768
    assert worst_click(joined, [len(first) // 2], RATE) < 1.5
    alone = np.concatenate([np.frombuffer(first, "<i2") / 32768, np.zeros(RATE // 10)])
    assert worst_click(alone, [len(first) // 2], RATE) < 1.5
    assert first.startswith(tone(1)) and second.endswith(tone(1)) and len(first + second) == len(whole)


def test_quiet_is_against_the_loudest():
    """At a small --volume the speech is no pause."""
    assert fed(tone(1, 0.01), hiss(0), tone(1, 0.01)).take(False, 0) == b""


def test_a_cut_off_end_fades_and_from_one_sample_it_decays():
    cut = np.frombuffer(tone(0.5)[:-200], "<i2") / 32768
    faded = np.frombuffer(fade_out(tone(0.5)[:-200], RATE), "<i2") / 32768
    assert worst_click(cut, [len(cut)], RATE) > 2 > worst_click(faded, [len(faded)], RATE)
    tail = decay(b"\x00\x40", RATE)
    assert len(tail) == 2 * round(FADE_MS * RATE / 1000) and tail[-2:] == b"\0\0"
    assert 0x3E00 < peak(tail) <= 0x4000
