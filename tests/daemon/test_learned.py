"""Voices and sessions as a person has them: real misoctl, real misod, the bundled model."""

import hashlib
import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import soundfile
from harness import until

from protocol import errors

WAVS = Path(__file__).parents[1] / "unit" / "fixtures" / "wavs"
WORDS = "The kettle is on."
TEXT = "Sit down."
WHISPER = """
class WhisperModel:
    def __init__(self, model, **options):
        assert options["local_files_only"]
        if model != "here":
            raise OSError(f"no {model} here")
        print("noise on standard output")

    def transcribe(self, sound):
        assert sound.dtype == "float32" and 0.5 < len(sound) / 16000 < 5
        return [type("Segment", (), {"text": text}) for text in (" The kettle", " is on.")], None
"""


def run(home, *arguments: str, code: int = errors.OK, **more):
    done = home.misoctl(*arguments, **more)
    assert done.returncode == code, done.stderr
    return done


def fails(home, code: int, *arguments: str, **more) -> str:
    """The one line."""
    done = run(home, *arguments, code=code, **more)
    assert not done.stdout and done.stderr.count("\n") == 1
    return done.stderr


def learn(home, name: str, clip: Path, *arguments: str, **more):
    return run(home, "learn", name, str(clip), "--i-have-permission", *arguments, **more)


def known(home) -> dict[str, dict]:
    return {row["name"]: row for row in json.loads(run(home, "voices", "--json").stdout)}


def shown(home, name: str) -> dict:
    return json.loads(run(home, "voices", "show", name, "--json").stdout)


def say(home, name: str, *arguments: str) -> tuple[dict, bytes]:
    """Receipt and file of one `say`."""
    path = home.path / name
    done = run(home, "say", "-o", str(path), "--json", "--seed", "7", *arguments, TEXT)
    path.with_suffix(".json").write_text(done.stdout)
    return json.loads(done.stdout), path.read_bytes()


@pytest.fixture(scope="module")
def clips(nano) -> list[Path]:
    """Two recordings, of the model's two speakers."""
    paths = [nano.path / f"clip{speaker}.wav" for speaker in (0, 1)]
    for speaker, path in enumerate(paths):
        run(nano, "say", "-o", str(path), "--seed", "3", "--speaker", str(speaker), WORDS)
    return paths


@pytest.fixture
def anna(nano, clips):
    """The home, with a voice anna and no other: the one that the last test left, or made anew."""
    kept = {path.name: path.read_bytes() for path in (nano.path / "voices").glob("*") if path.is_file()}
    if not kept or kept != getattr(nano, "kept", None):
        for name in known(nano):
            run(nano, "forget", name)
        learn(nano, "anna", clips[0], "--text", WORDS, "--licence", "mine")
        nano.kept = {path.name: path.read_bytes() for path in (nano.path / "voices").glob("*") if path.is_file()}
    return nano


def test_a_learned_voice_is_listed_shown_and_spoken_with(anna, clips):
    row = shown(anna, "anna")
    assert (row["text"], row["speaker"], row["licence"], row["permission"]) == (WORDS, 0, "mine", True)
    assert row["clip_digest"] == hashlib.sha256(clips[0].read_bytes()).hexdigest()
    line = run(anna, "voices").stdout
    assert line.startswith("anna ") and WORDS in line and line.count("\n") == 1
    assert run(anna, "say", "-v", "?").stdout == run(anna, "say", "--voice", "?", TEXT).stdout == line
    receipt, wav = say(anna, "a.wav", "-v", "anna")
    assert (receipt["voice"], receipt["voice_digest"]) == ("anna", row["digest"])
    assert wav != say(anna, "b.wav")[1]
    assert "voices    1 learned" in run(anna, "status").stdout


def test_the_words_to_a_person_are_on_stderr_and_q_hushes_them(anna, clips):
    done = learn(anna, "bert", clips[0], "--text", WORDS)
    assert "learned bert" in done.stderr and not done.stdout
    for arguments in (("learn", "bert", str(clips[0]), "--replace", "--i-have-permission"), ("forget", "bert")):
        done = run(anna, *arguments, "-q")
        assert done.stdout == done.stderr == ""


