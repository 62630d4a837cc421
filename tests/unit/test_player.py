"""Player programs, played by scripts of ours that record what they are given."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
from array import array
from dataclasses import replace
from pathlib import Path

import pytest

from misoctl import player
from misoctl.cli import Stopped
from misoctl.playing.program import Program
from misoctl.sink import wav_header
from protocol import errors
from protocol.errors import Failure
from protocol.settings import PLAYERS, Playing

PCM = bytes(range(256)) * 15
RATE = 24000
BARE = Playing(lead_in_ms=0)
RECORD = """
    import json
    Path(here, "arguments").write_text(json.dumps(sys.argv[1:]))
    Path(here, "bytes").write_bytes(sys.stdin.buffer.read())
"""
# Starts a child of its own, ignores what can be ignored, never reads.
STUBBORN = """
    import signal, subprocess, time
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    Path(here, "pids.part").write_text(f"{os.getpid()} {child.pid}")
    os.rename(Path(here, "pids.part"), Path(here, "pids"))
    time.sleep(60)
"""


@pytest.fixture
def programs(tmp_path, monkeypatch):
    """Only these programs exist; the function makes one."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setitem(sys.modules, "sounddevice", None)  # importing it is an ImportError

    def make(name: str, body: str = RECORD) -> None:
        head = f"#!{sys.executable}\nimport os, sys\nfrom pathlib import Path\nhere = {str(tmp_path)!r}\n"
        (folder / name).write_text(head + textwrap.dedent(body))
        (folder / name).chmod(0o755)

    return make


def play(*frames: bytes, **settings) -> None:
    sink = player.open_player(replace(BARE, **settings))
    for frame in frames:
        sink.write(frame, RATE)
    sink.close(whole=True)


def wait_for(path: Path) -> str:
    for _ in range(1000):
        if path.exists():
            return path.read_text()
        time.sleep(0.01)
    raise AssertionError(f"{path} never came")


