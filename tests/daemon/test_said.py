"""What `say` writes and tells while it speaks, with the bundled voice, and a player of its own that keeps time."""

import fcntl
import io
import json
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
import time
import wave

import psutil
import pytest
import soundfile
from harness import MISOCTL, Raw, lives, until

from protocol import errors

TEXT = "It cost **12** pounds. Nobody asked."
APLAY = f"""#!{sys.executable}
import os, sys, time
log = open(os.environ["PLAYED"], "a", buffering=1)
log.write(f"start {{os.getpid()}}\\n")
while data := sys.stdin.buffer.read(4800):
    time.sleep(0.02)  # five times as fast as it is heard
log.write("end\\n")
"""


@pytest.fixture
def player(nano, tmp_path):
    """The environment with a player that is a program of ours; its log is in `played`."""
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    (bin_ / "aplay").write_text(APLAY)
    (bin_ / "aplay").chmod(0o755)
    played = tmp_path / "played"
    path = f"{bin_}:{os.environ['PATH']}"
    return {"env": nano.env | {"PATH": path, "MISO_PLAYER": "aplay", "PLAYED": str(played)}, "played": played}


def events(done: subprocess.CompletedProcess) -> list[dict]:
    assert done.returncode == errors.OK, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_events_are_in_order_and_each_word_names_its_source(nano, player):
    got = events(nano.misoctl("say", "--events", "--seed", "7", TEXT, env=player["env"]))
    assert got[0] == {"event": "floor", "state": "yours"}
    assert [got[1]["event"], got[2]["event"], got[-1]["event"]] == ["accepted", "piece", "done"]
    assert {event["event"] for event in got[1:]} <= {"accepted", "waiting", "piece", "word", "underrun", "done"}
    pieces = [event for event in got if event["event"] == "piece"]
    assert [piece["at_s"] for piece in pieces] == sorted(piece["at_s"] for piece in pieces)
    words = [event for event in got if event["event"] == "word"]
    assert " ".join(word["word"] for word in words) == got[-1]["spoken"]
    sources = {word["word"]: TEXT[slice(*word["source"])] for word in words}
    assert sources["twelve"] == "12" and sources["asked."] == "asked."
    assert got[-1]["seed"] == 7 and got[-1]["sha256"] and got[-1]["text"] == TEXT


def test_events_of_a_request_that_fails_end_with_the_error(nano):
    done = nano.misoctl("say", "--events", "-o", "/dev/null", "--speaker", "9", "Hello.")
    last = json.loads(done.stdout.splitlines()[-1])
    assert done.returncode == errors.USAGE == last["exit_code"]
    assert last["event"] == "error" and f"misoctl: {last['message']}\n" == done.stderr


def test_a_reader_of_events_that_goes_away_ends_the_speech(nano, tmp_path):
    command = f"{MISOCTL} say --events -o {tmp_path}/a.wav {'word ' * 60}| head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], env=nano.env, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == str(errors.BROKEN_PIPE) and done.stderr == ""


@pytest.mark.parametrize("kind", ["flac", "opus"])
def test_each_sentence_has_a_file_and_together_they_are_the_whole(nano, tmp_path, kind):
    parts, whole = tmp_path / "parts", tmp_path / f"whole.{kind}"
    done = nano.misoctl("say", "-o", str(whole), "--split-sentences", str(parts), "One. Two! Three?")
    assert done.returncode == errors.OK, done.stderr
    names = sorted(path.name for path in parts.iterdir())
    assert names == [f"000{n}.{kind}" for n in (1, 2, 3)]
    lengths = [soundfile.info(parts / name).frames for name in names]
    assert min(lengths) > 5 * 1920 and sum(lengths) == soundfile.info(whole).frames