def test_a_name_that_is_taken_is_refused_unless_asked(anna, clips):
    before = shown(anna, "anna")
    line = fails(anna, errors.CANT_CREATE, "learn", "anna", str(clips[1]), "--text", WORDS, "--i-have-permission")
    assert "--replace" in line and shown(anna, "anna") == before
    learn(anna, "anna", clips[1], "--text", WORDS, "--replace")
    assert shown(anna, "anna")["digest"] != before["digest"]


def test_a_taken_name_is_refused_before_anybody_is_asked_or_listens(anna, clips):
    code, shown = on_a_terminal(anna, b"", "learn", "anna", str(clips[1]))
    assert (code, shown.count("\n")) == (errors.CANT_CREATE, 1) and "--replace" in shown


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        (b"y\n", errors.OK, "learned bert"),
        (b"n\n", errors.FAILED, "nothing was learned"),
        (b"\n", errors.FAILED, "nothing was learned"),
        (b"\x04", errors.FAILED, "nothing was learned"),
    ],
)
def test_on_a_terminal_permission_is_asked_once(anna, clips, typed, code, said):
    ended, shown = on_a_terminal(anna, typed, "learn", "bert", str(clips[1]), "--text", WORDS)
    assert ended == code and said in shown and shown.count("permission to use") == 1
    assert ("bert" in known(anna)) == (code == errors.OK)


def test_a_recording_that_is_bad_is_refused_before_anybody_is_asked(anna):
    code, shown = on_a_terminal(anna, b"", "learn", "bert", str(WAVS / "bad_nan_float.wav"))
    assert (code, shown.count("\n")) == (errors.BAD_DATA, 1) and "NaN" in shown


def on_a_terminal(home, typed: bytes, *arguments: str) -> tuple[int, str]:
    """Its exit code, and all that is to be seen; `typed` where it asks."""
    ours, theirs = pty.openpty()
    streams = {"stdin": theirs, "stdout": theirs, "stderr": theirs}
    command = [sys.executable, "-m", "misoctl", *arguments]
    child = subprocess.Popen(command, env=home.env, start_new_session=True, **streams)
    os.close(theirs)
    shown, asked = b"", False
    try:
        while more := os.read(ours, 4096):
            shown += more
            if b"[y/N]" in shown and not asked:
                os.write(ours, typed)
                asked = True
    except OSError:  # the terminal is gone with the child
        pass
    os.close(ours)
    return child.wait(30), shown.decode().replace("\r\n", "\n")


def test_ctrl_c_while_it_learns_learns_nothing(home):
    home.fake({"FAKE_STEP_MS": "60"})
    sound = np.random.default_rng(0).normal(0, 0.1, 25 * 24_000)
    soundfile.write(home.path / "long.wav", sound, 24_000)
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = home.misoctl_process(
        "learn", "anna", str(home.path / "long.wav"), "--text", WORDS * 9, "--i-have-permission", **options
    )
    until(lambda: home.trace.exists() and home.traced("hear"), "it to be heard")
    child.send_signal(signal.SIGINT)
    assert (child.wait(30), child.stderr.read()) == (errors.INTERRUPTED, b"")
    run(home, "say", "-o", str(home.path / "a.wav"), "two words")
    assert known(home) == {} and home.traced("hear") < 20


def test_a_changed_clip_under_the_same_path_is_a_changed_voice(anna, clips):
    path = anna.path / "changing.wav"
    rows, sounds = [], []
    for clip in clips:
        path.write_bytes(clip.read_bytes())
        learn(anna, "changing", path, "--text", WORDS, "--replace")
        rows.append(shown(anna, "changing"))
        sounds.append((say(anna, "c.wav", "-v", "changing")[1], say(anna, "l.wav", "--like", str(path))[1]))
    assert rows[0]["clip_digest"] != rows[1]["clip_digest"] and rows[0]["digest"] != rows[1]["digest"]
    assert all(first != second for first, second in zip(*sounds, strict=True))


def test_say_like_a_recording_is_the_voice_learned_from_it_and_keeps_none(anna, clips):
    learned = say(anna, "v.wav", "-v", "anna")
    once = say(anna, "o.wav", "--like", str(clips[0]), "--text", WORDS)
    assert once[1] == learned[1] and list(known(anna)) == ["anna"]
    assert (once[0]["voice"], once[0]["voice_digest"]) == ("", learned[0]["voice_digest"])


