"""From `misoctl say` to samples, with the bundled voice: real daemon, real socket, real misoctl."""

import io
import json
import struct
import subprocess
import wave

import numpy as np
import pytest
from harness import Raw, frames_of, until

from protocol import errors
from protocol import messages as m

TEXT = "The kettle is on."


def speak(home, *arguments: str) -> bytes:
    """The samples of one `misoctl say --raw`."""
    done = home.misoctl("say", "--raw", *arguments, text=False)
    assert done.returncode == errors.OK, done.stderr
    return done.stdout


def write(home, name: str, *arguments: str) -> tuple[dict, bytes]:
    """The receipt of one `misoctl say -o FILE --json`, and the file."""
    path = home.path / name
    done = home.misoctl("say", "-o", str(path), "--json", *arguments)
    assert done.returncode == errors.OK, done.stderr
    return json.loads(done.stdout), path.read_bytes()


def samples(wav: bytes) -> bytes:
    with wave.open(io.BytesIO(wav)) as file:
        assert (file.getnchannels(), file.getsampwidth(), file.getframerate()) == (1, 2, 24000)
        return file.readframes(file.getnframes())


def test_the_receipt_tells_what_is_in_the_file(nano):
    receipt, wav = write(nano, "a.wav", "--seed", "7", TEXT)
    pcm = np.frombuffer(samples(wav), "<i2")
    assert receipt["frames"] * 1920 == receipt["samples"] == pcm.size
    assert receipt["seconds"] == pcm.size / 24000 and receipt["rate"] == 24000
    assert np.abs(pcm).max() > 1000 and pcm.astype(float).std() > 100  # not silent
    assert (receipt["clipped"], receipt["nonfinite"]) == (int((np.abs(pcm) > 32767).sum()), 0)
    assert (receipt["end"], receipt["seed"], receipt["model"]) == ("eos", 7, "nano")
    assert receipt["ttfa_ms"] > 0 and receipt["rtf"] > 0
    assert receipt["spoken"] == TEXT


def test_the_header_of_a_file_holds_its_sizes(nano):
    _, wav = write(nano, "h.wav", "--seed", "7", TEXT)
    assert struct.unpack("<4sI4s", wav[:12]) == (b"RIFF", len(wav) - 8, b"WAVE")
    assert struct.unpack("<4sI", wav[36:44]) == (b"data", len(wav) - 44)


def test_a_seed_gives_the_same_bytes_every_time_and_every_way(nano):
    first = speak(nano, "--seed", "41", TEXT)
    assert speak(nano, "--seed", "41", TEXT) == first
    with Raw(nano) as raw:
        raw.say(1, TEXT + " " + TEXT, seed=5)
        raw.until(m.Pcm)
        raw.send(m.Cancel(id=1))
        assert raw.until(m.Done)[-1].end == "cancelled"
    assert speak(nano, "--seed", "41", TEXT) == first
    assert samples(write(nano, "s.wav", "--seed", "41", TEXT)[1]) == first
    stream = nano.misoctl("say", "-o", "-", "--seed", "41", TEXT, text=False).stdout
    assert stream[44:] == first and stream[4:8] == stream[40:44] == b"\xff\xff\xff\xff"


def test_the_receipts_seed_says_it_again(nano):
    receipt, wav = write(nano, "r.wav", TEXT)
    assert speak(nano, "--seed", str(receipt["seed"]), TEXT) == samples(wav)


@pytest.mark.parametrize(
    "how",
    [
        (),
        ("--preset", "expressive", "--speaker", "1"),
        (
            "--temperature",
            "0.8",
            "--min-temperature",
            "0.2",
            "--decay-frames",
            "5",
            "--top-p",
            "0.9",
            "--min-p",
            "0.01",
        ),
        ("--guidance", "1.5", "--max-seconds", "1"),
        ("--depth", "6"),
    ],
    ids=["plain", "preset", "schedule", "guided", "shallow"],
)
def test_a_receipt_renders_the_same_samples_again(nano, tmp_path, how):
    first, again, receipt = tmp_path / "first.wav", tmp_path / "again.wav", tmp_path / "receipt.json"
    receipt.write_text(nano.misoctl("say", *how, "--json", "-o", str(first), "Ünder 3 trees. Sing.").stdout)
    done = nano.misoctl("replay", str(receipt), "-o", str(again))
    assert done.returncode == errors.OK, done.stderr
    assert again.read_bytes() == first.read_bytes()
    assert json.loads(receipt.read_text())["text"] == "Ünder 3 trees. Sing."


