"""learn, voices, forget, sessions and say --like where no daemon runs: what is refused before one is started."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from misoctl import receipt, voice
from protocol import errors
from protocol import messages as m
from protocol.errors import Failure

WAVS = Path(__file__).parent / "fixtures" / "wavs"
CLIP = str(WAVS / "ok_24k_mono_pcm16.wav")
BAD = str(WAVS / "bad_nan_float.wav")  # the last thing that is looked at before a daemon is asked
NAME_RULE = "begins with a letter or a digit"


@pytest.fixture
def misoctl(tmp_path):
    """Runs it; no daemon is there afterwards."""

    def run(*arguments, env=None, **options) -> subprocess.CompletedProcess:
        environ = os.environ | {"MISO_HOME": str(tmp_path / "home")} | (env or {})
        options = {"stdin": subprocess.DEVNULL} | options if "input" not in options else options
        done = subprocess.run(
            [sys.executable, "-m", "misoctl", *arguments],
            env=environ,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            **options,
        )
        assert "Traceback" not in done.stderr and not (tmp_path / "home").exists()
        return done

    return run


def refused(done, code: int) -> str:
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    *_, last = done.stderr.splitlines()
    assert last.startswith("misoctl: ")
    return last


# ---- names


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("Anna", "anna"),
        ("Änna Müller", "anna-muller"),
        ("../x", "x"),
        ("a/b", "a-b"),
        (".anna", "anna"),
        ("a" * 65, "a" * 64),
        ("安娜", ""),
        ("", ""),
    ],
)
def test_a_name_that_is_no_slug_is_refused_with_one_that_is(misoctl, name, near):
    assert_bad_name(misoctl("forget", name), near)


def assert_bad_name(done, near: str) -> None:
    line = refused(done, errors.USAGE)
    assert NAME_RULE in line and (f"try {near};" in line if near else "try" not in line)
    assert not near or m.is_name(near)


def test_each_verb_refuses_such_a_name(misoctl):
    name = "../x"
    for arguments in (
        ("learn", name, CLIP),
        ("voices", "show", name),
        ("voices", "export", name, "x"),
        ("voices", "import", CLIP, "--name", name),
        ("say", "-v", name, "hi"),  # Anna would do: so are a model's own written
        ("say", "--session", name, "hi"),
        ("say", "--session", "", "hi"),
        ("sessions", "forget", name),
    ):
        assert_bad_name(misoctl(*arguments), "x" if name in arguments else "")


# ---- permission


def test_without_a_terminal_and_without_the_flag_nothing_is_learned(misoctl):
    assert "--i-have-permission" in refused(misoctl("learn", "anna", CLIP, "--text", "hi"), errors.USAGE)


# ---- recordings


@pytest.mark.parametrize("name", ["bad_nan_float.wav", "bad_empty_file.wav"])  # each of them: test_voicefile.py
def test_a_bad_recording_is_one_line_for_learn_and_for_say(misoctl, name):
    path = WAVS / name
    done = misoctl("learn", "anna", str(path), "--text", "hi", "--i-have-permission")
    assert str(path) in refused(done, errors.BAD_DATA) and done.stderr.count("\n") == 1
    done = misoctl("say", "--like", str(path), "--text", "hi", "Hello.")
    assert str(path) in refused(done, errors.BAD_DATA) and done.stderr.count("\n") == 1


def test_a_recording_that_is_not_there_is_exit_66(misoctl):
    assert "x.wav" in refused(misoctl("learn", "anna", "x.wav", "--i-have-permission"), errors.NO_INPUT)
    assert "x.voice" in refused(misoctl("voices", "import", "x.voice"), errors.NO_INPUT)


def test_what_is_no_voices_file_by_its_size_is_refused(misoctl, tmp_path):
    for size in (0, m.MAX_VOICE_BYTES + 1):
        (tmp_path / "x").write_bytes(bytes(size))
        assert "no voice" in refused(misoctl("voices", "import", str(tmp_path / "x")), errors.BAD_DATA)


def test_options_that_exclude_each_other(misoctl):
    learn = ("learn", "anna", CLIP, "--i-have-permission")
    assert "not both" in refused(misoctl(*learn, "--text", "a", "--text-file", "b"), errors.USAGE)
    both = ("learn", "anna", "-", "--i-have-permission", "--text-file", "-")
    assert "cannot both" in refused(misoctl(*both), errors.USAGE)
    assert "not both" in refused(misoctl("say", "--like", CLIP, "-v", "anna", "hi"), errors.USAGE)
    assert "--like" in refused(misoctl("say", "--text", "a", "hi"), errors.USAGE)
    assert "--all" in refused(misoctl("sessions", "forget"), errors.USAGE)
    assert "--all" in refused(misoctl("sessions", "forget", "a", "--all"), errors.USAGE)


def test_the_words_of_a_recording_are_bounded(misoctl, tmp_path):
    (tmp_path / "long.txt").write_text("a " * 3001)
    learn = ("learn", "anna", CLIP, "--i-have-permission", "--text-file")
    assert "6,000" in refused(misoctl(*learn, str(tmp_path / "long.txt")), errors.BAD_DATA)
    assert "no.txt" in refused(misoctl(*learn, "no.txt"), errors.NO_INPUT)
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    assert "not UTF-8" in refused(misoctl(*learn, str(tmp_path / "latin.txt")), errors.BAD_DATA)


def test_export_writes_over_nothing_unless_asked(misoctl, tmp_path):
    (tmp_path / "anna.voice").write_text("mine")
    line = refused(misoctl("voices", "export", "anna", str(tmp_path / "anna.voice")), errors.CANT_CREATE)
    assert "--replace" in line and (tmp_path / "anna.voice").read_text() == "mine"


# ---- near misses


class Listing:
    """A client that knows these names."""

    def __init__(self, *names: str):
        self.names = names

    def ask(self, _kind, **_request) -> m.Voices:
        return m.Voices(id=1, listing=json.dumps([{"name": name} for name in self.names]))


@pytest.mark.parametrize(("name", "cure"), [("anan", "did you mean anna?"), ("zoltan", "`misoctl voices` shows")])
def test_a_voice_that_is_not_there_may_be_there_by_another_name(name, cure):
    with pytest.raises(Failure) as caught, voice.suggesting(Listing("anna", "bert"), name):
        raise Failure.of_code("no_voice", "not shown")
    assert str(caught.value).startswith(f"no voice {name}; {cure}") and caught.value.exit_code == errors.NO_INPUT


def test_another_failure_goes_on_as_it_is():
    with pytest.raises(Failure, match="its own"), voice.suggesting(Listing(), "anna"):
        raise Failure.of_code("busy", "its own")


# ---- receipts


def written(tmp_path, **change) -> str:
    plain = dict.fromkeys((*receipt.SHAPES_SOUND, *receipt.ASKED))
    plain |= {
        "text": "a",
        "model": "nano",
        "digest": "d",
        "sha256": "s",
        "voice": "",
        "voice_digest": "",
        "session": "",
    }
    (tmp_path / "a.json").write_text(json.dumps(plain | change))
    return str(tmp_path / "a.json")


def test_a_receipt_with_a_voice_asks_for_it(tmp_path):
    replay = receipt.read(written(tmp_path, voice="anna", voice_digest="v"))
    assert (replay.options, replay.voice_digest) == ({"voice": "anna"}, "v")
    assert receipt.read(written(tmp_path)).options == {}


@pytest.mark.parametrize(
    ("change", "why"), [({"session": "talk"}, "session talk"), ({"voice_digest": "v"}, "like a recording")]
)
def test_a_receipt_that_is_not_enough_says_so(tmp_path, change, why):
    with pytest.raises(Failure, match=why) as caught:
        receipt.read(written(tmp_path, **change))
    assert caught.value.exit_code == errors.BAD_DATA
