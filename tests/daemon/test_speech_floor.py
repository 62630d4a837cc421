"""Clients and a player that tells of itself: never two players but by overlap, and each policy as docs/floor.md says.

The player holds a lock while it lives, however it ends: another that finds it held writes OVERLAP.
"""

import json
import os
import re
import signal
import subprocess
import sys
import textwrap

import psutil
import pytest
from harness import HANG_S, Raw, frames_of, lives, until

from protocol import errors
from protocol import messages as m

FOREVER = "last 100000"
PLAYER = """
    import fcntl, os, sys, time
    from pathlib import Path

    who, log = os.environ["WHO"], open(Path(here, "log"), "a")
    lock, frames = open(Path(here, "lock"), "w"), open(Path(here, f"frames-{who}"), "ab", buffering=0)

    def tell(what):
        print(who, what, file=log, flush=True)

    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        tell("OVERLAP")
    Path(here, f"pid-{who}").write_text(str(os.getpid()))
    tell("start")
    while sys.stdin.buffer.read(3840):
        frames.write(b".")
        time.sleep(float(os.environ.get("FRAME_S", "0.01")))
    while "GATED" in os.environ and not Path(here, f"go-{who}").exists():
        time.sleep(0.01)
    tell("stop")
"""


class Stage:
    """Clients that say something through the scripted player, and what it wrote."""

    def __init__(self, home, folder):
        self.home, self.folder = home, folder
        (folder / "bin").mkdir()
        (folder / "sounddevice.py").write_text("raise ImportError('not here')")
        program = folder / "bin" / "aplay"
        program.write_text(f"#!{sys.executable}\nhere = {str(folder)!r}\n" + textwrap.dedent(PLAYER))
        program.chmod(0o755)
        paths = [str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]
        self.env = home.env | {
            "PATH": str(folder / "bin"),
            "PYTHONPATH": os.pathsep.join(paths),
            "MISO_LEAD_IN_MS": "0",
        }

    def begin(self, who: str, *arguments: str, frame_s: float = 0.01, gated: bool = False, **more) -> subprocess.Popen:
        """gated: its player ends once it may."""
        env = self.env | {"WHO": who, "FRAME_S": str(frame_s)} | ({"GATED": "1"} if gated else {})
        return self.home.misoctl_process("say", *arguments, env=env, stdout=subprocess.PIPE, text=True, **more)

    def may_end(self, who: str) -> None:
        (self.folder / f"go-{who}").touch()

    def say(self, who: str, *arguments: str) -> subprocess.CompletedProcess:
        return self.home.misoctl("say", *arguments, env=self.env | {"WHO": who})

    def log(self) -> list[str]:
        file = self.folder / "log"
        return file.read_text().splitlines() if file.exists() else []

    def plays(self, who: str, times: int = 1) -> None:
        until(lambda: self.log().count(f"{who} start") >= times, f"{who} to be heard")

    def frames(self, who: str) -> int:
        return (self.folder / f"frames-{who}").stat().st_size

    def waits(self, *states: str) -> list[dict]:
        """Once the floor is like this."""
        with Raw(self.home) as raw:
            until(lambda: [row["state"] for row in speakers(raw)] == [*states], states)
            return speakers(raw)


def speakers(raw: Raw, kind: type[m.Message] = m.SpeakersRequest) -> list[dict]:
    raw.send(kind(id=999))
    return json.loads(raw.until(m.Speakers, 999)[-1].listing)


def ask(raw: Raw, request: int, when: str = "queue", priority: int = 1, **wish) -> None:
    raw.send(
        m.AskFloor(id=request, when=when, priority=priority, **{"app": "", "text_digest": "", "resume": False} | wish)
    )


def ended(process: subprocess.Popen, code: int = errors.OK) -> tuple[str, str]:
    out, said = process.communicate(timeout=HANG_S)
    assert process.returncode == code, said
    return out, said


@pytest.fixture
def stage(fake, tmp_path) -> Stage:
    return Stage(fake, tmp_path)


# ---- each policy


def test_three_at_once_are_heard_one_after_the_other_the_higher_priority_first(stage):
    a = stage.begin("a", "last 5", gated=True)
    stage.plays("a")
    b = stage.begin("b", "--priority", "low", "last 5")
    stage.waits("speaks", "waits")
    c = stage.begin("c", "--priority", "high", "last 5")
    rows = stage.waits("speaks", "waits", "waits")
    assert [row["priority"] for row in rows] == ["normal", "high", "low"]
    stage.may_end("a")
    said = [ended(each)[1] for each in (a, b, c)]
    assert stage.log() == ["a start", "a stop", "c start", "c stop", "b start", "b stop"]
    assert "waiting for the one who speaks" not in said[0]
    assert all(line.count("waiting for the one who speaks") == 1 for line in said[1:])