def test_a_stream_of_flac_comes_out_of_a_pipe(nano):
    raw = nano.misoctl("say", "--seed", "3", "--raw", "Hello.", text=False).stdout
    flac = nano.misoctl("say", "--seed", "3", "-o", "-", "--format", "flac", "Hello.", text=False).stdout
    samples = len(raw) // 2
    sound = soundfile.SoundFile(io.BytesIO(flac[:22] + samples.to_bytes(4, "big") + flac[26:]))  # the length
    assert sound.read(samples, "int16").tobytes() == raw


def test_lines_are_spoken_as_they_come_by_one_player(nano, player, tmp_path):
    command = [MISOCTL, "say", "--follow", "--json"]
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    say = subprocess.Popen(command, env=player["env"], text=True, **streams)
    receipts = []
    for line in ("First.", "Second one.", "Third."):
        say.stdin.write(f"{line}\n...\n")
        say.stdin.flush()
        receipts.append(json.loads(say.stdout.readline()))  # before the next is written, the pipe open
    say.stdin.close()
    assert say.wait(timeout=60) == errors.OK, say.stderr.read()
    assert [receipt["text"] for receipt in receipts] == ["First.", "Second one.", "Third."]
    assert re.fullmatch(r"start \d+\nend\n", player["played"].read_text())
    for stream in (say.stdout, say.stderr):
        stream.close()


