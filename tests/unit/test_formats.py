"""Files and streams of each format: what is decoded from them is what was written."""

import io
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import soundfile

from misoctl.encode import ENCODED, HELD, EncodedStream, Encoder, Tail, _signals_held
from misoctl.formats import PLAIN, format_of, open_output
from misoctl.options import FORMATS
from protocol import errors
from protocol.errors import Failure

RATE, FRAME = 24_000, 1920
SUBTYPES = {"wav": "PCM_16"} | {name: subtype for name, (_, subtype) in ENCODED.items()}


def speech(seconds: float = 3.0) -> np.ndarray:
    """A voice-like tone of changing pitch, with pauses -> (n,) int16."""
    t = np.arange(int(seconds * RATE)) / RATE
    pitch = 140 + 30 * np.sin(2 * np.pi * 0.7 * t)
    sound = sum(np.sin(2 * np.pi * k * np.cumsum(pitch) / RATE) / k for k in range(1, 12))
    return (sound * (np.sin(2 * np.pi * 0.8 * t) > -0.7) * 5000).astype("<i2")


def write(sink, pcm: np.ndarray, whole: bool = True) -> None:
    for start in range(0, len(pcm), FRAME):
        sink.write(pcm[start : start + FRAME].tobytes(), RATE)
    sink.close(whole)


def likeness(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a.astype(float), b.astype(float))[0, 1])


def decoded(data: bytes, samples: int) -> tuple[np.ndarray, soundfile.SoundFile]:
    """libsndfile reads no FLAC of unknown length to its end: it is told how long this one is to be."""
    if data[:4] == b"fLaC":
        assert data[21] & 15 == 0 and data[22:26] == bytes(4)  # 36 bits of length: unknown
        data = data[:22] + samples.to_bytes(4, "big") + data[26:]
    sound = soundfile.SoundFile(io.BytesIO(data))
    return sound.read(-1 if data[:4] != b"RIFF" else samples, "int16"), sound


@pytest.mark.parametrize("kind", [*SUBTYPES])
@pytest.mark.parametrize("whole", [True, False])
def test_a_file_holds_what_was_written_however_it_ended(tmp_path, kind, whole):
    pcm, path = speech(), tmp_path / f"a.{kind}"
    write(open_output(str(path), kind), pcm, whole)
    back, rate = soundfile.read(path, dtype="int16")
    assert (rate, soundfile.info(path).subtype) == (RATE, SUBTYPES[kind])
    assert len(back) == len(pcm)
    assert np.array_equal(back, pcm) if kind in ("wav", "flac") else likeness(back, pcm) > 0.98
    assert stat.S_IMODE(path.stat().st_mode) & 0o600 == 0o600 and os.listdir(tmp_path) == [path.name]
    assert kind == "wav" or path.stat().st_size < pcm.nbytes / 1.5


@pytest.mark.parametrize("kind", [*SUBTYPES])
def test_a_stream_can_be_decoded_though_nothing_was_patched(tmp_path, kind):
    pcm, fifo = speech(), tmp_path / f"fifo.{kind}"
    os.mkfifo(fifo)
    with open(tmp_path / "read", "wb") as read:  # a pipe would hold 64 KB of it, and then all would wait
        reader = subprocess.Popen(["cat", fifo], stdout=read)
        write(open_output(str(fifo), kind), pcm)
        reader.wait(timeout=20)
    back, sound = decoded((tmp_path / "read").read_bytes(), len(pcm))
    assert (sound.samplerate, sound.subtype) == (RATE, SUBTYPES[kind])
    spare = 2400 if kind == "mp3" else 0  # the encoder's delay, which only a patched head could tell
    assert 0 <= len(back) - len(pcm) <= spare
    if kind in ("wav", "flac"):
        assert np.array_equal(back, pcm)
    else:
        few = pcm[:12_000]
        assert max(likeness(back[shift : shift + 12_000], few) for shift in range(len(back) - len(pcm) + 1)) > 0.98