def test_events_of_speech_that_was_cut_end_with_the_error_and_tell_of_no_word_unheard(stage):
    a = stage.begin("a", "--events", "last 60", frame_s=0.08, gated=True)
    stage.plays("a")
    assert stage.home.misoctl("hush").returncode == errors.OK
    events = [json.loads(line) for line in ended(a, errors.FAILED)[0].splitlines()]
    assert events[-1] == {"event": "error", "exit_code": 1, "message": "the speech ended early (hushed)"}
    assert events[-2] == {"event": "floor", "state": "hushed"}
    assert [each.get("word") for each in events].count("60") == 0 and "done" not in [each["event"] for each in events]


def test_many_at_once_are_all_heard_and_never_two(stage):
    clients = [stage.begin(f"n{i}", f"last {3 + i}") for i in range(5)]
    for client in clients:
        ended(client)
    log = stage.log()
    assert sorted(log) == sorted(f"n{i} {what}" for i in range(5) for what in ("start", "stop"))
    assert all(log[i].split()[0] == log[i + 1].split()[0] for i in range(0, 10, 2))


def test_an_alert_is_heard_at_once_and_who_waited_waits_on(stage):
    a = stage.begin("a", FOREVER)
    stage.plays("a")
    b = stage.begin("b", "last 3")
    stage.waits("speaks", "waits")
    ended(stage.begin("x", "--when", "interrupt", "last 4"))
    assert "ended early (interrupted)" in ended(a, errors.FAILED)[1]
    ended(b)
    assert stage.log() == ["a start", "x start", "x stop", "b start", "b stop"]  # a's player was killed


def test_an_interrupted_player_is_silent_within_one_frame(stage):
    a = stage.begin("a", FOREVER, frame_s=0.08)
    stage.plays("a")
    until(lambda: stage.frames("a") > 3, "some frames")
    with Raw(stage.home) as raw:
        before = stage.frames("a")
        ask(raw, 1, "interrupt")
        assert raw.until(m.Floor)[-1].state == "yours"
        assert not lives(int((stage.folder / "pid-a").read_text()))  # before the floor is another's
        assert stage.frames("a") - before <= 1
    ended(a, errors.FAILED)


@pytest.mark.parametrize("whose", ["alert", "speaker"])
def test_what_was_cut_is_said_again_after_the_alert(stage, whose):
    a = stage.begin("a", "--json", *["--resume"] * (whose == "speaker"), "last 5 words", gated=True)
    stage.plays("a")
    b = stage.begin("b", "last 3")
    stage.waits("speaks", "waits")
    x = stage.begin("x", "--when", "interrupt", *["--resume"] * (whose == "alert"), "last 4")
    stage.plays("x")
    stage.may_end("a")
    ended(x)
    out, said = ended(a)
    ended(b)
    assert stage.log() == ["a start", "x start", "x stop", "a start", "a stop", "b start", "b stop"]
    assert json.loads(out)["end"] == "eos" and json.loads(out)["text"] == "last 5 words"
    assert said.count("waiting for the one who speaks") == 1


def test_events_tell_who_is_cut_and_goes_on(stage):
    a = stage.begin("a", "--events", "--resume", "last 60 words", gated=True)
    stage.plays("a")
    x = stage.begin("x", "--when", "interrupt", "last 4")
    stage.plays("x")
    stage.may_end("a")
    ended(x)
    events = [json.loads(line) for line in ended(a)[0].splitlines()]
    told = [event.get("state", event["event"]) for event in events if event["event"] not in ("piece", "word")]
    assert [each for each in told if each not in ("underrun", "queued")] == [
        "yours", "accepted", "paused", "floor", "resumed", "accepted", "done",
    ]  # fmt: skip
    assert next(event for event in events if event.get("state") == "resumed")["source_start"] == 0


def test_drop_says_nothing_where_somebody_speaks(stage):
    a = stage.begin("a", "last 5", gated=True)
    stage.plays("a")
    done = stage.say("x", "--when", "drop", "--json", "Not now.")
    assert done.returncode == errors.OK and json.loads(done.stdout) == {"text": "Not now.", "end": "dropped"}
    assert done.stderr == "misoctl: dropped: somebody else speaks\n"
    stage.may_end("a")
    ended(a)
    assert stage.say("y", "--when", "drop", "Now.").returncode == errors.OK
    assert stage.log() == ["a start", "a stop", "y start", "y stop"]