def test_the_voices_own_speaker_is_spoken_as_unless_another_is_asked_for(anna, clips):
    learn(anna, "one", clips[1], "--text", WORDS, "--speaker", "1")
    assert say(anna, "s.wav", "-v", "one")[0]["speaker"] == 1
    assert say(anna, "s.wav", "-v", "one", "--speaker", "0")[0]["speaker"] == 0
    assert say(anna, "s.wav")[0]["speaker"] == 0


# ---- receipts


def test_a_receipt_with_a_voice_is_replayed_while_that_voice_is_there(anna, clips):
    _, wav = say(anna, "r.wav", "-v", "anna")
    receipt, again = str(anna.path / "r.json"), anna.path / "again.wav"
    run(anna, "replay", receipt, "-o", str(again))
    assert again.read_bytes() == wav
    learn(anna, "anna", clips[1], "--text", WORDS, "--replace")
    assert "another voice anna" in fails(anna, errors.BAD_DATA, "replay", receipt, "-o", str(again))
    run(anna, "forget", "anna")
    assert "no voice anna" in fails(anna, errors.NO_INPUT, "replay", receipt, "-o", str(again))


def test_a_receipt_of_a_session_or_of_a_recording_says_that_it_is_not_enough(anna, clips):
    say(anna, "x.wav", "--session", "talk")
    assert "session talk" in fails(anna, errors.BAD_DATA, "replay", str(anna.path / "x.json"), "--raw")
    say(anna, "y.wav", "--like", str(clips[0]), "--text", WORDS)
    assert "like a recording" in fails(anna, errors.BAD_DATA, "replay", str(anna.path / "y.json"), "--raw")


# ---- what is not there


@pytest.mark.parametrize(
    "arguments", [("say", TEXT, "-v"), ("voices", "show"), ("forget",), ("voices", "export", "x.voice")]
)
def test_an_unknown_voice_is_one_line_with_the_nearest(anna, arguments):
    verb, rest = (arguments[:2], arguments[2:]) if arguments[0] == "voices" else (arguments, ())
    assert "no voice anan; did you mean anna?" in fails(anna, errors.NO_INPUT, *verb, "anan", *rest)
    assert "`misoctl voices`" in fails(anna, errors.NO_INPUT, *verb, "zoltan", *rest)


def test_where_there_are_none_it_says_how_to_make_one(anna):
    run(anna, "forget", "anna")
    run(anna, "sessions", "forget", "--all")
    for verb, cure in (("voices", "learn NAME CLIP"), ("sessions", "--session NAME")):
        done = run(anna, verb)
        assert not done.stdout and cure in done.stderr
        assert run(anna, verb, "--json").stdout == "[]\n"


def test_a_damaged_voice_is_listed_as_that(anna):
    (anna.path / "voices" / "broken.safetensors").write_bytes(b"no voice")
    lines = run(anna, "voices").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["anna", "broken"] and "damaged: " in lines[1]
    run(anna, "forget", "broken")
    assert list(known(anna)) == ["anna"]


# ---- files


def test_a_voice_that_is_exported_and_imported_is_the_same_voice(anna):
    path = anna.path / "anna.voice"
    run(anna, "voices", "export", "anna", str(path))
    assert run(anna, "voices", "export", "anna", "-", text=False).stdout == path.read_bytes()
    before = shown(anna, "anna")
    fails(anna, errors.CANT_CREATE, "voices", "import", str(path))
    run(anna, "forget", "anna")
    assert "imported anna" in run(anna, "voices", "import", str(path)).stderr
    assert shown(anna, "anna") == before
    run(anna, "voices", "import", "-", "--name", "zoe", input=path.read_bytes(), text=False)
    assert shown(anna, "zoe") == before | {"name": "zoe"}
    assert say(anna, "e.wav", "-v", "zoe")[1] == say(anna, "f.wav", "-v", "anna")[1]


def test_export_replaces_a_file_when_asked_and_leaves_nothing_else(anna):
    folder = anna.path / "out"
    folder.mkdir()
    (folder / "anna.voice").write_text("mine")
    fails(anna, errors.CANT_CREATE, "voices", "export", "anna", str(folder / "anna.voice"))
    assert (folder / "anna.voice").read_text() == "mine"
    run(anna, "voices", "export", "anna", str(folder / "anna.voice"), "--replace")
    assert b"codes" in (folder / "anna.voice").read_bytes()
    assert [path.name for path in folder.iterdir()] == ["anna.voice"]
    fails(anna, errors.CANT_CREATE, "voices", "export", "anna", str(folder / "no" / "anna.voice"))


