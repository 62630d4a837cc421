"""Where PCM goes: a WAV that is whole or not there, a stream with a header that needs no seek."""

import io
import os
import stat
import subprocess
import sys
import wave
from pathlib import Path

import pytest

from misoctl.sink import UNKNOWN, Stream, WavFile, open_output, wav_header
from protocol import errors
from protocol.errors import Failure

PCM = bytes(range(256)) * 15  # 1,920 samples
RATE = 24000


def wav_of(pcm: bytes) -> bytes:
    with io.BytesIO() as file:
        with wave.open(file, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(RATE)
            out.writeframes(pcm)
        return file.getvalue()


def in_child(code: str, *arguments, **options) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, timeout=30, check=False, **options
    )


@pytest.mark.parametrize("rate", [8000, 24000, 48000])
@pytest.mark.parametrize("size", [0, 2, 3840])
def test_the_header_is_what_the_wave_module_writes(rate, size):
    with io.BytesIO() as file:
        with wave.open(file, "wb") as out:
            out.setnchannels(1)
            out.setsampwidth(2)
            out.setframerate(rate)
            out.writeframes(bytes(size))
        assert wav_header(rate, size) + bytes(size) == file.getvalue()


def test_a_header_of_unknown_size_says_so_in_both_places():
    header = wav_header(RATE, None)
    known = bytearray(wav_header(RATE, 0))
    known[4:8] = known[40:44] = UNKNOWN.to_bytes(4, "little")
    assert header == known


def test_a_file_is_written_beside_the_target_and_renamed_when_whole(tmp_path):
    target = tmp_path / "out.wav"
    sink = WavFile(target)
    sink.write(PCM, RATE)
    assert not target.exists()
    assert len(list(tmp_path.iterdir())) == 1
    sink.write(PCM, RATE)
    sink.close(whole=True)
    assert target.read_bytes() == wav_of(PCM * 2)
    assert list(tmp_path.iterdir()) == [target]


def test_a_file_closed_early_keeps_the_speech_so_far_with_true_sizes(tmp_path):
    sink = WavFile(tmp_path / "out.wav")
    sink.write(PCM, RATE)
    sink.close(whole=False)
    sink.close(whole=False)
    assert (tmp_path / "out.wav").read_bytes() == wav_of(PCM)


@pytest.mark.parametrize("whole", [True, False])
def test_no_samples_leave_no_file_and_an_existing_one_as_it_was(tmp_path, whole):
    (tmp_path / "old.wav").write_text("old")
    for name in ("new.wav", "old.wav"):
        WavFile(tmp_path / name).close(whole)
    assert [p.name for p in tmp_path.iterdir()] == ["old.wav"]
    assert (tmp_path / "old.wav").read_text() == "old"


@pytest.mark.parametrize("frames_that_fit", [0, 3])
def test_a_full_disk_leaves_the_existing_file_and_nothing_beside_it(tmp_path, frames_that_fit):
    code = """if 1:
        import resource, signal, sys
        from pathlib import Path
        from protocol.errors import Failure
        from misoctl.sink import WavFile
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        limit = 3840 * int(sys.argv[2]) + 20
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
        sink = WavFile(Path(sys.argv[1]))
        try:
            for _ in range(10):
                sink.write(bytes(3840), 24000)
        except Failure as failure:
            sink.close(whole=False)
            print(failure.exit_code, failure)
    """
    target = tmp_path / "out.wav"
    target.write_text("old")
    child = in_child(code, target, frames_that_fit)
    assert child.stdout.decode() == f"{errors.IO_ERROR} writing {target}: File too large; free some space\n"
    assert child.stderr == b""
    assert [p.name for p in tmp_path.iterdir()] == ["out.wav"]
    assert target.read_text() == "old"


@pytest.mark.parametrize("umask", [0o022, 0o077, 0o002])
def test_the_permissions_are_those_of_any_new_file(tmp_path, umask):
    before = os.umask(umask)
    try:
        sink = WavFile(tmp_path / "out.wav")
        sink.write(PCM, RATE)
        sink.close(whole=True)
        assert os.umask(umask) == umask
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "out.wav").stat().st_mode) == 0o666 & ~umask


def test_a_link_is_written_through_and_stays_a_link(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "link.wav").symlink_to("real/out.wav")
    for pcm in (PCM, PCM * 2):
        sink = open_output(str(tmp_path / "link.wav"), raw=False)
        sink.write(pcm, RATE)
        sink.close(whole=True)
        assert (tmp_path / "link.wav").is_symlink()
        assert (tmp_path / "real" / "out.wav").read_bytes() == wav_of(pcm)


