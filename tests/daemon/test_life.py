"""How the daemon starts, stops, loads, frees and refuses."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest
from harness import Raw, frames_of, listens, lives, until

import misod
from protocol import errors
from protocol import messages as m

FOREVER = "last 100000"


def ended(process, hang_s: float = 15) -> int:
    return process.wait(hang_s)


def open_gate(path) -> None:
    """Let one load that waits at the fifo go on; blocks until one is there."""
    path.write_bytes(b"")


@pytest.fixture
def gate(home):
    path = home.path / "gate"
    os.mkfifo(path)
    home.env["FAKE_LOAD_GATE"] = str(path)
    return path


# ---- start


def test_say_starts_the_daemon_and_the_next_finds_it_warm(home):
    first = home.misoctl("say", "--raw", "--seed", "3", "Hello there.", text=False)
    assert first.returncode == errors.OK and len(first.stdout) % 3840 == 0
    assert b"starting misod" in first.stderr
    second = home.misoctl("say", "--raw", "--seed", "3", "Hello there.", text=False)
    assert (second.stdout, second.stderr) == (first.stdout, b"")
    assert home.misoctl("stop").returncode == errors.OK
    assert not listens(home.socket)


def test_start_stop_and_no_daemon(home):
    """zeromq/pyzmq#102, #153: with no daemon a client must not hang."""
    assert home.misoctl("start").returncode == errors.OK
    status = json.loads(home.misoctl("status", "--json").stdout)
    assert (status["state"], status["model"], status["requests"]) == ("ready", "nano", 0)
    assert status["pid"] == home.lock_pid()
    stopped = home.misoctl("stop")
    assert stopped.returncode == errors.OK and "misod stopped" in stopped.stderr
    assert not lives(status["pid"])
    assert home.misoctl("stop").returncode == errors.OK
    assert home.misoctl("status").returncode == errors.UNAVAILABLE
    refused = home.misoctl("say", "--no-start", "--raw", "Hello")
    assert refused.returncode == errors.UNAVAILABLE and "misoctl start" in refused.stderr


def test_version_names_both_sides(fake):
    lines = fake.misoctl("--version").stdout.splitlines()
    version = ".".join(map(str, m.VERSION))
    assert lines[0] == f"misoctl {misod.__version__} (protocol {version})"
    assert lines[1] == f"misod   {misod.__version__} (protocol {version}, pid {fake.daemon.pid})"


def test_a_second_daemon_names_the_first(fake):
    """zeromq/libzmq#2059, pyzmq#209: a second bind steals the socket."""
    second = fake.fake(ready=False)
    assert ended(second) == errors.TRY_AGAIN
    assert f"already running, pid {fake.daemon.pid}" in fake.stderr.read_text()
    with Raw(fake) as raw:
        assert raw.ping().pid == fake.daemon.pid


def test_the_pid_named_is_not_that_of_one_that_was_killed(home):
    home.run.mkdir(mode=0o700)
    (home.run / "misod.lock").write_text("4194000\n")  # above pid_max here: nobody's
    first = home.fake()
    assert home.lock_pid() == first.pid


def start_many(home, count: int) -> None:
    daemons = [home.fake(ready=False) for _ in range(count)]
    status = home.wait_for("ready")
    for daemon in daemons:
        if daemon.pid != status.pid:
            assert ended(daemon, 60) == errors.TRY_AGAIN
    assert home.stderr.read_text().count(f"already running, pid {status.pid};") == count - 1
    assert home.wait_for("ready").pid == status.pid


def test_of_many_started_at_once_one_lives(home):
    start_many(home, 20)


@pytest.mark.slow
def test_of_a_hundred_started_at_once_one_lives(home):
    start_many(home, 100)


def kill_and_start(home, cycles: int) -> None:
    for cycle in range(cycles):
        daemon = home.fake()
        with Raw(home) as raw:
            raw.say(1, FOREVER)
            raw.until(m.Pcm)
            daemon.kill()
            daemon.wait()
        assert stat.S_ISSOCK(home.socket.lstat().st_mode), cycle  # left behind, in nobody's way


def test_killed_it_starts_again(home):
    kill_and_start(home, 3)