def alive(pid: int) -> bool:
    """A zombie that nobody reaps is dead."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def gone(pid: int) -> bool:
    """A killed orphan needs a moment until it is taken away."""
    return soon(lambda: not alive(pid))


def soon(holds) -> bool:
    for _ in range(1000):
        if holds():
            return True
        time.sleep(0.01)
    return False


def arguments(tmp_path: Path) -> str:
    return " ".join(json.loads((tmp_path / "arguments").read_text()))


COMMANDS = {
    "ffplay": "-nodisp -autoexit -loglevel error -probesize 32 -analyzeduration 0 -i -",
    "sox": "-q -t raw -r 24000 -e signed-integer -b 16 -c 1 -",
    "pw-play": "--format s16 --rate 24000 --channels 1 -",
    "paplay": "--raw --format=s16le --rate=24000 --channels=1 --latency-msec=100",
    "aplay": "-q -t raw -f S16_LE -r 24000 -c 1 --buffer-time=200000",
}
PROGRAMS = {name: "play" if name == "sox" else name for name in COMMANDS}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_program_gets_the_right_arguments_and_every_byte(programs, tmp_path, name):
    programs(PROGRAMS[name])
    play(PCM, PCM, PCM)
    assert arguments(tmp_path) == COMMANDS[name]
    header = wav_header(RATE, None) if name == "ffplay" else b""
    assert (tmp_path / "bytes").read_bytes() == header + PCM * 3


def test_a_pw_play_that_knows_raw_is_told_that_it_is(programs, tmp_path):
    programs("pw-play", 'if "--help" in sys.argv: sys.exit("  -a, --raw   RAW mode")' + textwrap.dedent(RECORD))
    play(PCM)
    assert arguments(tmp_path) == f"--raw {COMMANDS['pw-play']}"
    assert (tmp_path / "bytes").read_bytes() == PCM


@pytest.mark.parametrize(
    ("name", "given"),
    [("pw-play", "--target hall "), ("paplay", "--device=hall "), ("aplay", "-D hall "), ("sox", "")],
)
def test_a_device_is_named_in_the_player_s_own_way(programs, tmp_path, name, given):
    programs(PROGRAMS[name], RECORD + '    Path(here, "audiodev").write_text(os.environ.get("AUDIODEV", ""))')
    play(PCM, device="hall")
    assert arguments(tmp_path) == given + COMMANDS[name]
    assert (tmp_path / "audiodev").read_text() == ("hall" if name == "sox" else "")


def test_a_player_that_takes_no_device_is_passed_over_or_refused_by_name(programs, tmp_path):
    for name in ("ffplay", "afplay", "aplay"):
        programs(name)
    play(PCM, device="hall")
    assert arguments(tmp_path).startswith("-D hall")
    for name in ("ffplay", "afplay"):
        with pytest.raises(Failure, match=f"{name} plays to the default device only; of sounddevice, sox") as caught:
            player.open_player(Playing(player=name, device="hall"))
        assert caught.value.exit_code == errors.USAGE


def test_the_first_one_here_plays_in_the_documented_order(programs, tmp_path):
    for name in reversed(PLAYERS[1:]):
        programs(PROGRAMS.get(name, name), 'Path(here, "who").write_text(Path(sys.argv[0]).name); sys.stdin.read()')
        play(bytes(3840))
        assert (tmp_path / "who").read_text() == PROGRAMS.get(name, name)


def test_the_one_that_is_asked_for_plays_or_is_missed_by_name(programs, tmp_path):
    programs("ffplay", 'Path(here, "wrong").touch()')
    programs("aplay")
    play(PCM, player="aplay")
    assert not (tmp_path / "wrong").exists() and (tmp_path / "bytes").read_bytes() == PCM
    with pytest.raises(Failure, match="paplay is not here; install one") as caught:
        play(PCM, player="paplay")
    assert caught.value.exit_code == errors.NO_PROGRAM


def test_the_first_syllable_is_not_lost_on_a_sleepy_output(programs, tmp_path):
    """PeonPing/peon-ping#543: silence goes before the first word, and before nothing else."""
    programs("aplay")
    play(PCM, PCM, lead_in_ms=250)
    assert (tmp_path / "bytes").read_bytes() == bytes(2 * RATE // 4) + PCM * 2
    assert 0 < Playing().lead_in_ms <= 100


def test_volume_is_a_factor_that_cannot_clip(programs, tmp_path):
    programs("aplay")
    loud = array("h", [-32768, 32767, 1000, -1000, 1, 0])
    play(loud.tobytes(), volume=0.5)
    assert array("h", (tmp_path / "bytes").read_bytes()).tolist() == [-16384, 16384, 500, -500, 0, 0]
    play(loud.tobytes())
    assert (tmp_path / "bytes").read_bytes() == loud.tobytes()


def test_a_gap_is_counted_and_what_comes_in_time_is_not(programs):
    programs("aplay")
    sink = player.open_player(BARE, asked_s=0)
    for _ in range(20):
        sink.write(PCM, RATE)
    assert (sink.underruns, sink.gap_s) == (0, 0)
    time.sleep(20 * 0.08 + 0.1)
    sink.write(PCM, RATE)
    sink.close(whole=True)
    assert sink.underruns == 1 and 0.09 < sink.gap_s < 5
    assert sink.new_gaps() == [(pytest.approx(1.6), sink.gap_s)] and sink.new_gaps() == []


def test_that_nothing_is_heard_before_the_next_is_asked_for_is_no_gap(programs):
    programs("aplay")
    sink = player.open_player(BARE, asked_s=0)
    for _ in range(2):
        sink.expect("a", None)
        sink.write(PCM, RATE)
        sink.made()
        time.sleep(0.2)
    assert sink.underruns == 0
    sink.write(PCM, RATE)  # of the second, late
    sink.close(whole=True)
    assert sink.underruns == 1


@pytest.mark.parametrize("name", ["aplay", "afplay"])
def test_what_is_all_there_is_heard_though_more_may_be_asked_for(programs, tmp_path, name):
    programs(name, AFPLAY if name == "afplay" else 'Path(here, "copy").write_bytes(sys.stdin.buffer.read(96000))')
    sink = player.open_player(replace(BARE, player=name), asked_s=100)
    sink.write(TONE * 2, RATE)
    sink.made()
    assert soon(lambda: (tmp_path / "copy").exists() and len((tmp_path / "copy").read_bytes()) == 96_000)
    sink.close(whole=True)
    assert sink.underruns == 0


def test_stutter_near_a_factor_of_1_is_a_told_wait_instead(programs, tmp_path):
    """Blaizzy/mlx-audio#170, KoljaB/RealtimeVoiceChat#26: it is held until it can play to the end, and that is told."""
    programs("aplay", 'Path(here, "started").touch()\n' + textwrap.dedent(RECORD))
    told = []
    sink = player.open_player(BARE, tell=told.append)
    sink.expect("x" * 60, None)
    sink.accepted(2.0)
    for _ in range(20):
        time.sleep(0.1)
        sink.write(PCM, RATE)
        assert not (tmp_path / "started").exists()
    sink.close(whole=True)
    assert (tmp_path / "bytes").read_bytes() == PCM * 20
    (line,) = told
    assert 0.5 <= float(line.removeprefix("starts in ").removesuffix(" s")) < 20


def test_speech_that_is_held_may_be_dropped_without_a_sound(programs, tmp_path):
    programs("aplay", 'Path(here, "started").touch()')
    sink = player.open_player(BARE, asked_s=100)
    sink.write(PCM, RATE)
    sink.close(whole=False)
    assert not (tmp_path / "started").exists()


@pytest.fixture
def slept(monkeypatch):
    naps = []
    monkeypatch.setattr(player.time, "sleep", naps.append)
    return naps


def test_while_it_plays_what_was_held_acks_go_on(programs, slept):
    """However much waits for a player that takes nothing: misod evicts who acknowledges nothing for 10 s."""
    programs("aplay", "import signal; signal.pause()")
    sink = player.open_player(BARE, asked_s=6)
    for _ in range(180):  # 14.4 s
        sink.write(PCM, RATE)
    assert not slept
    sink.close(whole=False)


def test_who_is_far_ahead_sleeps_a_frame_a_frame(programs, slept):
    programs("aplay")
    sink = player.open_player(BARE)
    for _ in range(200):  # 16 s at once
        sink.write(PCM, RATE)
    assert slept and slept[0] <= 0.08 and sink._limit_s < player.AHEAD_S + 1
    sink.close(whole=True)


AFPLAY = """
    with open(Path(here, "copy"), "ab") as copy:
        copy.write(Path(sys.argv[1]).read_bytes()[44:])
    with open(Path(here, "names"), "a") as names:
        names.write(sys.argv[1] + " ")
    while Path(here, "hold").exists():
        __import__("time").sleep(0.01)
"""
TONE = array("h", [round(8000 * math.sin(i / 10)) for i in range(RATE)]).tobytes()
STILL = bytes(RATE)  # half a second


def test_afplay_plays_the_first_sentence_while_the_next_is_made(programs, tmp_path):
    programs("afplay", AFPLAY)
    (tmp_path / "hold").touch()
    sink = player.open_player(replace(BARE, player="afplay"))
    for pcm in (TONE, STILL, TONE[: RATE // 2]):
        sink.write(pcm, RATE)
    (first,) = wait_for(tmp_path / "names").split()
    assert soon(lambda: len((tmp_path / "copy").read_bytes()) >= len(TONE))  # and no more is there yet to be played
    sink.write(TONE, RATE)
    (tmp_path / "hold").unlink()
    sink.close(whole=True)
    names = (tmp_path / "names").read_text().split()
    assert names[0] == first and len(names) in (2, 3) and not Path(first).parent.exists()
    heard = (tmp_path / "copy").read_bytes()
    assert len(TONE) * 2.5 < len(heard) <= len(TONE) * 2.5 + len(STILL)  # of the pause, what afplay takes to start


def test_an_afplay_that_fails_is_one_line(programs):
    programs("afplay", "sys.exit(1)")
    with pytest.raises(Failure, match="afplay failed with code 1; use -o FILE, or another --player") as caught:
        play(TONE)
    assert caught.value.exit_code == errors.IO_ERROR


def test_without_a_place_for_its_files_nothing_is_played_and_that_is_told(programs, tmp_path, monkeypatch):
    programs("afplay")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(Failure) as caught:
        play(PCM)
    assert caught.value.exit_code == errors.IO_ERROR and "No such file" in str(caught.value)


def test_a_fault_of_the_thread_that_plays_is_raised_where_it_is_seen(programs, monkeypatch):
    programs("aplay")
    monkeypatch.setattr(Program, "write", lambda self, pcm: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        play(PCM)


def test_afplay_is_not_started_when_the_speech_was_stopped(programs, tmp_path):
    programs("afplay", 'Path(here, "started").touch()')
    sink = player.open_player()
    sink.write(PCM, RATE)
    sink.close(whole=False)
    sink.close(whole=False)
    assert not (tmp_path / "started").exists()


def test_no_player_is_one_line_with_the_cure(programs):
    with pytest.raises(Failure) as caught:
        player.open_player()
    assert caught.value.exit_code == errors.NO_PROGRAM
    line = str(caught.value)
    assert "no audio player found" in line
    assert "install ffmpeg" in line
    assert "-o" in line


def test_no_sound_starts_no_program(programs, tmp_path):
    programs("aplay", 'Path(here, "started").touch()')
    play()
    assert not (tmp_path / "started").exists()


@pytest.mark.parametrize(
    "body",
    [
        'sys.exit("no card\\naplay: device is busy")',
        'sys.stdin.buffer.read(3840); sys.exit("no card\\naplay: device is busy")',
        'sys.stdin.buffer.read(); sys.exit("no card\\naplay: device is busy")',
    ],
    ids=["at once", "mid-way", "at the end"],
)
def test_a_player_that_fails_is_one_line_with_its_last_words(programs, body):
    programs("aplay", body)
    with pytest.raises(Failure) as caught:
        play(*[PCM] * 100)
    assert caught.value.exit_code == errors.IO_ERROR
    assert str(caught.value) == "aplay stopped playing: aplay: device is busy"


def test_a_player_that_dies_while_the_last_bytes_go_out_is_one_line(programs, tmp_path):
    programs("aplay", 'Path(here, "up").touch(); sys.exit(3)')
    sink = player.open_player()
    try:
        sink.write(PCM, RATE)
        wait_for(tmp_path / "up")
        sink.close(whole=True)
    except Failure as failure:
        assert failure.exit_code == errors.IO_ERROR
        assert str(failure) == "aplay stopped playing: no reason given"
    else:
        raise AssertionError("it was taken for played")
    sink.close(whole=False)  # as Outputs.open does


def test_a_player_that_was_waited_for_is_not_killed_by_its_number(programs, tmp_path, monkeypatch):
    """By then it may be another's."""
    killed = []
    monkeypatch.setattr(os, "killpg", lambda number, _signal: killed.append(number))
    programs("aplay", "sys.stdin.buffer.read(); sys.exit(1)")
    sink = player.open_player()
    sink.write(PCM, RATE)
    with pytest.raises(Failure):
        sink.close(whole=True)
    sink.close(whole=False)
    assert killed == []


def test_a_talkative_player_is_not_stopped_by_its_own_words(programs, tmp_path):
    programs("aplay", 'sys.stderr.write("underrun!!! " * 100_000); sys.stderr.flush()' + textwrap.dedent(RECORD))
    play(PCM, PCM)
    assert (tmp_path / "bytes").read_bytes() == PCM * 2


def test_a_program_that_cannot_be_run_is_one_line(programs, tmp_path):
    programs("aplay")
    (tmp_path / "bin" / "aplay").write_bytes(b"\x7fELF not really")
    with pytest.raises(Failure) as caught:
        play(PCM)
    assert caught.value.exit_code == errors.NO_PROGRAM
    assert str(tmp_path / "bin" / "aplay") in str(caught.value)


def test_interrupted_the_player_and_all_it_started_are_dead_even_if_they_ignore_sigterm(programs, tmp_path):
    programs("aplay", STUBBORN)
    sink = player.open_player()
    sink.write(PCM, RATE)
    pids = [int(pid) for pid in wait_for(tmp_path / "pids").split()]
    sink.close(whole=False)
    assert all(gone(pid) for pid in pids)
    sink.close(whole=False)


@pytest.mark.parametrize("name", ["aplay", "afplay"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_rest_plays_kills_the_player(programs, tmp_path, name, number):
    """The daemon is done long before the sound is: most Ctrl-C come here."""
    from misoctl.cli import _stop_on_signals
    from misoctl.outputs import Outputs
    from misoctl.playing.options import Play

    programs(name, STUBBORN)
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)}
    _stop_on_signals()
    code = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
    code += f"os.kill({os.getpid()}, {number:d})"
    subprocess.Popen([sys.executable, "-c", code, tmp_path / "pids"])
    try:
        with pytest.raises(Stopped) as caught, Outputs().open(Play({"lead_in_ms": 0})) as sink:
            sink.write(PCM, RATE)
    finally:
        for n, handler in before.items():
            signal.signal(n, handler)
    assert caught.value.exit_code == 128 + number
    assert all(gone(int(pid)) for pid in wait_for(tmp_path / "pids").split())


@pytest.mark.parametrize("failure", ["OSError('PortAudio library not found')", "ImportError('no cffi')"])
def test_a_sounddevice_that_cannot_load_is_passed_over(programs, tmp_path, monkeypatch, failure):
    (tmp_path / "sounddevice.py").write_text(f"raise {failure}")
    monkeypatch.delitem(sys.modules, "sounddevice")
    monkeypatch.syspath_prepend(tmp_path)
    programs("aplay")
    play(bytes(3840))
    assert (tmp_path / "bytes").read_bytes() == bytes(3840)


SPEAKS = """if 1:
    import sys, time
    sys.modules["sounddevice"] = None
    from misoctl.player import open_player
    sink = open_player()
    for second in range(4):
        sink.write(b"\\0\\x20\\0\\xe0" * 12000 if second % 2 == 0 else bytes(48000), 24000)
    time.sleep(60)
"""


@pytest.mark.parametrize("name", [*PROGRAMS.values(), "afplay"])
def test_the_player_does_not_outlive_us_however_we_die(programs, tmp_path, name):
    """szmikler/playsound3#23: of the player and of what it began nothing is left, nor of its files."""
    programs(name, 'if "--help" in sys.argv: sys.exit(0)\n' + textwrap.dedent(STUBBORN))
    child = subprocess.Popen([sys.executable, "-c", SPEAKS], env=os.environ | {"TMPDIR": str(tmp_path)})
    pids = [int(pid) for pid in wait_for(tmp_path / "pids").split()]
    assert all(map(alive, pids))
    child.kill()
    child.wait()
    assert all(map(gone, pids))
    assert soon(lambda: not list(tmp_path.glob("miso-*")))


def test_a_player_that_goes_by_its_input_has_it_closed(programs, tmp_path):
    programs("aplay", 'Path(here, "up").touch()\n' + textwrap.dedent(RECORD) + 'Path(here, "over").touch()')
    child = subprocess.Popen([sys.executable, "-c", SPEAKS.replace("sink = open_player()", WITHOUT_WATCHER)])
    wait_for(tmp_path / "up")
    child.kill()
    child.wait()
    wait_for(tmp_path / "over")


WITHOUT_WATCHER = """
    import subprocess
    from misoctl.playing import children
    children.WATCH = "exit"
    sink = open_player()
"""


def test_when_all_was_heard_nothing_is_killed_and_nothing_is_left(programs, tmp_path):
    """What the player leaves running is its own: the watcher goes by itself once we are done."""
    programs("aplay")
    code = SPEAKS.replace("time.sleep(60)", "sink.close(whole=True)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60, check=True)
    assert not done.stdout and not done.stderr
    assert len((tmp_path / "bytes").read_bytes()) == 4 * 48000 + 2 * 50 * RATE // 1000


def test_standard_output_is_not_the_player_s_to_write_to(programs, tmp_path):
    for name in ("aplay", "afplay"):
        programs(name, 'print("hello"); sys.stdin.buffer.read()')
        code = "import sys; sys.modules['sounddevice'] = None\n"
        code += "from misoctl.player import open_player; s = open_player(); s.write(bytes(2), 24000); s.close(True)"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=True)
        assert child.stdout == b""
        (tmp_path / "bin" / name).unlink()
