"""Credits, cancels, clients that die or dawdle, engines that fail: each harms one request and no other."""

import os
import signal
import subprocess

import pytest
import zmq
from harness import MISOCTL, Raw, frames_of, until

from protocol import codec, errors
from protocol import messages as m

FOREVER = "last 100000"


def frames_after(home, text: str, event) -> int:
    """How many frames of `text` the engine made after `event` happened, until it released the row."""
    event()
    before = home.traced(f"frame {text}")
    until(lambda: home.traced(f"release {text}"), "the row to be released")
    return home.traced(f"frame {text}") - before


# ---- clients that die


def test_a_client_killed_mid_stream_loses_its_row_within_two_frames(home):
    """kyutai-labs/pocket-tts#238, Blaizzy/mlx-audio#652: it was spoken to the end, for nobody."""
    home.fake(env={"FAKE_STEP_MS": "80"})
    say = home.misoctl_process("say", "--raw", FOREVER, stdout=subprocess.PIPE)
    say.stdout.read(3840)

    def kill():
        say.kill()
        say.wait()

    assert frames_after(home, FOREVER, kill) <= 2


def test_a_parked_client_that_dies_is_found_by_its_probe(fake):
    with Raw(fake) as raw:
        raw.say(1, FOREVER)
        until(lambda: raw.ping().parked, "the window to be out")
    with Raw(fake) as other:
        until(lambda: other.ping().parked == 0, "the row to leave")
    assert fake.traced("release") == 1


def test_clients_that_hang_up_at_once_leave_no_row_behind(fake):
    """The answer to `say` fails then: the cancel that follows must not overtake the request itself."""
    for _ in range(40):
        with Raw(fake) as raw:
            raw.dealer.setsockopt(zmq.LINGER, 200)
            raw.ping()
            raw.say(1, FOREVER)
            raw.dealer.close()
    with Raw(fake) as raw:
        until(lambda: (s := raw.ping()).speaking + s.parked + s.queued == 0, "all rows to leave")
        raw.send(m.Unload(id=5))  # and nothing waits for a row that nobody hears
        assert raw.until(m.Status, 5)[-1].state == "idle"


def test_a_stopped_client_is_gone_by_its_heartbeat(fake):
    say = fake.misoctl_process("say", "--raw", FOREVER, stdout=subprocess.DEVNULL)
    until(lambda: fake.trace.exists() and fake.traced("frame") > 5, "speech")
    say.send_signal(signal.SIGSTOP)
    with Raw(fake) as raw:
        until(lambda: (now := raw.ping()).parked + now.speaking == 0, "the row to leave", 9)  # under SLOW_S
    assert fake.traced("release") == 1


# ---- clients that dawdle


def never_acks(home, slow_s: float) -> None:
    with Raw(home) as slow, Raw(home) as other:
        slow.say(1, FOREVER)
        got = slow.until(m.Progress)
        assert [x.seq for x in frames_of(got)] == list(range(m.WINDOW_FRAMES))
        assert got[-1].state == "parked"  # a probe
        status = other.ping()
        assert (status.parked, status.speaking) == (1, 0)
        other.say(2, "last 60")
        assert other.until(m.Done, ack=True)[-1].frames == 60
        got = slow.until(m.Error)
        assert got[-1].code == "slow" and not frames_of(got)
        assert len([x for x in got if isinstance(x, m.Progress)]) >= slow_s - 2
        until(lambda: other.ping().parked == 0, "the worker to have heard of it")
    assert home.traced(f"frame {FOREVER}") == m.WINDOW_FRAMES


def test_a_client_that_never_acks_gets_one_window_and_is_evicted(home):
    home.fake(env={"FAKE_SLOW_S": "1.5"})
    never_acks(home, 1.5)


@pytest.mark.slow
def test_a_client_that_never_acks_is_evicted_after_ten_seconds(fake):
    never_acks(fake, 10)