@pytest.mark.slow
def test_killed_two_hundred_times_it_starts_again(home):
    kill_and_start(home, 200)


# ---- what it refuses


def test_a_file_at_the_socket_path_is_refused_and_kept(home):
    """smg-project/smg#2076: a bind deletes it."""
    home.run.mkdir(mode=0o700)
    home.socket.write_text("mine")
    assert ended(home.fake(ready=False)) == errors.NO_PERMISSION
    assert home.socket.read_text() == "mine"
    assert str(home.socket) in home.stderr.read_text()


def test_a_run_dir_that_others_can_enter_is_refused(home):
    home.run.mkdir()
    home.run.chmod(0o755)
    assert ended(home.fake(ready=False)) == errors.NO_PERMISSION
    assert "chmod 700" in home.stderr.read_text()


def test_a_run_dir_that_is_a_link_is_refused(home):
    (home.path / "elsewhere").mkdir(mode=0o700)
    home.run.symlink_to(home.path / "elsewhere")
    assert ended(home.fake(ready=False)) == errors.NO_PERMISSION


def test_a_lock_that_is_a_link_is_refused_and_its_target_kept(home):
    home.run.mkdir(mode=0o700)
    (home.path / "precious").write_text("1")
    (home.run / "misod.lock").symlink_to(home.path / "precious")
    assert ended(home.fake(ready=False)) == errors.NO_PERMISSION
    assert (home.path / "precious").read_text() == "1"
    (home.run / "misod.lock").unlink()


@pytest.mark.parametrize("umask", [0o000, 0o022, 0o077])
def test_nothing_it_makes_is_open_to_others(home, umask):
    before = os.umask(umask)
    try:
        home.fake()
    finally:
        os.umask(before)
    for path in (home.run, home.socket, home.run / "misod.lock", home.log):
        assert path.lstat().st_mode & 0o077 == 0, path


def test_a_bad_flag_and_a_bad_config_exit_78(home):
    assert ended(home.fake(ready=False, max_rows="many")) == errors.BAD_CONFIG
    assert "max" in home.stderr.read_text()
    (home.path / "config.toml").write_text("max_rowz = 3")
    assert ended(home.fake(ready=False)) == errors.BAD_CONFIG
    assert "max_rowz" in home.stderr.read_text()


def test_a_home_that_names_no_directory_is_refused(home):
    serve = home.spawn([sys.executable, "-m", "misod", "serve"], {"MISO_HOME": "~nobody-of-that-name/x"})
    assert ended(serve) == errors.NO_PERMISSION
    assert "MISO_HOME" in home.stderr.read_text()


def test_a_home_that_is_a_file_is_refused(home):
    (home.path / "file").write_text("mine")
    serve = home.spawn([sys.executable, "-m", "misod", "serve"], {"MISO_HOME": str(home.path / "file")})
    assert ended(serve) in (errors.CANT_CREATE, errors.NO_PERMISSION, errors.BAD_CONFIG)
    assert str(home.path / "file") in home.stderr.read_text()
    assert (home.path / "file").read_text() == "mine"


def test_a_signal_while_it_starts_ends_it_without_a_traceback(home):
    home.may_trace_back = True  # Python's own, before any line of ours
    for delay_s in (0.02, 0.06, 0.12, 0.2, 0.3):
        serve = home.spawn([sys.executable, "-m", "misod", "serve"], {})
        time.sleep(delay_s)
        serve.send_signal(signal.SIGINT)
        ended(serve)
    assert "/misod/cli.py" not in home.said()  # from which all else is imported


# ---- what others remove


def test_its_run_directory_removed_it_leaves_its_successor_alone_and_ends(home):
    first = home.fake(keep_alive_s=0.5)
    with Raw(home) as raw:
        raw.say(1, FOREVER)
        raw.until(m.Pcm)  # it stays while it speaks
        shutil.rmtree(home.run)
        second = home.fake()
        raw.send(m.Cancel(id=1))
        raw.until(m.Done)
    assert ended(first) == errors.OK
    assert home.wait_for("ready").pid == second.pid