def test_the_time_in_which_no_line_came_is_no_gap(nano, player):
    """All of a line is held, however much that is, and then played: nothing is late."""
    command = [MISOCTL, "say", "--follow", "--events", "--prebuffer", "1000"]
    say = subprocess.Popen(command, env=player["env"], text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    done = []
    for line in ("First.", "Second one."):
        say.stdin.write(f"{line}\n")
        say.stdin.flush()
        while (event := json.loads(say.stdout.readline()))["event"] != "done":  # heard, though more may come
            assert event["event"] != "underrun"
        done.append(event)
        time.sleep(0.3)
    say.stdin.close()
    assert say.wait(timeout=60) == errors.OK and say.stdout.read() == ""
    say.stdout.close()
    assert [(each["underruns"], each["gap_s"]) for each in done] == [(0, 0)] * 2


def test_a_line_that_the_voice_cannot_read_is_told_and_the_next_is_spoken(nano, tmp_path):
    lines, out = "\u4f60\u597d\n".encode() + b"\xff\n", tmp_path / "a.wav"
    done = nano.misoctl("say", "--follow", "-o", str(out), input=lines, text=False)
    assert done.returncode == errors.OK and b"no letters" in done.stderr and b"line 2 is not UTF-8" in done.stderr
    assert not out.exists()


def test_ctrl_c_ends_following_at_once_and_keeps_the_file(nano, tmp_path):
    out = tmp_path / "a.wav"
    say = nano.misoctl_process(
        "say", "--follow", "-o", str(out), "--json", stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    say.stdin.write(b"Hello.\n")
    say.stdin.flush()
    say.stdout.readline()
    say.send_signal(signal.SIGINT)
    assert say.wait(timeout=20) == errors.INTERRUPTED and say.stderr.read() == b""
    with wave.open(str(out)) as file:
        assert file.getnframes() > 1920


def test_no_wait_returns_while_it_speaks_on_in_a_session_of_its_own(nano, player):
    nano.misoctl("hush")  # nobody has the floor
    with Raw(nano) as raw:
        before = raw.ping().requests
        done = nano.misoctl("say", "--no-wait", " ".join([TEXT] * 5), env=player["env"], timeout=30)
        assert (done.returncode, done.stdout, done.stderr) == (errors.OK, "", "")
        assert raw.ping().requests == before + 1
        until(player["played"].exists, "the player to start")
        pid = int(player["played"].read_text().split()[1])
        speaker = psutil.Process(pid).parent()
        assert os.getsid(speaker.pid) != os.getsid(0)
        speaker.terminate()
        until(lambda: not lives(pid), "its player to be gone")
        until(lambda: raw.ping().speaking == 0, "its row to leave")


def test_no_wait_writes_the_whole_file(nano, tmp_path):
    out = tmp_path / "a.flac"
    assert nano.misoctl("say", "--no-wait", "--seed", "5", "-o", str(out), "Hello there.").returncode == errors.OK
    until(out.exists, "the file")
    nano.misoctl("say", "--seed", "5", "-o", str(tmp_path / "b.flac"), "Hello there.")
    assert out.read_bytes() == (tmp_path / "b.flac").read_bytes()


def test_what_is_wrong_before_it_is_accepted_no_wait_tells(nano, tmp_path):
    done = nano.misoctl("say", "--no-wait", "-v", "nobody", "Hello.")
    assert done.returncode == errors.NO_INPUT and "no voice nobody" in done.stderr
    assert nano.misoctl("say", "--no-wait", "-o", "-", "Hello.").returncode == errors.USAGE


def at_terminal(env: dict, columns: int, *arguments: str) -> str:
    """What misoctl writes to a terminal that is its standard error."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    command = [MISOCTL, "say", *arguments]
    say = subprocess.Popen(command, env=env | {"TERM": "xterm"}, stdin=subprocess.DEVNULL, stderr=theirs)
    os.close(theirs)
    said = b""
    try:
        while data := os.read(ours, 4096):
            said += data
    except OSError:  # Linux: all its ends are closed
        pass
    os.close(ours)
    assert say.wait(timeout=60) == errors.OK
    return said.decode()


def screen_of(said: str) -> list[str]:
    """The rows that are left, of one terminal's output with the few escapes that are used."""
    rows, row, column = [""], 0, 0
    for part in re.findall(r"\x1b\[\d*[A-Za-z]|[\r\n]|[^\x1b\r\n]+", said):
        if part[0] == "\x1b":
            kind, number = part[-1], int(part[2:-1] or 0)
            row -= number if kind == "A" else 0
            if kind == "J":
                rows = [*rows[:row], rows[row][:column]]
        elif part == "\r":
            column = 0
        elif part == "\n":
            row += 1
            rows += [""] * (row + 1 - len(rows))
        else:
            rows[row] = rows[row][:column] + part + rows[row][column + len(part) :]
            column += len(part)
    return [text.rstrip() for text in rows]


def test_highlight_marks_each_word_and_leaves_the_text(nano, tmp_path):
    said = at_terminal(nano.env, 24, "--highlight", "-q", "-o", str(tmp_path / "a.wav"), TEXT)
    marked = re.findall(r"\x1b\[7m(.*?)\x1b\[27m", said)
    assert marked == ["It", "cost", "12", "pounds.", "Nobody", "asked."]
    rows = [row for row in screen_of(said) if row]
    assert " ".join(rows) == TEXT and all(len(row) < 24 for row in rows)


def test_progress_is_gone_at_the_end_and_quiet_has_none(nano, tmp_path):
    long = " ".join([TEXT] * 12)
    said = at_terminal(nano.env, 80, "--max-seconds", "4", "-o", str(tmp_path / "a.wav"), long)
    assert re.search(r"\d+ of 72 words, \d+:\d\d left", said)
    rows = [row for row in screen_of(said) if row]
    assert len(rows) == 2 and "was cut" in rows[0] and " made in " in rows[1]
    assert at_terminal(nano.env, 80, "-q", "--max-seconds", "4", "-o", str(tmp_path / "a.wav"), long) == ""


def test_without_a_terminal_there_is_neither(nano, tmp_path):
    done = nano.misoctl("say", "-o", str(tmp_path / "a.wav"), "--max-seconds", "1", " ".join([TEXT] * 8))
    assert done.returncode == errors.OK and done.stderr.count("\n") == 1 and "was cut" in done.stderr
    done = nano.misoctl("say", "--highlight", TEXT)
    assert done.returncode == errors.USAGE and "terminal" in done.stderr
