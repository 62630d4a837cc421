"""Player programs, played by scripts of ours that record what they are given."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import wave
from pathlib import Path

import pytest

from misoctl import player
from misoctl.cli import Stopped
from misoctl.sink import wav_header
from protocol import errors
from protocol.errors import Failure

PCM = bytes(range(256)) * 15
RATE = 24000
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


def play(*frames: bytes) -> None:
    sink = player.open_player()
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
    for _ in range(1000):
        if not alive(pid):
            return True
        time.sleep(0.01)
    return False


@pytest.mark.parametrize(
    ("name", "arguments", "header"),
    [
        ("ffplay", '["-nodisp", "-autoexit", "-loglevel", "error", "-i", "-"]', wav_header(RATE, None)),
        ("play", '["-q", "-t", "raw", "-r", "24000", "-e", "signed-integer", "-b", "16", "-c", "1", "-"]', b""),
        ("aplay", '["-q", "-t", "raw", "-f", "S16_LE", "-r", "24000", "-c", "1", "-"]', b""),
    ],
)
def test_a_program_gets_the_right_arguments_and_every_byte(programs, tmp_path, name, arguments, header):
    programs(name)
    play(PCM, PCM, PCM)
    assert (tmp_path / "arguments").read_text() == arguments
    assert (tmp_path / "bytes").read_bytes() == header + PCM * 3


def test_afplay_gets_a_whole_wav_in_a_file_that_is_gone_afterwards(programs, tmp_path):
    programs(
        "afplay",
        'Path(here, "copy").write_bytes(Path(sys.argv[1]).read_bytes())\nPath(here, "name").write_text(sys.argv[1])',
    )
    play(PCM, PCM)
    with wave.open(str(tmp_path / "copy")) as heard:
        assert (heard.getframerate(), heard.getnchannels(), heard.getsampwidth()) == (RATE, 1, 2)
        assert heard.readframes(-1) == PCM * 2
    assert not Path((tmp_path / "name").read_text()).parent.exists()


def test_afplay_is_not_started_when_the_speech_was_stopped(programs, tmp_path):
    programs("afplay", 'Path(here, "started").touch()')
    sink = player.open_player()
    sink.write(PCM, RATE)
    sink.close(whole=False)
    sink.close(whole=False)
    assert not (tmp_path / "started").exists()


def test_ffplay_is_taken_first_then_sox_afplay_aplay(programs):
    for name in ("aplay", "afplay", "play", "ffplay"):
        programs(name)
        sink = player.open_player()
        assert getattr(sink, "_name", "afplay") == name


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
        play(*[PCM] * 200)
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

    programs(name, STUBBORN)
    before = {n: signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    _stop_on_signals()
    code = "import os, sys, time\nwhile not os.path.exists(sys.argv[1]): time.sleep(0.01)\n"
    code += f"os.kill({os.getpid()}, {number:d})"
    subprocess.Popen([sys.executable, "-c", code, tmp_path / "pids"])
    try:
        with pytest.raises(Stopped) as caught, Outputs().open() as sink:
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


def test_when_we_are_killed_the_player_s_input_ends(programs, tmp_path):
    programs(
        "aplay",
        'Path(here, "up").touch()\n' + textwrap.dedent(RECORD) + 'Path(here, "over").touch()',
    )
    code = """if 1:
        import sys, time
        sys.modules["sounddevice"] = None
        from misoctl.player import open_player
        sink = open_player()
        sink.write(bytes(3840), 24000)
        time.sleep(60)
    """
    child = subprocess.Popen([sys.executable, "-c", code])
    wait_for(tmp_path / "up")
    child.kill()
    child.wait()
    wait_for(tmp_path / "over")
    assert (tmp_path / "bytes").read_bytes() == bytes(3840)


def test_standard_output_is_not_the_player_s_to_write_to(programs, tmp_path):
    for name in ("aplay", "afplay"):
        programs(name, 'print("hello"); sys.stdin.buffer.read()')
        code = "import sys; sys.modules['sounddevice'] = None\n"
        code += "from misoctl.player import open_player; s = open_player(); s.write(bytes(2), 24000); s.close(True)"
        child = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=20, check=True)
        assert child.stdout == b""
        (tmp_path / "bin" / name).unlink()