def test_its_socket_removed_misoctl_can_still_stop_it(fake):
    fake.socket.unlink()
    stopped = fake.misoctl("stop")
    assert stopped.returncode == errors.OK and str(fake.daemon.pid) in stopped.stderr
    assert ended(fake.daemon) == errors.OK


# ---- loading


def test_it_answers_while_it_loads_and_tells_who_waits(home, gate):
    home.fake(ready=False)
    home.wait_for("loading")
    with Raw(home) as raw:
        raw.say(1, "two words")
        got = raw.until(m.Progress, 1)
        assert [type(x) for x in got] == [m.Accepted, m.Progress] and got[-1].state == "loading"
        assert raw.ping().queued == 1
        open_gate(gate)
        assert raw.until(m.Done)[-1].frames == 4


def test_a_request_cancelled_before_it_has_a_row_is_told_so(home, gate):
    home.fake(ready=False)
    home.wait_for("loading")
    with Raw(home) as raw:
        raw.say(1, "two words")
        raw.send(m.Cancel(id=1))
        raw.ping()
        open_gate(gate)
        done = raw.until(m.Done)[-1]
        assert (done.end, done.frames, done.ttfa_ms, done.temperature) == ("cancelled", 0, None, None)
    assert home.traced("prefill") == 0


def test_a_client_gone_before_it_has_a_row_leaves_the_queue(home, gate):
    home.fake(ready=False)
    home.wait_for("loading")
    with Raw(home) as gone:
        gone.say(1, "two words")
        gone.until(m.Accepted)
    with Raw(home) as raw:
        until(lambda: raw.ping().queued == 0, "the dead client to leave")


def test_a_model_that_cannot_load_is_named_and_the_next_request_tries_again(home):
    error = home.path / "error"
    error.write_text("/models/x.safetensors: 3 tensors are missing")
    home.env["FAKE_LOAD_ERROR"] = str(error)
    daemon = home.fake(ready=False)
    assert "x.safetensors" in home.wait_for("failed").detail
    refused = home.misoctl("say", "--raw", "Hello")
    assert refused.returncode == errors.SOFTWARE and "x.safetensors" in refused.stderr
    error.unlink()
    assert home.misoctl("say", "--raw", "Hello", text=False).returncode == errors.OK
    assert daemon.poll() is None
    assert home.wait_for("ready").detail == ""


def test_all_who_waited_for_a_load_hear_of_its_failure_at_once(home, gate):
    error = home.path / "error"
    error.write_text("broken")
    home.env["FAKE_LOAD_ERROR"] = str(error)
    home.fake(ready=False)
    home.wait_for("loading")
    with Raw(home) as raw:
        for request in (1, 2, 3):
            raw.say(request, "Hello")
        raw.ping()
        open_gate(gate)  # one load, not one for each
        failed = [raw.until(m.Error)[-1] for _ in range(3)]
        assert [(x.id, x.code, x.message) for x in failed] == [(n, "model", "broken") for n in (1, 2, 3)]


def test_a_reason_that_is_no_text_still_reaches_the_client(home):
    home.may_trace_back = True
    home.fake()
    with Raw(home) as raw:
        raw.say(1, "surrogate")
        assert raw.until(m.Error)[-1].code == "engine"
        raw.say(2, "silent fault at frame 1")
        assert raw.until(m.Error)[-1].message
        assert raw.ping().state == "ready"


@pytest.mark.parametrize("field", ["engine", "model", "digest", "backend"])
def test_an_engine_that_calls_itself_too_much_ends_no_daemon(home, field):
    home.env["FAKE_INFO"] = json.dumps({field: "\u20ac" * 1000})
    home.fake()
    with Raw(home) as raw:
        raw.say(1, "two words")
        assert raw.until(m.Done)[-1].end == "eos"
        assert raw.ping().state == "ready"


def test_an_answer_that_the_wire_does_not_take_ends_its_request_alone(home):
    home.fake()
    with Raw(home) as raw:
        raw.say(1, "too hot")
        failed = raw.until(m.Error)[-1]
        assert (failed.id, failed.code) == (1, "engine") and "done.temperature" in failed.message
        raw.say(2, "two words")
        assert raw.until(m.Done)[-1].id == 2