def test_a_name_of_255_bytes_is_written(tmp_path):
    target = tmp_path / ("n" * 251 + ".wav")
    sink = WavFile(target)
    sink.write(PCM, RATE)
    sink.close(whole=True)
    assert target.read_bytes() == wav_of(PCM)


def cannot_create(path) -> str:
    with pytest.raises(Failure) as caught:
        open_output(str(path), raw=False)
    assert caught.value.exit_code == errors.CANT_CREATE
    assert str(caught.value).startswith(f"cannot write {path}: ")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_target_that_cannot_be_is_refused_before_anything_is_said(tmp_path):
    assert "No such file" in cannot_create(tmp_path / "missing" / "out.wav")
    assert "is a directory" in cannot_create(tmp_path)
    (tmp_path / "file").touch()
    assert "Not a directory" in cannot_create(tmp_path / "file" / "out.wav")
    assert "too long" in cannot_create(tmp_path / ("n" * 256))
    (tmp_path / "loop").symlink_to("loop")
    assert "loop" in cannot_create(tmp_path / "loop").lower()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["file", "loop"]


def test_a_directory_that_takes_no_file_is_refused():
    """/proc/self takes none, not even of root."""
    if sys.platform == "linux":
        cannot_create("/proc/self/out.wav")


def test_a_write_protected_file_or_directory_is_refused_to_a_user(tmp_path):
    """Root may write anywhere: a child that gave its rights away tries."""
    if os.getuid():
        pytest.skip("needs root to become another user in a directory of its own")
    code = """if 1:
        import os, sys
        import tempfile  # while Python's own files may be read
        from protocol.errors import Failure
        from misoctl.sink import open_output
        os.setgroups([]); os.setgid(65534); os.setuid(65534)
        try:
            open_output(sys.argv[1], raw=False)
        except Failure as failure:
            print(failure.exit_code)
    """
    import shutil
    import tempfile

    top = Path(tempfile.mkdtemp(dir="/tmp"))
    try:
        top.chmod(0o777)
        (top / "shut").mkdir(mode=0o755)
        (top / "protected.wav").write_text("old")
        (top / "protected.wav").chmod(0o444)
        for name in ("shut/out.wav", "protected.wav"):
            assert in_child(code, top / name).stdout == b"73\n", name
        assert (top / "protected.wav").read_text() == "old"
    finally:
        shutil.rmtree(top)


@pytest.mark.parametrize(("raw", "header"), [(False, wav_header(RATE, None)), (True, b"")])
def test_a_fifo_gets_a_stream_and_is_still_a_fifo(tmp_path, raw, header):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    reader = subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE)
    sink = open_output(str(fifo), raw)
    sink.write(PCM, RATE)
    sink.write(PCM, RATE)
    sink.close(whole=True)
    assert reader.communicate(timeout=10)[0] == header + PCM * 2
    assert stat.S_ISFIFO(fifo.stat().st_mode)


def test_a_device_is_written_to_and_not_replaced():
    sink = open_output("/dev/null", raw=False)
    sink.write(PCM, RATE)
    sink.close(whole=True)
    assert isinstance(sink, Stream)
    assert stat.S_ISCHR(Path("/dev/null").stat().st_mode)


STREAM = """if 1:
    import os, signal, sys
    from protocol.errors import Failure
    from misoctl.sink import open_output
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    if "closed" in sys.argv: os.close(1); sys.stdout = None
    try:
        sink = open_output("-", raw="raw" in sys.argv)
        for _ in range(100):
            sink.write(bytes(range(256)) * 15, 24000)
        sink.close(whole=True)
    except Failure as failure:
        print(failure, file=sys.stderr)
        sys.exit(failure.exit_code)
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_standard_output_gets_one_header_and_every_sample(unbuffered):
    environ = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    assert in_child(STREAM, env=environ).stdout == wav_header(RATE, None) + PCM * 100
    assert in_child(STREAM, "raw", env=environ).stdout == PCM * 100


def test_a_reader_that_goes_away_ends_it_with_141_and_no_word():
    child = subprocess.Popen([sys.executable, "-c", STREAM], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.close()
    assert child.stderr.read() == b"\n"  # an empty line of our own print: the failure has no message
    assert child.wait(timeout=10) == errors.BROKEN_PIPE


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
def test_a_full_device_as_standard_output_is_one_line():
    with open("/dev/full", "wb") as full:
        command = [sys.executable, "-c", STREAM]
        child = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, timeout=10, check=False)
    assert child.stderr == b"writing to standard output: No space left on device\n"
    assert child.returncode == errors.IO_ERROR


def test_a_closed_standard_output_is_one_line():
    child = in_child(STREAM, "closed")
    assert child.stderr.startswith(b"standard output is closed")
    assert child.returncode == errors.CANT_CREATE
