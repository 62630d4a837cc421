"""`misoctl say` through a player, a script of ours, with a real daemon behind it."""

import json
import os
import signal
import sys

import pytest
from harness import Raw, lives, until

from protocol import messages as m

LEAD_IN_BYTES = 2 * 1200
RECORDS = 'Path(here, "bytes").write_bytes(sys.stdin.buffer.read())'
STAYS = (
    'Path(here, "pid.part").write_text(str(os.getpid())); os.rename(here + "/pid.part", here + "/pid"); signal.pause()'
)


@pytest.fixture
def plays(home, tmp_path):
    """plays(script): the home of a daemon whose clients have one player, aplay, which runs this."""

    def make(script: str):
        head = f"#!{sys.executable}\nimport os, signal, sys\nfrom pathlib import Path\nhere = {str(tmp_path)!r}\n"
        (tmp_path / "aplay").write_text(head + script)
        (tmp_path / "aplay").chmod(0o755)
        (tmp_path / "sounddevice.py").write_text("raise ImportError")
        home.env |= {"PATH": str(tmp_path), "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])}
        return home

    return make


def test_the_receipt_counts_the_gaps_of_what_was_played_and_of_a_file_has_none(plays, tmp_path):
    home = plays(RECORDS)
    home.fake()
    done = home.misoctl("say", "--json", "-q", "last 30")
    receipt = json.loads(done.stdout)
    assert receipt["underruns"] >= 0 and receipt["gap_s"] >= 0
    assert len((tmp_path / "bytes").read_bytes()) == LEAD_IN_BYTES + 2 * receipt["samples"]
    written = json.loads(home.misoctl("say", "--json", "-o", str(tmp_path / "a.wav"), "last 30").stdout)
    assert written["underruns"] is written["gap_s"] is None
    assert (tmp_path / "a.wav").stat().st_size == 44 + 2 * written["samples"]  # a lead-in is for playing


def test_a_pipe_has_neither_lead_in_nor_volume(plays):
    home = plays(RECORDS)
    home.fake()
    home.env |= {"MISO_LEAD_IN_MS": "500", "MISO_VOLUME": "0"}
    seed = ("--seed", "7", "last 5")
    quiet = home.misoctl("say", "--raw", *seed, text=False).stdout
    del home.env["MISO_VOLUME"], home.env["MISO_LEAD_IN_MS"]
    assert quiet == home.misoctl("say", "--raw", *seed, text=False).stdout and any(quiet)


def test_a_model_that_is_too_slow_is_waited_for_and_that_is_told(plays, tmp_path):
    home = plays(RECORDS)
    home.fake({"FAKE_STEP_MS": "160"})
    done = home.misoctl("say", "last 25 " + "word " * 10)
    assert done.returncode == 0 and "misoctl: starts in " in done.stderr
    assert len((tmp_path / "bytes").read_bytes()) == LEAD_IN_BYTES + 25 * 3840
    silent = home.misoctl("say", "-q", "--no-prebuffer", "last 5")
    assert silent.returncode == 0 and not silent.stderr


def test_events_tell_of_each_gap_and_after_how_much_speech(plays):
    home = plays(RECORDS)
    home.fake({"FAKE_STEP_MS": "160"})
    told = home.misoctl("say", "--events", "--no-prebuffer", "last 10").stdout.splitlines()
    *before, done = [json.loads(line) for line in told]
    gaps = [event for event in before if event["event"] == "underrun"]
    assert done["event"] == "done" and 0 < len(gaps) == done["underruns"]
    assert sum(gap["gap_s"] for gap in gaps) == pytest.approx(done["gap_s"], abs=0.01)
    frames = [gap["at_s"] / 0.08 for gap in gaps]
    assert frames == sorted(frames) == pytest.approx([round(frame) for frame in frames]) and frames[0] >= 1


def test_misod_tells_how_fast_the_last_request_was_made(fake):
    with Raw(fake) as raw:

        def said(request: int, frames: int) -> tuple[m.Accepted, m.Done]:
            raw.say(request, f"last {frames}")
            got = raw.until(m.Done, request)
            return next(x for x in got if isinstance(x, m.Accepted)), got[-1]

        first, short = said(1, 5)
        again, long = said(2, 20)
        third, _ = said(3, 5)
        fourth, _ = said(4, 5)
    assert first.rtf is again.rtf is None and short.seconds < 1
    assert third.rtf == fourth.rtf == long.rtf


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGQUIT])
def test_a_client_killed_leaves_no_player_and_no_row(plays, tmp_path, number):
    home = plays(STAYS)
    home.fake({"FAKE_STEP_MS": "20"})
    client = home.misoctl_process("say", "last 5000")
    pid = int(until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text(), "the player"))
    assert lives(pid)
    client.send_signal(number)
    client.wait()
    until(lambda: not lives(pid), "the player to be gone")
    with Raw(home) as raw:
        until(lambda: not raw.ping().speaking, "the row to be free")