def test_what_is_no_voice_is_not_imported(anna, clips):
    fails(anna, errors.BAD_DATA, "voices", "import", str(clips[0]))
    assert list(known(anna)) == ["anna"]


def test_a_voices_words_cannot_command_a_terminal(anna, clips):
    learn(anna, "odd", clips[0], "--text", "\x1b]0;owned\x07 The kettle is on.", "--licence", "\x1b[2J")
    for arguments in (("voices",), ("voices", "show", "odd"), ("say", "-v", "?")):
        assert not set(run(anna, *arguments).stdout) & {"\x1b", "\x07"}


# ---- recordings


def test_every_form_of_a_recording_is_the_voice_of_its_plain_form(anna):
    """Where the samples are the same, the codes are."""
    digests = set()
    for name in ("24k_mono_pcm16", "odd_junk_chunk_before_data"):
        learn(anna, "form", WAVS / f"ok_{name}.wav", "--text", "hm", "--replace")
        digests.add(shown(anna, "form")["digest"])
    learn(anna, "form", WAVS / "edge_streaming_sizes_ffffffff.wav", "--text", "hm", "--replace")
    assert digests == {shown(anna, "form")["digest"]}


def test_a_recording_that_cannot_be_used_leaves_the_voice_as_it_was(anna):
    before = shown(anna, "anna")
    for path in (WAVS / "bad_nan_float.wav", WAVS / "bad_truncated_data.wav"):  # each other: test_voicefile.py
        fails(anna, errors.BAD_DATA, "learn", "anna", str(path), "--i-have-permission", "--text", "a", "--replace")
    assert shown(anna, "anna") == before and list(known(anna)) == ["anna"]


@pytest.mark.parametrize("text", ["hm", "The kettle is on. " * 30])
def test_words_that_cannot_be_those_of_the_recording_are_told(anna, clips, text):
    assert "Speech has 4 to 30 a second" in learn(anna, "anna", clips[0], "--text", text, "--replace").stderr
    assert "Speech has" not in learn(anna, "anna", clips[0], "--text", WORDS, "--replace").stderr


# ---- words that nobody gave


def test_without_words_it_says_that_they_matter(anna, clips):
    assert "give it --text" in learn(anna, "anna", clips[0], "--replace").stderr
    assert shown(anna, "anna")["text"] == ""


def test_a_recogniser_that_is_installed_is_asked_and_its_words_are_shown(anna, clips):
    folder = anna.path / "recogniser"
    folder.mkdir(exist_ok=True)
    (folder / "faster_whisper.py").write_text(WHISPER)
    path = f"{folder}:{anna.env.get('PYTHONPATH', '')}"
    env = anna.env | {"PYTHONPATH": path, "MISO_TRANSCRIBER_MODEL": "here"}
    assert 'heard "The kettle is on."' in learn(anna, "anna", clips[0], "--replace", env=env).stderr
    assert shown(anna, "anna")["text"] == "The kettle is on."
    done = learn(anna, "anna", clips[0], "--replace", "--transcriber", "elsewhere", env=env)
    assert "no elsewhere here" in done.stderr and "MISO_TRANSCRIBER_MODEL" in done.stderr
    assert shown(anna, "anna")["text"] == ""
    done = learn(anna, "anna", clips[0], "--replace", "--text", WORDS, env=env)
    assert "heard" not in done.stderr and shown(anna, "anna")["text"] == WORDS


# ---- sessions


def test_sessions_are_listed_and_forgotten(anna):
    run(anna, "sessions", "forget", "--all")
    for name in ("talk", "talk", "other"):
        assert say(anna, "t.wav", "--session", name)[0]["session"] == name
    rows = {row["name"]: row for row in json.loads(run(anna, "sessions", "--json").stdout)}
    assert list(rows) == ["other", "talk"] and rows["talk"]["model"] == "nano"
    assert [line.split()[0] for line in run(anna, "sessions").stdout.splitlines()] == ["other", "talk"]
    run(anna, "sessions", "forget", "talk")
    assert "no session" in fails(anna, errors.NO_INPUT, "sessions", "forget", "talk")
    assert run(anna, "sessions").stdout.startswith("other ")
    run(anna, "sessions", "forget", "--all")
    assert json.loads(run(anna, "sessions", "--json").stdout) == []