def test_unused_it_frees_the_model_and_the_next_request_waits_for_it(home):
    home.fake(ready=False, keep_alive_s=0.1)  # ready for too short a time to be seen for sure
    home.wait_for("idle")
    assert home.traced("close") == 1
    with Raw(home) as raw:
        raw.say(1, "two words")
        got = raw.until(m.Done, ack=True)
        assert [x.state for x in got if isinstance(x, m.Progress)] == ["loading"]
        assert got[-1].frames == 4
    home.wait_for("idle")
    assert home.traced("open") == home.traced("close") == 2


def test_a_speaking_or_parked_row_keeps_the_model(home):
    home.fake(ready=False, keep_alive_s=0.1)
    home.wait_for("idle")
    with Raw(home) as raw:
        raw.say(1, FOREVER)
        until(lambda: raw.ping().parked, "the window to be out")
        raw.until(m.Progress)  # a second later, so well past keep_alive
        assert raw.ping().state == "ready"


def test_a_quiet_daemon_does_not_wake(fake):
    """raullenchai/Rapid-MLX#265: idle polling."""

    def wakes() -> int:
        total = 0
        for task in os.listdir(f"/proc/{fake.daemon.pid}/task"):
            with open(f"/proc/{fake.daemon.pid}/task/{task}/status") as status:
                total += sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)
        return total

    fake.misoctl("say", "--raw", "Hello", text=False)
    until(lambda: fake.traced("release") == 1, "the row to leave")
    time.sleep(0.3)  # the connection's end
    before = wakes()
    time.sleep(2)  # what is measured is that nothing happens
    assert wakes() - before <= 1


# ---- models


def loaded(raw: Raw, request: int, **wanted) -> list[m.Message]:
    raw.send(m.Load(id=request, **wanted))
    return raw.until(m.Status, request)


@pytest.fixture
def other(home):
    """A second model beside the bundled one; the fake engine does not look into it."""
    directory = home.path / "models" / "other"
    directory.mkdir(parents=True)
    (directory / "config.json").write_text("{}")
    return home


def test_a_request_may_name_its_model_and_the_next_takes_what_is_there(other):
    other.fake()
    with Raw(other) as raw:
        for request, wanted, spoke in [
            (1, "other", "other"),
            (2, None, "other"),
            (3, "nano", "nano"),
            (4, "auto", "nano"),
        ]:
            raw.say(request, "two words", model=wanted)
            assert raw.until(m.Done)[-1].model == spoke
    assert other.traced("open") == 3 and other.traced("close") == 2


def test_a_change_of_model_waits_for_what_speaks_and_keeps_the_order(other):
    other.fake()
    with Raw(other) as raw:
        raw.say(1, "last 40")
        raw.until(m.Pcm)
        raw.say(2, "two words", model="other")
        raw.say(3, "two words")
        done = [raw.until(m.Done)[-1] for _ in range(3)]
    assert [(x.id, x.end, x.model) for x in done] == [(1, "eos", "nano"), (2, "eos", "other"), (3, "eos", "other")]


def test_load_and_unload_wait_their_turn_and_answer_with_the_status(other):
    other.fake()
    with Raw(other) as raw:
        raw.say(1, "last 40")
        raw.until(m.Pcm)
        raw.send(m.Unload(id=2))
        got = raw.until(m.Status, 2)
        assert got[-2].end == "eos" and got[-1].state == "idle"
        got = loaded(raw, 3, model="other")
        assert (got[-1].state, got[-1].model) == ("ready", "other")
        assert "loading" in [x.state for x in got if isinstance(x, m.Progress)]
        assert loaded(raw, 4)[-1].model == "other" and other.traced("open") == 2
        raw.send(m.Unload(id=5), m.Unload(id=6))
        assert [raw.until(m.Status)[-1].state for _ in range(2)] == ["idle", "idle"]


@pytest.mark.parametrize("name", ["othr", "..", ".", "../models/other", "/etc", "other/", ".other", "other\0"])
def test_a_name_that_is_no_models_changes_nothing(other, name):
    other.fake()
    with Raw(other) as raw:
        raw.say(1, "two words", model=name)
        assert raw.until(m.Error)[-1].code == "no_model"
        raw.send(m.Load(id=2, model=name))
        assert raw.until(m.Error)[-1].code == "no_model"
        assert raw.ping().state == "ready"
    assert other.traced("open") == 1 and other.traced("close") == 0


