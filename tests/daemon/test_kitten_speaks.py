"""From `misoctl say --model kitten` to samples: real daemon, real engine, random weights, and no codec but a double."""

import json
import sys
import wave

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
    daemon = home.spawn([sys.executable, str(HERE / "kitten_misod.py")], {"MISO_MODEL": "kitten"})
    home.wait_for("ready", daemon)
    yield home
    home.close()


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


def test_what_only_the_other_engine_does_is_refused_by_name(kitten):
    done = kitten.misoctl("say", "-o", str(kitten.path / "b.wav"), "--model", "kitten", "--guidance", "2", "Hello.")
    assert done.returncode == errors.USAGE, done.stderr
    assert "guidance is no option of kitten" in done.stderr


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