def test_an_ack_gives_back_exactly_its_frames(fake):
    with Raw(fake) as raw:
        raw.say(1, FOREVER)
        raw.until(m.Progress)
        raw.send(m.Ack(id=1, seq=9), m.Ack(id=1, seq=9), m.Ack(id=1, seq=4))  # the same again, and an old one
        assert [x.seq for x in frames_of(raw.until(m.Progress))] == list(range(m.WINDOW_FRAMES, m.WINDOW_FRAMES + 10))


def test_a_pause_longer_than_the_window_is_sent_a_window_at_a_time(fake):
    with Raw(fake) as raw:
        raw.say(1, "long pause last 3")
        assert len(frames_of(raw.until(m.Progress))) == m.WINDOW_FRAMES
        raw.send(m.Ack(id=1, seq=9))
        assert [x.seq for x in frames_of(raw.until(m.Progress))] == list(range(m.WINDOW_FRAMES, m.WINDOW_FRAMES + 10))
        raw.send(m.Ack(id=1, seq=m.WINDOW_FRAMES + 9))
        got = raw.until(m.Done)
        assert (got[-1].end, got[-1].frames, got[-1].samples) == ("eos", 63, 63 * 1920)
        assert frames_of(got)[-1].seq == 62


def test_an_ack_of_what_was_not_sent_is_refused(fake):
    with Raw(fake) as raw:
        raw.say(1, FOREVER)
        raw.until(m.Progress)
        raw.send(m.Ack(id=1, seq=50))
        assert raw.until(m.Error)[-1].code == "bad_value"
        raw.send(m.Ack(id=99, seq=0))  # of no request: it may have crossed its done
        until(
            lambda: raw.ping().parked == 0, "the worker to have heard of it"
        )  # the client lost count: its request ends


def test_one_client_may_have_every_row_parked_and_still_hears_each(fake):
    with Raw(fake) as raw:
        for request in range(8):
            raw.say(request, "last 60")
        until(lambda: fake.traced("frame") == 8 * m.WINDOW_FRAMES, "every window to be out")
        got = []
        while len([x for x in got if isinstance(x, m.Done)]) < 8:
            got += raw.until(m.Done, ack=True)
    assert [x for x in got if isinstance(x, m.Error)] == []
    assert {x.frames for x in got if isinstance(x, m.Done)} == {60}


# ---- cancel


def test_nothing_follows_a_cancel_but_its_receipt(fake):
    with Raw(fake) as raw:
        raw.say(1, FOREVER)
        before = raw.until(m.Pcm)
        raw.send(m.Cancel(id=1))
        got = before + raw.until(m.Done)
        assert (got[-1].end, got[-1].frames) == ("cancelled", len(frames_of(got)))
        assert got[-1].samples == 1920 * got[-1].frames
        raw.say(2, "two words")
        after = raw.until(m.Done)
        assert {x.id for x in after} == {2}
        raw.send(m.Cancel(id=1))  # of what is gone: no answer
        until(lambda: raw.ping().speaking == 0, "the worker to have heard of it")


def test_a_cancelled_row_is_free_at_the_next_frame(home):
    home.fake(env={"FAKE_STEP_MS": "80"})
    with Raw(home) as raw:
        raw.say(1, FOREVER)
        raw.until(m.Pcm)
        assert frames_after(home, FOREVER, lambda: raw.send(m.Cancel(id=1))) <= 1


def test_who_waits_can_be_cancelled(home):
    home.fake(max_rows=1)
    with Raw(home) as raw:
        raw.say(1, FOREVER)
        raw.until(m.Pcm)
        raw.say(2, "I wait")
        raw.send(m.Cancel(id=2))
        done = raw.until(m.Done)[-1]
        assert (done.id, done.end, done.frames) == (2, "cancelled", 0)
    assert home.traced("prefill I wait") == 0


def test_who_waits_long_for_a_row_is_told(home):
    home.fake(max_rows=1)
    with Raw(home) as first, Raw(home) as second:
        first.say(1, FOREVER)
        first.until(m.Pcm)
        second.say(1, "I wait")
        assert second.until(m.Progress)[-1].state == "queued"
        first.send(m.Cancel(id=1))
        assert second.until(m.Done)[-1].end == "eos"