def test_a_script_is_spoken_turn_by_turn_and_each_has_its_own_file(nano, tmp_path):
    script, stems, receipt = tmp_path / "talk.txt", tmp_path / "turns" / "all", tmp_path / "receipt.json"
    script.write_text("# a scene\nanna: My hat?\n\nben: There. Look.\nanna: So it is.\n")
    arguments = ("say", "--script", str(script), "--stems", str(stems), "--json", "-o", str(tmp_path / "all.wav"))
    done = nano.misoctl(*arguments)
    receipt.write_text(done.stdout)
    assert json.loads(done.stdout)["spoken"] == "My hat? There. Look. So it is."
    files = sorted(stems.iterdir())
    assert [file.name for file in files] == ["01-anna.wav", "02-ben.wav", "03-anna.wav"]
    whole = samples((tmp_path / "all.wav").read_bytes())
    assert b"".join(samples(file.read_bytes()) for file in files) == whole
    assert all(len(samples(file.read_bytes())) > 5 * 3840 for file in files)
    assert nano.misoctl("replay", str(receipt), "-o", str(tmp_path / "again.wav")).returncode == errors.OK
    assert samples((tmp_path / "again.wav").read_bytes()) == whole


@pytest.mark.parametrize(
    ("content", "code", "word"),
    [
        ("anna: hi\nhello", errors.BAD_DATA, "talk.txt:2"),
        ("[0] hi\n[7] ho", errors.USAGE, "0 to 1, not 7"),
        ("a: x0\n" * 9_900, errors.BAD_DATA, "60,000 bytes"),  # longer than that once it is rewritten
    ],
)
def test_a_script_that_cannot_be_spoken_is_one_line(nano, tmp_path, content, code, word):
    script = tmp_path / "talk.txt"
    script.write_text(content)
    done = nano.misoctl("say", "--script", str(script), "--raw")
    assert done.returncode == code and word in done.stderr and done.stderr.count("\n") == 1


def test_what_the_voice_has_no_letters_for_is_told(nano, tmp_path):
    done = nano.misoctl("say", "-o", str(tmp_path / "a.wav"), "Hello, \u4f60\u597d and goodbye.")
    assert done.returncode == errors.OK and "2 letters" in done.stderr


def test_a_receipt_of_other_weights_or_other_samples_is_told_from_its_own(nano, tmp_path):
    made = json.loads(nano.misoctl("say", "--json", "-o", str(tmp_path / "a.wav"), "Hello.").stdout)
    receipt = tmp_path / "receipt.json"
    for change, code in (({"digest": "0" * 64}, errors.BAD_DATA), ({"sha256": "0" * 64}, errors.FAILED)):
        receipt.write_text(json.dumps(made | change))
        done = nano.misoctl("replay", str(receipt), "-o", str(tmp_path / "b.wav"))
        assert done.returncode == code and str(receipt) in done.stderr


@pytest.mark.parametrize(
    "change",
    [
        {"seed": "x"},
        {"seed": -1},
        {"temperature": 1e400},
        {"text": None},
        {"text": "\ud800"},
        {"model": None},
        {"sha256": 0},
    ],
    ids=str,
)
def test_a_damaged_receipt_is_one_line_before_anything_is_spoken(nano, tmp_path, change):
    receipt = tmp_path / "receipt.json"
    if not (good := nano.path / "good.json").exists():
        good.write_text(nano.misoctl("say", "--json", "-o", str(tmp_path / "a.wav"), "Hello.").stdout)
    receipt.write_text(json.dumps(json.loads(good.read_text()) | change))
    done = nano.misoctl("replay", str(receipt), "--raw")
    assert done.returncode == errors.BAD_DATA and done.stderr.count("\n") == 1 and done.stdout == ""


@pytest.mark.parametrize("content", ["", "{}", "[1]", "hello", '{"text": 3}', "[" * 100_000])
def test_what_is_no_receipt_is_one_line(nano, tmp_path, content):
    receipt = tmp_path / "receipt.json"
    receipt.write_text(content)
    done = nano.misoctl("replay", str(receipt), "--raw")
    assert done.returncode == errors.BAD_DATA and done.stderr.count("\n") == 1
    assert nano.misoctl("replay", str(tmp_path / "none"), "--raw").returncode == errors.NO_INPUT


