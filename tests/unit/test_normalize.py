"""misoctl normalize: what would be spoken, with no daemon and nothing left behind."""

import json
import os
import subprocess
import sys

import pytest

from protocol import errors


@pytest.fixture
def normalize(tmp_path):
    def run(*arguments: str, stdin: bytes = b"", program: str = "misoctl") -> subprocess.CompletedProcess:
        home = tmp_path / "home"
        command = [sys.executable, "-m", program, "normalize", *arguments]
        environ = os.environ | {"MISO_HOME": str(home)}
        done = subprocess.run(command, input=stdin, env=environ, capture_output=True, timeout=60, check=False)
        assert b"Traceback" not in done.stderr and not home.exists()
        return done

    return run


TEXT = "# Prices\nIt cost **$5.3 billion**, 🚀 and 3 km. See https://x.com/a?b."


def test_a_sentence_a_line(normalize):
    done = normalize(TEXT)
    lines = ["Prices.", "It cost five point three billion dollars, and three kilometers.", "See x dot com slash a."]
    assert done.stdout.decode().splitlines() == lines
    assert (done.returncode, done.stderr) == (errors.OK, b"")


@pytest.mark.parametrize("arguments", [["-"], ["-f", "-"], []])
def test_from_a_pipe(normalize, arguments):
    assert normalize(*arguments, stdin="\ufeffFünf 5".encode()).stdout.decode() == "Fünf five.\n"


def test_from_a_file(normalize, tmp_path):
    (tmp_path / "a.md").write_text("It is 12.")
    assert normalize("-f", str(tmp_path / "a.md")).stdout == b"It is twelve.\n"


def test_json_is_a_list_of_pieces_whose_spans_lead_to_the_original(normalize):
    pieces = json.loads(normalize("--json", TEXT).stdout)
    assert all(set(piece) == {"text", "spans", "pause_s", "unread", "sentence"} for piece in pieces)
    assert [piece["pause_s"] for piece in pieces] == [0.5, 0.0, 0.0]
    places = {p["text"][start:end]: TEXT[a:b] for p in pieces for start, end, a, b in p["spans"]}
    assert places["Prices."] == "Prices" and places["cost"] == "cost"
    assert places["x dot com slash a."].startswith("https://x.com/a?b")


def test_emoji_by_name_and_letters_for_the_bundled_voice(normalize):
    assert normalize("--emoji", "name", "Up 🚀").stdout == b"Up rocket.\n"
    assert normalize("--letters", "USA “fünf” мир").stdout == b"U S A funf.\n"


def test_a_long_sentence_of_numbers_is_one_line(normalize):
    written = ", ".join(f"{n} and {n + 1}" for n in range(10, 40, 2))
    assert normalize(written).stdout.count(b"\n") == 1


@pytest.mark.parametrize(
    ("arguments", "stdin", "code"),
    [
        (["-"], b"\xff", errors.BAD_DATA),
        (["-f", "no/such/file"], b"", errors.NO_INPUT),
        (["..."], b"", errors.USAGE),
        (["--emoji", "shout", "x"], b"", errors.USAGE),
        (["x", "-f", "y"], b"", errors.USAGE),
    ],
)
def test_what_cannot_be_read_is_one_line_and_its_exit_code(normalize, arguments, stdin, code):
    done = normalize(*arguments, stdin=stdin)
    assert (done.returncode, done.stdout, done.stderr.count(b"\n")) == (code, b"", 1)


@pytest.mark.parametrize(
    ("closed", "code", "out"),
    [("<&-", errors.OK, "It is five.\n"), (">&-", errors.IO_ERROR, ""), ("2>&-", errors.OK, None)],
)
def test_closed_standard_streams_are_no_crash(closed, code, out):
    command = f"{sys.executable} -m misoctl normalize 'It is 5' {closed}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == code and "Traceback" not in done.stderr
    assert out is None or done.stdout == out


def test_a_pipe_with_nothing_to_say_is_no_error(normalize):
    done = normalize("-", stdin=b"...")
    assert (done.returncode, done.stdout) == (errors.OK, b"")


def test_misod_normalize_says_where_its_input_is_no_utf_8(normalize):
    done = normalize(stdin=b"ab\xff", program="misod")
    assert (done.returncode, done.stdout) == (errors.BAD_DATA, b"") and b"byte 2 is 0xff" in done.stderr
