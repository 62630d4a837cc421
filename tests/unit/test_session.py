"""One request as the I/O thread sees it: the window, acks, the probe and the eviction. Time is an argument."""

import pytest

from misod.session import PROBE_S, SLOW_S, Session
from protocol.errors import ProtocolError
from protocol.messages import WINDOW_FRAMES

NOW_S = 1000.0


def session(sent: int = 0, admitted: bool = True) -> Session:
    made = Session(b"peer", 7, seed=1, speaker=0, said_s=NOW_S)
    made.admitted = admitted
    for _ in range(sent):
        made.frame_sent(1920, NOW_S)
    return made


def test_frames_are_numbered_from_0_without_a_gap():
    s = session()
    assert [s.frame_sent(1920, NOW_S) for _ in range(5)] == [0, 1, 2, 3, 4]
    assert (s.sent, s.sent_samples) == (5, 5 * 1920)


def test_the_first_frame_s_time_is_kept():
    s = session()
    s.frame_sent(1920, NOW_S + 0.25)
    s.frame_sent(1920, NOW_S + 9)
    assert s.first_pcm_s == NOW_S + 0.25


def test_an_ack_gives_back_what_it_covers_and_the_same_again_nothing():
    s = session(sent=40)
    assert [s.ack(15), s.ack(15), s.ack(3), s.ack(31), s.ack(39)] == [16, 0, 0, 16, 8]


def test_an_ack_of_what_was_not_sent_is_refused_and_changes_nothing():
    s = session(sent=10)
    for seq in (10, 11, 2**32 - 1):
        with pytest.raises(ProtocolError) as caught:
            s.ack(seq)
        assert (caught.value.code, caught.value.id) == ("bad_value", 7)
    assert s.acked == 0
    assert s.ack(9) == 10


def test_an_ack_before_the_first_frame_is_refused():
    with pytest.raises(ProtocolError):
        session().ack(0)


def test_a_client_with_window_left_is_never_slow_nor_probed():
    s = session(sent=WINDOW_FRAMES - 1)
    assert s.next_deadline_s() is None
    assert not s.is_slow(NOW_S + 1e6)
    assert not s.wants_probe(NOW_S + 1e6)


def test_a_full_window_is_slow_at_10_s_and_not_before():
    s = session(sent=WINDOW_FRAMES)
    assert not s.is_slow(NOW_S + SLOW_S - 0.001)
    assert s.is_slow(NOW_S + SLOW_S)


def test_any_ack_of_something_new_starts_the_wait_anew_and_an_old_one_does_not():
    s = session(sent=WINDOW_FRAMES)
    s.ack(0)
    assert not s.is_slow(NOW_S + 1e6)
    s.frame_sent(1920, NOW_S + 5)
    assert not s.is_slow(NOW_S + SLOW_S)
    s.ack(0)  # nothing new
    assert s.is_slow(NOW_S + 5 + SLOW_S)


def test_a_parked_client_is_probed_each_second():
    s = session(sent=WINDOW_FRAMES)
    assert s.next_deadline_s() == NOW_S + PROBE_S
    assert not s.wants_probe(NOW_S + PROBE_S - 0.001)
    assert s.wants_probe(NOW_S + PROBE_S)
    s.probed_s = NOW_S + PROBE_S
    assert not s.wants_probe(NOW_S + 2 * PROBE_S - 0.001)
    assert s.wants_probe(NOW_S + 2 * PROBE_S)


def test_the_last_deadline_is_the_eviction():
    s = session(sent=WINDOW_FRAMES)
    s.probed_s = NOW_S + SLOW_S - 0.5
    assert s.next_deadline_s() == NOW_S + SLOW_S


def test_a_client_that_waits_for_a_row_is_probed_and_never_slow():
    s = session(admitted=False)
    assert s.next_deadline_s() == NOW_S + PROBE_S
    assert s.wants_probe(NOW_S + PROBE_S)
    assert not s.is_slow(NOW_S + 1e6)