def test_ctrl_c_keeps_the_speech_so_far_and_frees_the_row(fake):
    path = fake.path / "so far.wav"
    say = fake.misoctl_process("say", "-o", str(path), FOREVER)
    until(lambda: any(part.stat().st_size > 44 + 3840 for part in fake.path.glob(".*.part")), "speech in the file")
    say.send_signal(signal.SIGINT)
    assert say.wait(15) == errors.INTERRUPTED
    wav = path.read_bytes()
    assert len(wav) > 44 + 3840 and int.from_bytes(wav[40:44], "little") == len(wav) - 44
    assert [p.name for p in fake.path.glob("*.part")] == [p.name for p in fake.path.glob(".*.part")] == []
    until(lambda: fake.traced("release"), "the row to be released")


# ---- where the sound cannot go


def test_a_closed_pipe_ends_the_request_without_a_word(fake):
    pipeline = f"set -o pipefail; {MISOCTL} say -o - '{FOREVER}' | head -c 1000 | wc -c"
    done = subprocess.run(["bash", "-c", pipeline], env=fake.env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip(), done.stderr) == (errors.BROKEN_PIPE, "1000", "")
    until(lambda: fake.traced("release"), "the row to be released")


def test_a_full_device_is_one_line(fake):
    with open("/dev/full", "wb") as full:
        done = fake.misoctl("say", "-o", "-", FOREVER, stdout=full, capture_output=False, stderr=subprocess.PIPE)
    assert done.returncode == errors.IO_ERROR
    assert len(done.stderr.splitlines()) == 1 and "No space left" in done.stderr
    until(lambda: fake.traced("release"), "the row to be released")


def test_a_daemon_killed_mid_stream_is_known_at_once(fake):
    say = fake.misoctl_process("say", "--raw", FOREVER, stdout=subprocess.PIPE)
    say.stdout.read(3840)
    fake.daemon.kill()
    _, err = say.communicate(timeout=10)
    assert say.returncode == errors.UNAVAILABLE and b"lost" in err


# ---- engines that fail


def test_one_more_than_may_wait_is_told_busy(home):
    home.fake(max_rows=1, max_requests=2)
    with Raw(home) as raw:
        raw.say(1, FOREVER)
        raw.say(2, FOREVER)
        raw.say(3, FOREVER)
        refused = raw.until(m.Error)[-1]
        assert (refused.id, refused.code) == (3, "busy")
        done = home.misoctl("say", "--raw", "Hello")
        assert done.returncode == errors.TRY_AGAIN
        raw.send(m.Cancel(id=2))
        raw.until(m.Done)
        raw.say(4, "Hello")
        assert isinstance(raw.until(m.Accepted)[-1], m.Accepted)


FAULTS = {
    "fault at frame 5": ("engine", "frame 5"),
    "fault at frame 0": ("engine", "frame 0"),
    "raise in prefill": ("engine", "ValueError"),
    "refuse": ("unspeakable", "asked to refuse"),
    "speaker": ("bad_value", "no speaker 0"),
}


def test_a_fault_stays_in_its_row(home):
    home.may_trace_back = True
    home.fake()
    with Raw(home) as raw, Raw(home) as other:
        other.say(1, FOREVER)
        other.until(m.Pcm)
        for request, (text, (code, reason)) in enumerate(FAULTS.items()):
            raw.say(request, text)
            failed = raw.until(m.Error)[-1]
            assert (failed.id, failed.code) == (request, code) and reason in failed.message
        other.send(m.Ack(id=1, seq=0))
        assert other.until(m.Pcm)
        until(lambda: raw.ping().speaking + raw.ping().parked == 1, "the worker to have heard of it")


def inject(home, count: int) -> None:
    home.may_trace_back = True
    home.fake()
    texts = list(FAULTS)
    with Raw(home) as raw, Raw(home) as other:
        other.say(1, FOREVER)
        for request in range(count):
            raw.say(request, texts[request % len(texts)])
            assert raw.until(m.Error)[-1].id == request
            if request % 10 == 0:
                seq = other.until(m.Pcm)[-1].seq
                other.send(m.Ack(id=1, seq=seq))
        until(lambda: raw.ping().speaking + raw.ping().parked == 1, "the worker to have heard of it")