def test_strict_takes_a_cut_for_a_failure(nano):
    for strict, code in (((), errors.OK), (("--strict",), errors.FAILED)):
        cut = nano.misoctl("say", *strict, "--raw", "--max-seconds", "0.2", "A longer text than that.", text=False)
        assert cut.returncode == code and b"longest" in cut.stderr and len(cut.stdout) == 2 * 3840
    assert nano.misoctl("say", "--strict", "--raw", "--seed", "1", "Hello.", text=False).returncode == errors.OK


def test_other_seeds_speak_otherwise(nano):
    assert speak(nano, "--seed", "1", TEXT) != speak(nano, "--seed", "2", TEXT)


def test_max_seconds_caps(nano):
    receipt, wav = write(nano, "c.wav", "--max-seconds", "0.4", TEXT)
    assert (receipt["end"], receipt["frames"], len(samples(wav))) == ("cap", 5, 5 * 3840)


def test_two_at_once_each_say_what_they_say_alone(nano):
    """The same codes; the samples to a rounding of the batched matmuls, which sum in another order."""
    texts = {1: TEXT, 2: "Another voice."}
    alone = {request: speak(nano, "--seed", "7", text) for request, text in texts.items()}
    with Raw(nano) as raw:
        for request, text in texts.items():
            raw.say(request, text)
        got = raw.until(m.Done) + raw.until(m.Done)
    assert {x.end for x in got if isinstance(x, m.Done)} == {"eos"}
    first_done = next(i for i, x in enumerate(got) if isinstance(x, m.Done))
    assert {x.id for x in frames_of(got[:first_done])} == {1, 2}  # they did speak at once
    for request in texts:
        batched = np.frombuffer(b"".join(x.data for x in frames_of(got, request)), "<i2").astype(int)
        single = np.frombuffer(alone[request], "<i2").astype(int)
        assert batched.size == single.size and np.abs(batched - single).max() <= 3


def test_text_without_a_letter_the_model_reads_is_refused(nano):
    done = nano.misoctl("say", "--raw", "你好世界")
    assert (done.returncode, done.stdout) == (errors.BAD_DATA, "")
    assert len(done.stderr.splitlines()) == 1 and "no letters" in done.stderr


def test_a_speaker_the_model_has_not_is_a_usage_error(nano):
    done = nano.misoctl("say", "--raw", "--speaker", "5", TEXT)
    assert (done.returncode, done.stdout) == (errors.USAGE, "")
    assert len(done.stderr.splitlines()) == 1 and "not 5" in done.stderr


def test_a_depth_is_in_the_receipt_and_one_the_model_has_not_is_a_usage_error(nano):
    receipt, wav = write(nano, "deep.wav", "--depth", "6", "--seed", "7", TEXT)
    assert receipt["depth"] == 6 and samples(wav) != speak(nano, "--seed", "7", TEXT)
    assert write(nano, "whole.wav", "--seed", "7", TEXT)[0]["depth"] is None
    done = nano.misoctl("say", "--raw", "--depth", "17", TEXT)
    assert (done.returncode, done.stdout) == (errors.USAGE, "")
    assert len(done.stderr.splitlines()) == 1 and "1 to 16" in done.stderr


def test_a_client_killed_mid_stream_loses_its_row_within_two_frames(nano):
    say = nano.misoctl_process("say", "--raw", " ".join([TEXT] * 20), stdout=subprocess.PIPE)
    say.stdout.read(3840)
    with Raw(nano) as raw:
        say.kill()
        say.wait()
        frames = raw.ping().frames
        until(lambda: raw.ping().speaking == 0, "the row to leave")
        assert raw.ping().frames - frames <= 2


def test_what_a_request_held_is_given_back(nano):
    """At rest MLX holds the same after each request, but for the key of the last row, a few bytes."""
    held = []
    with Raw(nano) as raw:
        for request, text in enumerate((TEXT, "Two words.", TEXT + " " + TEXT, "No.")):
            raw.say(request, text)
            if request == 2:
                raw.until(m.Pcm)
                raw.send(m.Cancel(id=request))
            if raw.until(m.Done)[-1].end == "eos":  # after a cancel the last frame may still be on its way
                until(lambda: raw.ping().speaking == 0, "the row to leave")
                held.append(raw.ping().active_bytes)
    assert len(held) == 3 and max(held) - min(held) <= 64
