"""A recording in any form people have becomes mono 24 kHz of 16 bits, or one line with exit 65."""

import hashlib
import os
import stat
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile

from misoctl import voicefile
from misoctl.resample import resample
from protocol import errors
from protocol.errors import Failure

FIXTURES = Path(__file__).parent / "fixtures"
WAVS = FIXTURES / "wavs"
EXPECTED = np.load(WAVS / "expected_24k_mono.npz")
SHORT = "a voice wants 5 to 15 s"


def samples(path: Path) -> np.ndarray:
    return np.frombuffer(voicefile.read_clip(str(path)).pcm, "<i2").astype(float)


def refused(path: Path | str, code: int = errors.BAD_DATA) -> str:
    with pytest.raises(Failure) as caught:
        voicefile.read_clip(str(path))
    assert caught.value.exit_code == code
    line = str(caught.value)
    assert line.count("\n") == 0 and (str(path) in line or path == "-")
    return line


def tone(seconds: float, rate_hz: int = 24_000, channels: int = 1, peak: float = 0.5) -> np.ndarray:
    """(n, channels) float: a tone that differs from channel to channel."""
    t = np.arange(round(seconds * rate_hz)) / rate_hz
    return np.stack([peak * np.sin(2 * np.pi * (220 + 55 * c) * t) for c in range(channels)], axis=1)


@pytest.fixture
def write(tmp_path):
    def write(sound: np.ndarray, rate_hz: int = 24_000, name: str = "clip.wav", **options) -> Path:
        soundfile.write(tmp_path / name, sound, rate_hz, **options)
        return tmp_path / name

    return write


# ---- the filter

KEPT = 11  # each so many samples the golden has one: prime to 80, 147 and the rest, so each phase of the filter is met