@pytest.mark.slow
def test_a_thousand_faults_stay_in_their_rows(home):
    inject(home, 1000)


def test_a_step_that_hangs_ends_the_daemon_with_a_dump(home):
    daemon = home.fake(step_timeout_s=1)
    done = home.misoctl("say", "--raw", "hang here please", text=False)
    assert done.returncode == errors.SOFTWARE and b"misod failed" in done.stderr
    assert daemon.wait(15) == errors.SOFTWARE
    assert "most recent call first" in home.stderr.read_text() and "_frame" in home.stderr.read_text()
    assert "a step took over 1 s" in home.log.read_text()


def test_memory_without_end_ends_the_daemon_and_tells_everyone(home):
    daemon = home.fake(memory_gb=0.001)  # it has passed that already
    with Raw(home) as raw:
        raw.say(1, FOREVER)
        assert raw.until(m.Error)[-1].code == "engine"
    assert daemon.wait(15) == errors.SOFTWARE
    assert "resident memory passed" in home.log.read_text()


def test_an_engine_that_crashes_ends_the_daemon_and_tells_everyone(home):
    home.may_trace_back = True
    daemon = home.fake()
    with Raw(home) as raw, Raw(home) as other:
        other.say(1, FOREVER)
        other.until(m.Pcm)
        raw.say(1, "crash here please")
        assert raw.until(m.Error)[-1].code == "engine"
        assert other.until(m.Error)[-1].code == "engine"
    assert daemon.wait(15) == errors.SOFTWARE
    assert "asked to crash" in home.log.read_text()


# ---- the protocol's edges


def test_an_id_in_use_ends_both_requests_and_is_free_at_once(fake):
    """Nothing of the first may reach the third: neither its frames nor its end."""
    with Raw(fake) as raw:
        for _ in range(20):
            raw.say(1, FOREVER)
            raw.until(m.Pcm)
            raw.say(1, "last 4")
            raw.say(1, "last 3")
            assert raw.until(m.Error)[-1].code == "duplicate"
            got = raw.until(m.Done)
            assert [x.seq for x in frames_of(got)] == [0, 1, 2]
            assert (got[-1].end, got[-1].frames, got[-1].spoken) == ("eos", 3, "last 3")
        until(lambda: raw.ping().speaking == 0, "the worker to have heard of it")


def test_a_garbled_message_ends_the_request_it_names(fake):
    with Raw(fake) as raw:
        raw.say(1, FOREVER)
        raw.say(2, "last 40")
        raw.until(m.Pcm, 1)
        raw.send_bytes(codec.pack(m.Ack(id=1, seq=0)).replace(b"seq", b"sea"))
        assert raw.until(m.Error)[-1].id == 1
        assert not frames_of(raw.until(m.Done, 2), 1)


def test_two_clients_may_use_one_id(fake):
    with Raw(fake) as a, Raw(fake) as b:
        a.say(1, "last 10")
        b.say(1, "last 20")
        assert (a.until(m.Done)[-1].frames, b.until(m.Done)[-1].frames) == (10, 20)


def test_another_major_version_is_refused_with_both_numbers(home):
    home.fake(env={"FAKE_VERSION": "2.3"})
    done = home.misoctl("say", "--raw", "Hello")
    assert (done.returncode, done.stdout) == (errors.VERSION_SKEW, "")
    assert "1.2" in done.stderr and "2.3" in done.stderr and len(done.stderr.splitlines()) == 1


def test_another_minor_version_is_one_warning(home):
    home.fake(env={"FAKE_VERSION": "1.3"})
    done = home.misoctl("say", "-o", str(home.path / "a.wav"), "Hello")
    assert done.returncode == errors.OK
    assert len(done.stderr.splitlines()) == 1 and "1.3" in done.stderr


def test_only_our_own_user_may_connect(fake):
    """libzmq's own filter, behind the directory's mode; on Linux it is there."""
    assert "cannot ask who connects" not in fake.log.read_text()
    assert os.stat(fake.socket).st_uid == os.getuid()