@pytest.mark.parametrize("kind", ENCODED)
def test_a_stream_comes_while_it_is_written(kind):
    received, given = os.pipe()
    sink = EncodedStream(os.fdopen(given, "wb"), "a pipe", False, kind=kind)
    os.set_blocking(received, False)
    pcm, sizes = speech(), []
    for start in range(0, len(pcm), FRAME):
        sink.write(pcm[start : start + FRAME].tobytes(), RATE)
        try:
            sizes.append(len(os.read(received, 1 << 20)))
        except BlockingIOError:
            sizes.append(0)
    half = len(sizes) // 2
    assert sum(sizes[:half]) > 500 and sum(sizes[half:]) > 500
    os.close(received)
    with pytest.raises(Failure) as caught:
        for _ in range(60):  # until enough is there to be sent
            sink.write(pcm.tobytes(), RATE)
    assert caught.value.exit_code == errors.BROKEN_PIPE
    sink.close(whole=False)


@pytest.mark.parametrize("kind", ENCODED)
def test_a_file_without_a_sample_is_not_made(tmp_path, kind):
    open_output(str(tmp_path / f"a.{kind}"), kind).close(whole=True)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("kind", ENCODED)
def test_a_full_disk_is_one_line_and_leaves_nothing(tmp_path, kind):
    """A limit on the size of files stands for the disk."""
    code = f"""if 1:
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        from misoctl.formats import open_output
        from protocol.errors import Failure
        sink = open_output("a.{kind}", "{kind}")
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        noise = __import__("random").Random(1).randbytes(48000)
        try:
            for _ in range(60):
                sink.write(noise, 24000)
            sink.close(True)
        except Failure as failure:
            sink.close(False)
            print(failure.exit_code, failure)
    """
    environ = os.environ | {"PYTHONPATH": str(Path(errors.__file__).parents[1])}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout.startswith(f"{errors.IO_ERROR} writing a.{kind}: ") and done.stderr == ""
    assert done.stdout.count("\n") == 1 and os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", ["file", "tail"])
def test_a_signal_waits_while_the_encoder_works(tmp_path, target):
    """Raised in what C called it would be lost, and the handle, freed, be closed once more."""
    seen, pcm = [], speech(1).tobytes()
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append(1))
    try:
        encoder = Encoder(Tail() if target == "tail" else os.open(tmp_path / "a", os.O_CREAT | os.O_RDWR), "flac", RATE)
        write = encoder._sound.buffer_write
        encoder._sound.buffer_write = lambda *arguments: killed(write, arguments, seen)
        encoder.write(pcm)
        assert seen == [1]
    finally:
        signal.signal(signal.SIGTERM, before)
    encoder.close()
    encoder.close()


def killed(write, arguments, seen: list) -> None:
    os.kill(os.getpid(), signal.SIGTERM)
    write(*arguments)
    assert not seen


def test_of_what_waited_for_the_encoder_ctrl_c_goes_before_the_floor_s_word():
    seen = []
    handlers = {number: signal.signal(number, lambda number, _frame: seen.append(number)) for number in HELD}
    try:
        with _signals_held():
            for number in reversed(HELD):
                signal.raise_signal(number)
            assert not seen
        assert seen == list(HELD) and seen[-1] == signal.SIGUSR1
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)


NAMED = [("-", "wav"), ("a", "wav"), ("/dev/null", "wav"), ("a.WAV", "wav"), ("a.wave", "wav"), (".flac", "wav")]
NAMED += [("x.y/a.Mp3", "mp3"), ("a.oga", "ogg"), ("a.b.opus", "opus"), ("a.pcm", "raw")]


@pytest.mark.parametrize(("name", "kind"), NAMED)
def test_the_format_is_by_the_ending(name, kind):
    assert format_of(name) == kind


def test_every_format_is_offered():
    assert {*PLAIN, *ENCODED} == set(FORMATS)


def test_in_a_thread_no_signal_is_touched():
    """Only the main thread may, and there alone are they raised. HTTP's threads encode, too."""
    pcm, made = speech(1), []
    thread = threading.Thread(target=lambda: made.append(Encoder(Tail(), "opus", RATE).write(pcm.tobytes())))
    thread.start()
    thread.join()
    assert made == [None]


def test_opus_in_a_pipe_leaves_a_page_a_frame_and_in_a_file_is_smaller(tmp_path):
    pcm, out = speech(), io.BytesIO()
    out.close = lambda: None
    write(EncodedStream(out, "a pipe", False, kind="opus"), pcm)
    write(open_output(str(tmp_path / "a.opus"), "opus"), pcm)
    pages = out.getvalue().count(b"OggS")
    assert pages >= 2 + len(pcm) // FRAME
    assert (tmp_path / "a.opus").read_bytes().count(b"OggS") < pages / 4
    assert (tmp_path / "a.opus").stat().st_size < len(out.getvalue())
