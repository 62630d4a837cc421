"""From `misoctl say --model kitten` to samples: real daemon, real engine, random weights, and no codec but a double."""

import json
import sys
import wave
from pathlib import Path

import pytest
from harness import HERE, Home

from protocol import errors

LONG = (
    "[joyful] We won the grant <laugh> and I can (((hardly))) believe it! It came on the 3rd of May, at half past "
    "nine, and it is for $12.50 a day. " + "There is much to be done before the summer, and nobody knows by whom. " * 6
)
MAKE = (
    "import sys; from pathlib import Path; from tests.model.kitten_fixture import make_repository\n"
    "make_repository(Path(sys.argv[1]))"
)


@pytest.fixture(scope="module")
def kitten():
    home = Home()
    models = home.path / "models"
    models.mkdir()
    made = home.spawn([sys.executable, "-c", MAKE, str(models / "kitten")], {}, cwd=HERE.parents[1])
    assert made.wait(60) == 0, home.said()
    serve(home)
    yield home
    home.close()


def serve(home: Home) -> None:
    daemon = home.spawn([sys.executable, str(HERE / "kitten_misod.py")], {"MISO_MODEL": "kitten"})
    home.wait_for("ready", daemon)


def test_a_long_text_with_tags_numbers_and_a_voice_is_read_to_its_end(kitten):
    assert len(LONG) > 500
    path = kitten.path / "a.wav"
    done = kitten.misoctl("say", "-o", str(path), "--json", "--model", "kitten", "--seed", "7", LONG)
    assert done.returncode == errors.OK, done.stderr
    receipt = json.loads(done.stdout)
    assert (receipt["engine"], receipt["model"]) == ("kitten", "kitten")
    assert receipt["spoken"] == LONG.replace("$12.50", "twelve dollars fifty").strip()
    with wave.open(str(path)) as file:
        assert file.getnframes() == receipt["samples"] == receipt["frames"] * 1920 > 10 * 24_000


def test_what_only_the_other_engine_does_is_refused_by_name_both_ways(kitten):
    out = ("say", "-o", str(kitten.path / "b.wav"))
    done = kitten.misoctl(*out, "--model", "kitten", "--guidance", "2", "Hello.")
    assert done.returncode == errors.USAGE and "kitten takes no guidance: that is for MisoTTS" in done.stderr
    home = Home()
    try:
        home.nano()
        done = home.misoctl(*out, "--run-grace", "3", "Hello.")
        assert done.returncode == errors.USAGE and "nano takes no run_grace: that is for KittenTTS 2" in done.stderr
    finally:
        home.close()


def test_its_voices_are_listed_chosen_by_name_and_replayed(kitten):
    for listed in (kitten.misoctl("say", "--model", "kitten", "-v", "?", "x"), kitten.misoctl("voices")):
        assert listed.returncode == errors.OK and listed.stdout == "tiny  English\n", listed.stderr
    assert kitten.misoctl("voices", "--model", "nano").stdout == ""
    path, receipt = kitten.path / "d.wav", kitten.path / "d.json"
    options = ("--max-seconds", "1", "--chunk-gap", "0.5", "--run-grace", "3", "--json")
    done = kitten.misoctl("say", "-o", str(path), "-v", "Tiny", *options, "Hello to you.")
    assert done.returncode == errors.OK, done.stderr
    receipt.write_text(done.stdout)
    told = json.loads(done.stdout)
    assert (told["voice"], len(told["voice_digest"]), told["run_grace"], told["guidance"]) == ("tiny", 64, 3, None)
    again = kitten.path / "e.wav"
    done = kitten.misoctl("replay", str(receipt), "-o", str(again))
    assert done.returncode == errors.OK, done.stderr
    assert again.read_bytes() == path.read_bytes()
    done = kitten.misoctl("say", "-o", str(again), "-v", "Tinny", "Hello.")
    assert done.returncode == errors.NO_INPUT and "no voice tinny; did you mean tiny?" in done.stderr


def test_a_voice_is_learned_outlives_the_daemon_and_is_of_this_model_alone(kitten):
    clip = kitten.path / "clip.wav"
    with wave.open(str(clip), "wb") as file:
        file.setparams((1, 2, 24_000, 0, "NONE", ""))
        file.writeframes(bytes(range(1, 251)) * 400)
    words = ("--text", "What is said in this clip.")
    done = kitten.misoctl("say", "-o", str(kitten.path / "f.wav"), "--like", str(clip), *words, "--max-seconds", "1",
                          "--json", "--seed", "3", "Hello.")  # fmt: skip
    assert done.returncode == errors.OK, done.stderr
    once = json.loads(done.stdout)
    done = kitten.misoctl("learn", "anna", str(clip), *words, "--i-have-permission")
    assert done.returncode == errors.OK, done.stderr
    assert [line.split()[4] for line in kitten.misoctl("voices", "--model", "nano").stdout.splitlines()] == ["kitten"]
    receipt, first, again = (str(kitten.path / name) for name in ("g.json", "g.wav", "h.wav"))
    say = ("say", "-v", "anna", "--max-seconds", "1", "--seed", "3", "--json", "Hello.", "-o")
    done = kitten.misoctl(*say, first)
    assert done.returncode == errors.OK, done.stderr
    Path(receipt).write_text(done.stdout)
    assert json.loads(done.stdout)["voice_digest"] == once["voice_digest"] and len(once["voice_digest"]) == 64
    assert kitten.misoctl("voices", "export", "anna", str(kitten.path / "anna.voice")).returncode == errors.OK
    assert kitten.misoctl("forget", "anna").returncode == errors.OK
    assert kitten.misoctl("stop").returncode == errors.OK
    serve(kitten)
    assert kitten.misoctl("voices", "import", str(kitten.path / "anna.voice")).returncode == errors.OK
    done = kitten.misoctl("replay", receipt, "-o", again)
    assert done.returncode == errors.OK, done.stderr
    assert Path(again).read_bytes() == Path(first).read_bytes() == (kitten.path / "f.wav").read_bytes()
    done = kitten.misoctl("say", "-o", again, "-v", "anna", "--model", "nano", "Hello.")
    assert done.returncode == errors.BAD_DATA and "anna was learned with kitten (--model kitten says it)" in done.stderr


def test_the_real_daemon_without_the_extra_names_the_command(kitten):
    """The daemon as it is installed where tests run, with no kittenml: one line, and no traceback."""
    home = Home()
    try:
        (home.path / "models").mkdir()
        (home.path / "models" / "kitten").symlink_to(kitten.path / "models" / "kitten")
        home.nano()
        done = home.misoctl("say", "-o", str(home.path / "c.wav"), "--model", "kitten", "Hello.")
        assert done.returncode == errors.UNAVAILABLE
        *progress, line = done.stderr.strip().splitlines()
        assert "pip install 'miso-speech[kitten]'" in line and progress == ["misoctl: loading the model"]
    finally:
        home.close()