def test_a_model_that_cannot_load_fails_those_who_asked_for_it_and_no_others(other):
    error = other.path / "error"
    other.env["FAKE_LOAD_ERROR"] = str(error)
    other.fake()
    error.write_text("broken")
    with Raw(other) as raw:
        raw.say(1, "last 40")
        raw.until(m.Pcm)
        raw.say(2, "two words", model="other")
        raw.send(m.Load(id=3, model="other"))
        raw.until(m.Done)
        assert [(x.id, x.code, x.message) for x in (raw.until(m.Error)[-1] for _ in range(2))] == [
            (2, "model", "broken"),
            (3, "model", "broken"),
        ]
        error.unlink()
        raw.say(4, "two words")
        assert raw.until(m.Done)[-1].model == "nano"


def test_what_is_cancelled_before_any_model_is_there_has_a_receipt(other):
    error = other.path / "error"
    error.write_text("broken")
    other.env["FAKE_LOAD_ERROR"] = str(error)
    other.fake(ready=False)
    other.wait_for("failed")
    with Raw(other) as raw:
        raw.say(1, "two words")
        raw.send(m.Cancel(id=1))
        end = raw.receive_end()
        assert end.end == "cancelled" if isinstance(end, m.Done) else end.code == "model"  # whichever was first
        raw.ping()


def test_a_client_that_goes_takes_its_load_along(other):
    other.fake()
    with Raw(other) as speaker:
        speaker.say(1, FOREVER)
        speaker.until(m.Pcm)
        with Raw(other) as gone:
            gone.send(m.Load(id=1, model="other"))
            until(lambda: speaker.ping().queued == 1, "the load to wait")
        until(lambda: speaker.ping().queued == 0, "the load to leave")
        speaker.send(m.Cancel(id=1))
        speaker.until(m.Done)
        assert speaker.ping().model == "nano"


def test_a_request_may_say_how_long_its_model_stays(other):
    other.fake()
    with Raw(other) as raw:
        raw.say(1, "two words", keep_alive_s=0.1)
        raw.until(m.Done)
        until(lambda: raw.ping().state == "idle", "the model to be freed")
        assert loaded(raw, 2)[-1].state == "ready"  # for the daemon's own time again
        time.sleep(0.3)
        assert raw.ping().state == "ready"


def test_status_tells_the_keep_alive_that_holds(other):
    other.fake()
    with Raw(other) as raw:
        assert loaded(raw, 1, keep_alive_s=77.0)[-1].keep_alive_s == 77.0


def test_misoctl_loads_and_unloads(other):
    idle_bytes = []
    for _ in range(3):
        assert "nano is ready" in other.misoctl("load", "nano").stderr
        assert other.misoctl("unload").stderr.endswith("no model is loaded\n")
        idle_bytes.append(json.loads(other.misoctl("status", "--json").stdout)["active_bytes"])
    assert len(set(idle_bytes)) == 1 and idle_bytes[0] < 1024
    missing = other.misoctl("load", "othr")
    assert missing.returncode == errors.NO_INPUT and "misoctl list" in missing.stderr
    missing = other.misoctl("say", "--raw", "--model", "othr", "Hello")
    assert missing.returncode == errors.NO_INPUT and "misoctl list" in missing.stderr
    other.misoctl("stop")
    assert other.misoctl("unload").returncode == errors.UNAVAILABLE


# ---- stopping


def test_sigterm_finishes_what_speaks(fake):
    with Raw(fake) as raw:
        for request in range(8):
            raw.say(request, "last 40")
        waiting = set(range(8))
        while waiting:
            waiting -= {x.id for x in frames_of(raw.until(m.Pcm))}
        fake.daemon.terminate()
        got = []
        while len([x for x in got if isinstance(x, m.Done)]) < 8:
            got += raw.until(m.Done)
    assert {(x.id, x.end, x.frames) for x in got if isinstance(x, m.Done)} == {(n, "eos", 40) for n in range(8)}
    assert ended(fake.daemon) == errors.OK
    assert not fake.socket.exists()


