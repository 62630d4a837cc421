"""When playing may start, over simulated arrivals: a gap only where none could avoid it, and no needless wait."""

import random

import pytest

from misoctl.playing import prebuffer
from misoctl.playing.prebuffer import Playhead, Prebuffer, expected_s

FRAME_S = 0.08
FIRST_S = 0.3  # from the request to the first frame, beyond that frame's own work


def arrivals(rtf: float, seconds: float, jitter: float = 0.0, stall=(0.0, 0.0), seed: int = 7) -> list[float]:
    """When each frame comes. `jitter`: it takes 1 +- that of its time. `stall`: (after this much speech, this long)."""
    noise, now_s, times = random.Random(seed), FIRST_S, []
    for frame in range(round(seconds / FRAME_S)):
        now_s += FRAME_S * rtf * (1 + noise.uniform(-jitter, jitter))
        if stall[0] and frame == round(stall[0] / FRAME_S):
            now_s += stall[1]
        times.append(now_s)
    return times


def played(times: list[float], guessed_s: float, **known) -> tuple[float, Playhead]:
    """(when the first sound is heard, the rest), as misoctl/player.py goes about it; at the last frame all is there."""
    plan, head = Prebuffer(0.0, guessed_s, **known), Playhead()
    waits, held_s, start_s = True, 0.0, None
    for number, now_s in enumerate(times, 1):
        plan.arrived(FRAME_S, now_s)
        held_s += FRAME_S
        waits = waits or head.ran_dry(now_s)
        if not waits or held_s >= plan.needed_s() or number == len(times):
            head.handed(held_s, now_s)
            start_s = now_s if start_s is None else start_s
            waits, held_s = False, 0.0
    return start_s, head


def earliest_s(times: list[float]) -> float:
    """The first moment from which it plays without a gap: all of the future known."""
    return max(now_s - number * FRAME_S for number, now_s in enumerate(times))


@pytest.mark.parametrize("seconds", [1.0, 5.0, 20.0, 120.0, 900.0])
@pytest.mark.parametrize("prior", [True, False])
@pytest.mark.parametrize("jitter", [0.0, 0.5])
@pytest.mark.parametrize("rtf", [0.25, 0.6, 0.9, 1.0, 1.4, 3.0])
def test_no_gap_and_no_needless_wait(rtf, jitter, prior, seconds):
    times = arrivals(rtf, seconds, jitter)
    start_s, head = played(times, seconds, rtf=rtf if prior else None)
    assert (head.underruns, head.gap_s) == (0, 0.0)
    chance_s = 0.5 * seconds**0.5 if rtf > prebuffer.CALM else 0  # how far so many frames may stray
    assert start_s <= earliest_s(times) + 0.5 + chance_s


@pytest.mark.parametrize("rtf", [0.9, 1.0, 1.1, 1.4])
def test_what_chance_may_do_is_allowed_for(rtf):
    """Frames that take 0.5 to 1.5 times their time: of 100 speeches, few have a gap."""
    heads = [played(arrivals(rtf, 30, 0.5, seed=seed), 30)[1] for seed in range(100)]
    assert sum(head.underruns > 0 for head in heads) <= 5


@pytest.mark.parametrize("seconds", [0.4, 5.0, 900.0])
def test_well_under_1_it_starts_with_the_first_frame(seconds):
    times = arrivals(0.25, seconds, jitter=0.5)
    assert played(times, seconds, rtf=0.25)[0] == times[0]
    fast = [at - FIRST_S for at in times]  # misod knows nothing yet, and all that was waited for is one frame
    assert played(fast, seconds)[0] == fast[0]


@pytest.mark.parametrize(("after_s", "for_s"), [(4.0, 2.5), (12.0, 8.0), (0.48, 0.25)])
def test_what_was_made_ahead_bridges_a_stall(after_s, for_s):
    """Of a row that is parked, or of a daemon that loads a neighbour's voice."""
    _, head = played(arrivals(0.25, 60, jitter=0.5, stall=(after_s, for_s)), 60)
    assert head.underruns == 0


def test_a_stall_that_nothing_could_foresee_is_one_gap_and_its_length_is_told():
    _, head = played(arrivals(0.25, 30, stall=(1.0, 5.0)), 30, rtf=0.25)
    assert head.underruns == 1 and 4 < head.gap_s < 5.1


@pytest.mark.parametrize("guess", [0.5, 0.8])
def test_a_text_that_takes_longer_than_thought_is_a_few_gaps_and_not_one_a_frame(guess):
    _, head = played(arrivals(1.4, 60, jitter=0.3), 60 * guess)
    assert 1 <= head.underruns <= 6


def test_a_text_that_is_shorter_than_thought_starts_when_all_of_it_is_there():
    times = arrivals(1.4, 5)
    start_s, head = played(times, 50)
    assert start_s <= times[-1] and head.underruns == 0


def test_a_burst_is_not_taken_for_speed():
    """A clause at a time, as kitten makes them: 2 s of speech at once, each 1.6 s."""
    times = [FIRST_S + 1.6 * (1 + frame // 25) + frame % 25 / 10_000 for frame in range(500)]
    start_s, head = played(times, 40)
    assert head.underruns == 0 and start_s <= times[0] + 1.7


def test_what_was_asked_for_is_held_whatever_the_factor_is():
    times = arrivals(0.25, 60)
    assert played(times, 60, asked_s=4.0)[0] == times[49]
    slow = arrivals(1.4, 60)
    assert played(slow, 60, asked_s=0.0)[0] == slow[0]


def test_it_never_holds_more_than_memory_allows():
    start_s, _ = played(arrivals(4.0, 4000), 4000)
    assert start_s == pytest.approx(prebuffer.MAX_HELD_S * 4.0, rel=0.01)


@pytest.mark.parametrize("rtf", [1.0, 1.4, 3.0])
def test_the_wait_that_is_told_is_about_the_one_that_comes(rtf):
    plan, times, told = Prebuffer(0.0, 60), arrivals(rtf, 60, jitter=0.3), []
    for number, now_s in enumerate(times, 1):
        plan.arrived(FRAME_S, now_s)
        if number * FRAME_S >= plan.needed_s():
            break
        told += [now_s + plan.wait_s(number * FRAME_S)] if plan.timed else []
    assert abs(told[0] - now_s) < 1.5 + 0.35 * now_s
    assert abs(told[len(told) // 2] - now_s) < 1.5 + 0.1 * now_s


def test_with_so_much_asked_for_the_wait_is_the_rest_of_it():
    plan = Prebuffer(0.0, 60, asked_s=4.0, rtf=0.5)
    plan.arrived(FRAME_S, 0.04)
    assert plan.wait_s(FRAME_S) == pytest.approx(0.5 * (4.0 - FRAME_S), rel=0.2)


def test_the_playhead_counts_what_is_heard_and_no_less():
    head = Playhead()
    assert head.ahead_s(5.0) == 0 and not head.ran_dry(5.0)
    head.handed(1.0, 5.0)
    head.handed(1.0, 5.5)
    assert head.ahead_s(6.0) == 1.0
    head.handed(1.0, 7.01)  # what every player has in hand
    assert head.underruns == 0
    head.handed(1.0, 9.0)
    assert head.underruns == 1 and head.gap_s == pytest.approx(0.99)
    assert head.ahead_s(9.0) == 1.0


def test_a_text_is_thought_to_take_a_calm_speaker_s_time():
    assert expected_s("") == 0
    assert 3 < expected_s("The quick brown fox jumps over the lazy dog.") < 4
    assert expected_s("1984") > expected_s("word") * 3