def test_events_tell_of_a_wait_once_and_end_with_how_it_ended(stage):
    with Raw(stage.home) as raw:
        ask(raw, 1)
        raw.until(m.Floor)
        dropped = stage.say("x", "--when", "drop", "--events", "Not now.")
        assert json.loads(dropped.stdout) == {"event": "done", "text": "Not now.", "end": "dropped"}
        b = stage.begin("b", "--events", "last 3")
        assert json.loads(b.stdout.readline()) == {"event": "waiting", "state": "floor"}
        stage.waits("speaks", "waits")
        stage.home.misoctl("hush")
    out, said = ended(b, errors.FAILED)
    last = {"event": "error", "exit_code": errors.FAILED, "message": "the speech ended early (hushed)"}
    assert [json.loads(line) for line in out.splitlines()] == [last] and f"misoctl: {last['message']}\n" in said


def test_overlap_is_heard_beside(stage):
    a = stage.begin("a", FOREVER)
    stage.plays("a")
    assert stage.say("x", "--when", "overlap", "last 3").returncode == errors.OK
    assert stage.log() == ["a start", "x OVERLAP", "x start", "x stop"] and a.poll() is None


def test_the_same_of_one_app_is_said_once(stage):
    a = stage.begin("a", "--app", "ci", "last 5", gated=True)
    stage.plays("a")
    for who in ("b", "c"):
        done = stage.say(who, "--app", "ci", "--json", "last 5")
        assert done.returncode == errors.OK and json.loads(done.stdout)["end"] == "same"
        assert done.stderr == "misoctl: dropped: the same was said just now\n"
        if who == "b":
            stage.may_end("a")
            ended(a)
    assert stage.say("d", "--app", "mail", "last 5").returncode == errors.OK
    assert stage.log() == ["a start", "a stop", "d start", "d stop"]


def test_a_file_or_a_pipe_is_not_heard_and_waits_for_nobody_unless_asked(stage, tmp_path):
    with Raw(stage.home) as raw:
        ask(raw, 1)
        raw.until(m.Floor)
        assert stage.say("-", "-o", str(tmp_path / "b.wav"), "last 3").returncode == errors.OK
        done = stage.say("-", "-o", str(tmp_path / "a.wav"), "--when", "drop", "last 3")
        assert done.returncode == errors.OK and "dropped" in done.stderr and not (tmp_path / "a.wav").exists()
    refused = stage.say("-", "--raw", "--priority", "high", "last 3")
    assert refused.returncode == errors.USAGE and "--when" in refused.stderr


# ---- hush


def test_hush_is_silence_for_all_and_says_how_many(stage):
    clients = [stage.begin("a", FOREVER)]
    stage.plays("a")
    clients += [stage.begin("o", "--when", "overlap", FOREVER), stage.begin("b", "--resume", FOREVER)]
    stage.plays("o")
    stage.waits("speaks", "beside", "waits")
    done = stage.home.misoctl("hush")
    assert (done.returncode, done.stderr) == (errors.OK, "misoctl: silenced 3\n")
    for client in clients:
        assert "ended early (hushed)" in ended(client, errors.FAILED)[1]
    assert stage.log() == ["a start", "o OVERLAP", "o start"]
    assert stage.home.misoctl("hush").stderr == "misoctl: nothing speaks\n"
    assert stage.home.misoctl("hush", "--json").stdout == "[]\n"


def test_hush_ends_what_follows_a_pipe_in_the_middle_of_a_line_or_before_one_came(stage):
    ours, theirs = os.pipe()
    idle = stage.begin("i", "--follow", stdin=ours)
    stage.waits("beside")
    assert stage.home.misoctl("hush").stderr == "misoctl: silenced 1\n"
    assert "ended early (hushed)" in ended(idle, errors.FAILED)[1]
    busy = stage.begin("a", "--follow", stdin=ours)
    os.write(theirs, f"{FOREVER}\n".encode())
    stage.plays("a")
    assert stage.home.misoctl("hush").stderr == "misoctl: silenced 1\n"
    assert "ended early (hushed)" in ended(busy, errors.FAILED)[1]
    assert "a stop" not in stage.log()
    os.close(ours)
    os.close(theirs)


def test_hush_where_no_daemon_runs_starts_none(home):
    done = home.misoctl("hush")
    assert (done.returncode, done.stderr) == (errors.OK, "misoctl: nothing speaks\n") and not home.run.exists()


# ---- clients that die, stop, or say nothing


def test_a_client_killed_with_sigkill_frees_the_floor_within_two_frames(home, tmp_path):
    """Another's frames, one each 80 ms, are the clock."""
    home.fake(env={"FAKE_STEP_MS": "80"})
    stage = Stage(home, tmp_path)
    a = stage.begin("a", "last 3", gated=True)
    until(lambda: home.trace.exists() and home.traced("release"), "all of it to be made")
    stage.plays("a")  # and it is still heard
    with Raw(home) as raw, Raw(home) as clock:
        ask(raw, 1)
        assert raw.receive().state == "floor"
        clock.say(1, FOREVER)
        clock.until(m.Pcm)
        a.kill()
        assert raw.until(m.Floor)[-1].state == "yours"
        clock.send(m.StatusRequest(id=2))
        assert len(frames_of(clock.until(m.Status))) <= 2
    until(lambda: not psutil.pid_exists(int((tmp_path / "pid-a").read_text())), "its player to be gone")