def test_draining_it_refuses_who_waits_and_who_comes(home):
    daemon = home.fake(max_rows=1)
    with Raw(home) as raw:
        raw.say(1, FOREVER)
        raw.until(m.Pcm)
        raw.say(2, "I wait")
        until(lambda: raw.ping().queued == 1, "the second to wait")
        daemon.terminate()
        assert raw.until(m.Error)[-1] == m.Error(id=2, code="draining", message="misod is shutting down")
        assert raw.ping().state == "draining"
        late = home.misoctl("say", "--raw", "--no-start", "I come late")
        assert late.returncode == errors.TRY_AGAIN and "shutting down" in late.stderr
        raw.send(m.Cancel(id=1))
        assert raw.until(m.Done)[-1].end == "cancelled"
    assert ended(daemon) == errors.OK


@pytest.mark.parametrize("verb", [("start",), ("say", "--raw", "I come late.")], ids=["start", "say"])
def test_one_that_stops_is_waited_for_and_another_started(home, verb):
    daemon = home.fake()
    with Raw(home) as raw:
        raw.say(1, FOREVER)
        raw.until(m.Pcm)
        daemon.terminate()
        until(lambda: raw.ping().state == "draining", "the drain")
        late = home.misoctl_process(*verb, stdout=subprocess.PIPE)
        assert not late.stderr.readline().startswith(b"misoctl: misod is ready")
        raw.send(m.Cancel(id=1))
        raw.until(m.Done)
    assert ended(daemon) == errors.OK
    late.communicate(timeout=30)
    assert late.returncode == errors.OK and home.lock_pid() != daemon.pid
    assert home.wait_for("ready").model == "nano"


def test_a_drain_during_a_load_refuses_who_waits_and_ends(home, gate):
    daemon = home.fake(ready=False)
    home.wait_for("loading")
    with Raw(home) as raw:
        raw.say(1, "Hello")
        raw.until(m.Progress)
        raw.send(m.Drain(id=9))
        got = raw.until(m.Error)
        assert got[-1].code == "draining" and got[0].state == "draining"
    assert ended(daemon) == errors.OK


def test_a_drain_has_an_end_and_every_client_its_receipt(home):
    daemon = home.fake(drain_s=0.3)
    path = home.path / "cut.wav"
    say = home.misoctl_process("say", "-o", str(path), "--json", FOREVER, stdout=-1)
    until(lambda: home.trace.read_text().count("frame") > 20, "speech")
    daemon.send_signal(signal.SIGTERM)
    out, err = say.communicate(timeout=15)
    assert say.returncode == errors.FAILED and b"drained" in err, (say.returncode, err)
    receipt = json.loads(out)
    assert receipt["end"] == "drained"
    assert path.stat().st_size == 44 + 2 * receipt["samples"] == 44 + 3840 * receipt["frames"]
    assert ended(daemon) == errors.OK


def test_a_second_sigterm_ends_it_at_once(fake):
    with Raw(fake) as raw:
        raw.say(1, FOREVER)
        raw.until(m.Pcm)
        fake.daemon.terminate()
        until(lambda: raw.ping().state == "draining", "the drain")
        fake.daemon.terminate()
        assert ended(fake.daemon) == errors.OK  # its row would have parked, and drained for 15 s
        assert not [x for x in drained(raw) if isinstance(x, m.Done)]


def drained(raw: Raw) -> list[m.Message]:
    got = []
    while raw.dealer.poll(0):
        got.append(raw.receive())
    return got


def test_ctrl_c_drains_too(fake):
    fake.daemon.send_signal(signal.SIGINT)
    assert ended(fake.daemon) == errors.OK


def test_misoctl_stop_waits_for_the_speech(fake):
    with Raw(fake) as raw:
        raw.say(1, "last 45")
        raw.until(m.Pcm)
        stopper = threading.Thread(target=fake.misoctl, args=("stop",))
        stopper.start()
        assert raw.until(m.Done, ack=True)[-1].end == "eos"
        stopper.join()
    assert fake.daemon.wait(1) == errors.OK