@pytest.mark.parametrize("rate_hz", [44_100, 48_000, 16_000, 22_050, 96_000, 8_000, 32_000])
def test_the_filter_is_torchaudios(rate_hz):
    cases = np.load(FIXTURES / "resample" / "resample.npz")
    sound = cases[f"in_{rate_hz}"] / 32768
    out, wanted = resample(sound, rate_hz, 24_000), cases[f"out24k_from_{rate_hz}"]
    assert len(out) == -(-len(sound) * 24_000 // rate_hz) and np.abs(out[::KEPT] - wanted).max() < 5e-5


def test_the_filter_goes_up_as_it_goes_down():
    cases = np.load(FIXTURES / "resample" / "resample.npz")
    down = resample(cases["in_44100"] / 32768, 44_100, 24_000)
    out, wanted = resample(down, 24_000, 44_100), cases["up44100_from_24k"]
    assert len(out) == -(-len(down) * 147 // 80) and np.abs(out[::KEPT] - wanted).max() < 5e-5


def test_the_filter_takes_rates_that_have_nothing_in_common():
    noise = np.random.default_rng(0).normal(size=4001)
    out, near = resample(noise, 191_999, 24_000), resample(noise, 192_000, 24_000)
    assert out.shape == near.shape == (501,) and np.abs(out - near)[:40].max() < 0.01


@pytest.mark.parametrize("length", [0, 1, 2, 5])
def test_the_filter_takes_less_than_its_own_length(length):
    assert resample(np.ones(length), 44_100, 24_000).shape == (-(-length * 80 // 147),)


# ---- the fixtures: ok_, bad_, edge_


@pytest.mark.parametrize("path", sorted(WAVS.glob("ok_*")), ids=lambda p: p.name)
def test_an_ok_file_is_its_mono_24_khz_copy(path):
    mine, lossless = samples(path), path.suffix in (".wav", ".flac")
    wanted = EXPECTED[{"ok_flac": "ok_flac_named"}.get(path.stem, path.stem if lossless else "ok_24k_mono_pcm16")]
    wanted = wanted / max(1, np.abs(wanted).max()) * 32768  # one goes to 1.5: it is turned down, not cut
    head, wanted = mine[: len(wanted)], np.minimum(np.round(wanted), 32767)  # some expected ones are heads only
    assert len(mine) in (len(wanted), 6000, 2400)
    if not lossless:
        assert (head - wanted).std() < 0.2 * wanted.std()
    elif soundfile.info(path).samplerate == 24_000 and "above_1" not in path.name:
        assert np.array_equal(head, wanted)
    else:
        assert np.abs(head - wanted).max() <= 1


@pytest.mark.parametrize("path", sorted(WAVS.glob("bad_*")), ids=lambda p: p.name)
def test_a_bad_file_is_one_line(path):
    refused(path)


PLAIN = (WAVS / "ok_24k_mono_pcm16.wav").read_bytes()


def test_a_file_that_promises_a_gigabyte_is_not_waited_for(tmp_path):
    path = tmp_path / "declares_1GB.wav"
    path.write_bytes(PLAIN[:40] + (10**9).to_bytes(4, "little") + PLAIN[44:])
    assert "cut short: 12,000 bytes of sound are there of 1,000,000,000" in refused(path)


@pytest.mark.parametrize("length", [1, 4, 12, 20, 36, 43])
def test_a_header_that_was_cut_off_is_one_line(tmp_path, length):
    path = tmp_path / "truncated_header.wav"
    path.write_bytes(PLAIN[:length])
    refused(path)


# Its own peak: a child's ru_maxrss on Linux begins at its parent's.
PEAK = """
import pathlib, re, resource, sys
from misoctl import recording
recording.main()
status = pathlib.Path("/proc/self/status")
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
peak = 1024 * int(re.search(r"VmHWM:\\s*(\\d+) kB", status.read_text())[1]) if status.exists() else peak
print(peak, file=sys.stderr)
"""


def test_no_bad_file_takes_a_quarter_of_a_gigabyte():
    for path in WAVS.glob("bad_*"):
        with path.open("rb") as file:
            child = subprocess.run([sys.executable, "-c", PEAK], stdin=file, capture_output=True, text=True, check=True)
        assert child.stdout.startswith('{"refused": "') and child.stdout.endswith('"}\n')
        assert 1e6 < int(child.stderr.split()[-1]) < 256e6


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("edge_0_samples", "no sound"),
        ("edge_1_sample", "silent"),
        ("edge_0s05", "0.050 s"),
        ("edge_1919_samples", "0.080 s"),
        ("edge_silence_1s", "silent"),
        ("edge_clipped_square", "100% of it is clipped"),
    ],
)
def test_an_edge_that_is_no_voice_is_refused(name, why):
    assert why in refused(WAVS / f"{name}.wav")


def test_a_dc_offset_is_kept():
    assert np.array_equal(samples(WAVS / "edge_dc_offset.wav"), np.round(EXPECTED["edge_dc_offset"] * 32768))


def test_a_dc_offset_alone_is_silence(write):
    assert "silent" in refused(write(np.full(6000, 0.5)))


def test_sizes_of_a_stream_stand_for_not_known(tmp_path):
    wanted = samples(WAVS / "ok_24k_mono_pcm16.wav")
    assert np.array_equal(samples(WAVS / "edge_streaming_sizes_ffffffff.wav"), wanted)
    data = bytearray((WAVS / "edge_streaming_sizes_ffffffff.wav").read_bytes())
    for size in (0x7FFFFFFF, 0x80000000, 0x7FFFF000):
        data[40:44] = size.to_bytes(4, "little")
        (tmp_path / "stream.wav").write_bytes(data)
        assert np.array_equal(samples(tmp_path / "stream.wav"), wanted)


# ---- containers and depths that the fixtures do not have


@pytest.mark.parametrize(
    ("kind", "subtype", "endian"),
    [
        ("WAV", "PCM_16", "BIG"),
        ("WAV", "DOUBLE", None),
        ("WAV", "ALAW", None),
        ("RF64", "PCM_16", None),
        ("RF64", "PCM_24", None),
        ("FLAC", "PCM_24", None),
        ("AIFF", "PCM_16", None),
        ("CAF", "PCM_16", None),
    ],
)
def test_every_other_form_is_the_same_sound(write, kind, subtype, endian):
    path = write(tone(1.5), name="clip.bin", format=kind, subtype=subtype, endian=endian)
    assert np.abs(samples(path) - np.round(tone(1.5)[:, 0] * 32768)).max() <= (600 if subtype == "ALAW" else 1)


@pytest.mark.parametrize("kind", ["RF64", "FLAC"])
def test_a_file_that_was_cut_short_is_refused(write, tmp_path, kind):
    data = write(np.random.default_rng(0).uniform(-0.5, 0.5, 48_000), name="clip.bin", format=kind).read_bytes()
    (tmp_path / "half.bin").write_bytes(data[: len(data) // 2])
    line = refused(tmp_path / "half.bin")
    assert "cut short" in line or "lost sync" in line


def test_channels_are_averaged(write):
    sound = tone(1.5, channels=6)
    assert np.abs(samples(write(sound)) - sound.mean(axis=1) * 32768).max() < 2


def test_what_is_cut_out_of_the_middle_of_words_stays(write):
    """Silence goes from both ends only, all but a tenth of a second."""
    quiet = np.zeros((48_000, 1))
    mine = samples(write(np.concatenate([quiet, tone(1), quiet, tone(1), quiet])))
    assert abs(len(mine) - 24_000 * (1 + 2 + 1 + 0.2)) < 300
    assert np.abs(mine[:2000]).max() == 0 and np.abs(mine[2500:4000]).max() > 8000


def test_noise_under_the_speech_is_silence_where_the_speech_is_not(write):
    noise = np.random.default_rng(0).normal(0, 10 ** (-70 / 20), (96_000, 1))
    noise[30_000:60_000] += tone(1.25)
    assert abs(len(samples(write(noise))) - 30_000 - 4_800) < 300


# ---- too much, too little, too loud


def test_thirty_seconds_are_taken_whole(write):
    clip = voicefile.read_clip(str(write(tone(30.0, 8_000), 8_000)))
    assert (len(clip.pcm), clip.seconds, clip.warnings) == (1_440_000, 30.0, [])


def test_thirty_seconds_and_silence_are_taken(write):
    assert (
        voicefile.read_clip(str(write(np.concatenate([tone(29.5, 8_000), np.zeros((24_000, 1))]), 8_000))).seconds < 30
    )


@pytest.mark.parametrize("seconds", [30.5, 60])
def test_longer_is_refused_with_how_to_cut_it(write, seconds):
    line = refused(write(tone(seconds, 8_000), 8_000))
    assert "over 30 s" in line and "ffmpeg" in line


def test_shorter_than_a_second_is_told(write):
    (warning,) = voicefile.read_clip(str(write(tone(0.5)))).warnings
    assert SHORT in warning and "0.50 s" in warning


@pytest.mark.parametrize(
    ("rate_hz", "channels", "why"), [(7_999, 1, "7,999 Hz"), (192_001, 1, "Hz"), (24_000, 9, "9 ch")]
)
def test_rates_and_channels_no_recording_has_are_refused(write, rate_hz, channels, why):
    assert why in refused(write(tone(1, rate_hz, channels), rate_hz))


@pytest.mark.parametrize("rate_hz", [8_000, 191_999, 192_000])
def test_rates_at_the_edge_are_taken(write, rate_hz):
    assert len(samples(write(tone(1, rate_hz), rate_hz))) == 24_000


@pytest.mark.parametrize(
    ("clipped_s", "said"), [(0.0, ""), (0.2, "2.8% of it is clipped, and"), (1.0, "14% of it is clipped, over 5%")]
)
def test_clipping_is_told_from_half_a_percent_and_refused_from_five(write, clipped_s, said):
    """A tone that touches full scale and is whole, but for its first part, which went a tenth over."""
    sound = tone(2, peak=1.0)
    sound[: round(clipped_s * 24_000)] *= 1.1
    path = write(np.clip(sound, -1, 1), subtype="PCM_16")
    if "over" in said:
        assert said in refused(path)
    else:
        assert [said in w for w in voicefile.read_clip(str(path)).warnings] == [True] * bool(said)


def test_floats_over_full_scale_are_turned_down(write):
    mine = samples(write(tone(1.5, peak=1.8), subtype="FLOAT"))
    assert np.abs(mine - tone(1.5, peak=1.0)[:, 0] * 32768).max() < 2


# ---- where it comes from


def test_the_digest_is_of_the_files_bytes_and_nothing_is_kept_by_its_path(write):
    first = voicefile.read_clip(str(path := write(tone(1))))
    assert first.digest == hashlib.sha256(path.read_bytes()).hexdigest()
    second = voicefile.read_clip(str(write(tone(1.25))))
    assert first.digest != second.digest and first.pcm != second.pcm


def test_a_pipe_is_read_to_its_end(write, tmp_path):
    path, pipe = write(tone(1)), tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cp", path, pipe]) as copy:
        clip = voicefile.read_clip(str(pipe))
        assert copy.wait() == 0
    assert clip == voicefile.read_clip(str(path)) and stat.S_ISFIFO(pipe.stat().st_mode)


def test_a_name_may_hold_anything(write, tmp_path):
    odd = tmp_path / "-v `x` \udcff ä.wav"
    write(tone(1)).rename(odd)
    assert voicefile.read_clip(str(odd)).seconds == 1.0


def test_what_cannot_be_read_is_exit_66(tmp_path):
    assert "No such file" in refused(tmp_path / "none.wav", errors.NO_INPUT)
    assert "directory" in refused(tmp_path, errors.NO_INPUT)


def test_more_bytes_than_thirty_seconds_have_are_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(voicefile, "MAX_FILE_BYTES", 1000)
    (tmp_path / "big.wav").write_bytes(bytes(1001))
    assert "more than 30 s" in refused(tmp_path / "big.wav")
    assert "more than 30 s" in refused("/dev/zero")


# ---- the child


def scripted(tmp_path: Path, monkeypatch, lines: str) -> None:
    """A Python that is this shell script."""
    (tmp_path / "python").write_text(f"#!/bin/sh\n{lines}\n")
    (tmp_path / "python").chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        ("kill -SEGV $$", "signal 11"),
        ("echo no library >&2; exit 3", "failed (3): no lib"),
        ("exec sleep 60", "took over"),
    ],
)
def test_a_decoder_that_dies_or_hangs_is_one_line(write, tmp_path, monkeypatch, lines, why):
    path = write(tone(1))
    scripted(tmp_path, monkeypatch, lines)
    monkeypatch.setattr(voicefile, "DECODE_S", 2.0)
    assert why in refused(path)


def test_the_child_cannot_take_more_than_it_is_given():
    code = "from misoctl import recording as r; r.limit_resources()\n"
    for harm in ("b = bytearray(2 << 30)", "open('x', 'wb').write(bytes(3 << 20))"):
        with subprocess.Popen(
            [sys.executable, "-c", f"import os, tempfile; os.chdir(tempfile.mkdtemp())\n{code}{harm}"],
            stderr=subprocess.PIPE,
        ) as child:
            assert child.communicate()[1] and child.returncode != 0
            if sys.platform == "darwin":
                break  # memory has no limit there


# ---- AAC


M4A = struct.pack(">I", 32) + b"ftypM4A " + bytes(20)
ADTS = b"\xff\xf1\x50\x80\x00\x1f\xfc" + bytes(20)


@pytest.mark.parametrize("data", [M4A, ADTS])
def test_aac_is_named_where_it_cannot_be_read(tmp_path, monkeypatch, data):
    monkeypatch.setattr(sys, "platform", "linux")
    (tmp_path / "clip.m4a").write_bytes(data)
    line = refused(tmp_path / "clip.m4a")
    assert "macOS" in line and "ffmpeg" in line


@pytest.mark.parametrize("data", [M4A, ADTS])
def test_aac_goes_through_afconvert_on_macos(write, tmp_path, monkeypatch, data):
    """The wiring alone: afconvert stands for a copy of a WAV."""
    path = write(tone(1))
    converter = tmp_path / "bin" / "afconvert"
    converter.parent.mkdir()
    converter.write_text(f'#!/bin/sh\n[ "$1$2$3$4" = -fWAVE-dLEI16 ] && [ -s "$5" ] && cp "{path}" "$6"\n')
    converter.chmod(0o755)
    monkeypatch.setenv("PATH", f"{converter.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(sys, "platform", "darwin")
    (tmp_path / "clip.m4a").write_bytes(data)
    clip = voicefile.read_clip(str(tmp_path / "clip.m4a"))
    assert clip.pcm == voicefile.read_clip(str(path)).pcm
    assert clip.digest == hashlib.sha256(data).hexdigest()
    converter.write_text("#!/bin/sh\nexit 1\n")
    assert "failed (1)" in refused(tmp_path / "clip.m4a")


# ---- damaged at random


def fuzz(first: int, count: int) -> None:
    command = [sys.executable, str(Path(__file__).with_name("mutants.py")), str(first), str(count)]
    environ = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"}
    child = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=3600, check=False)
    *seeds, last = child.stdout.splitlines()
    assert child.returncode == 0, f"seed {last}: {child.stderr[-2000:]}"
    taken, not_taken = map(int, last.split())
    assert len(seeds) == count == taken + not_taken
    assert taken > count / 20 and not_taken > count / 2


def test_damaged_files_are_refused_or_taken_and_never_crash_or_hang():
    fuzz(0, 10_000)


@pytest.mark.slow
def test_many_damaged_files():
    fuzz(10_000, 300_000)