def test_who_dies_while_it_waits_is_not_waited_for(stage):
    with Raw(stage.home) as raw:
        ask(raw, 1)
        raw.until(m.Floor)
        b = stage.begin("b", "last 3")
        stage.waits("speaks", "waits")
        c = stage.begin("c", "last 3")
        stage.waits("speaks", "waits", "waits")
        b.kill()
        stage.waits("speaks", "waits")
    ended(c)
    assert stage.log() == ["c start", "c stop"]


def test_a_stopped_client_loses_the_floor_and_is_silent_when_it_wakes(stage):
    a = stage.begin("a", FOREVER)
    stage.plays("a")
    a.send_signal(signal.SIGSTOP)
    with Raw(stage.home) as raw:
        ask(raw, 1)
        assert raw.until(m.Floor)[-1].state == "yours"
        a.send_signal(signal.SIGCONT)
        assert a.wait(HANG_S) in (errors.FAILED, errors.UNAVAILABLE)
        assert not lives(int((stage.folder / "pid-a").read_text()))


def test_a_holder_that_never_says_that_it_played_is_told_and_then_passed_over(home):
    home.fake(env={"FAKE_HOLD_S": "0.3"})
    with Raw(home) as mute, Raw(home) as next_one:
        ask(mute, 1)
        assert mute.until(m.Floor)[-1].state == "yours"
        ask(next_one, 1)
        assert mute.until(m.Floor)[-1].state == "late"
        assert next_one.until(m.Floor)[-1].state == "yours"


def test_a_holder_may_say_how_long_it_plays(home):
    home.fake(env={"FAKE_HOLD_S": "1"})
    with Raw(home) as raw:
        ask(raw, 1)
        raw.send(m.Hold(id=1, seconds=600))
        raw.until(m.Floor)
        assert not raw.dealer.poll(1500)
        assert [row["state"] for row in speakers(raw)] == ["speaks"]


def test_what_plays_plays_on_when_the_daemon_stops_and_who_waits_is_told(stage):
    a = stage.begin("a", "last 100", gated=True)
    stage.plays("a")
    until(lambda: stage.home.traced("release"), "all of it to be made")
    b = stage.begin("b", "last 3")
    stage.waits("speaks", "waits")
    stage.home.daemon.send_signal(signal.SIGTERM)
    assert "shutting down" in ended(b, errors.TRY_AGAIN)[1]
    stage.may_end("a")
    ended(a)
    assert stage.log() == ["a start", "a stop"] and stage.frames("a") == 100


# ---- what the wire says


def test_a_daemon_that_knows_no_floor_is_spoken_to_without(home, tmp_path):
    home.fake(env={"FAKE_VERSION": "1.0"})
    assert Stage(home, tmp_path).say("a", "last 3").returncode == errors.OK
    assert home.misoctl("status", "--json").returncode == errors.OK


def test_what_is_asked_wrongly_is_refused_and_holds_nothing(fake):
    with Raw(fake) as raw:
        ask(raw, 1, "shout")
        assert raw.until(m.Error)[-1].code == "bad_value"
        ask(raw, 2)
        raw.until(m.Floor)
        ask(raw, 2)
        assert raw.until(m.Error)[-1].code == "duplicate"
        assert speakers(raw) == []
        raw.send(m.Hold(id=7, seconds=1), m.Leave(id=7, again=True))
        raw.ping()


def test_more_than_may_wait_are_told_busy(home):
    home.fake(max_requests=2)
    with Raw(home) as raw:
        for request in (1, 2, 3):
            ask(raw, request)
        assert raw.until(m.Error)[-1].code == "busy"
        assert [row["state"] for row in speakers(raw)] == ["speaks", "waits"]


def test_status_shows_who_speaks_and_who_waits(fake):
    with Raw(fake) as raw:
        ask(raw, 1, app="ci", priority=2)
        ask(raw, 2)
        line = fake.misoctl("status").stdout
        assert re.search(r"floor     ci speaks \(high, \d+ s\), one waits \(normal, \d+ s\)\n", line)
        rows = json.loads(fake.misoctl("status", "--json").stdout)["floor"]
        assert [(row["app"], row["state"], row["when"]) for row in rows] == [
            ("ci", "speaks", "queue"),
            ("", "waits", "queue"),
        ]
    assert "floor     free" in fake.misoctl("status").stdout
