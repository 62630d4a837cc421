"""`misoctl config`: what it shows, what it writes, what of a file it leaves alone. misoctl becomes misod for it."""

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import click
import pytest

from misoctl.handed import config as theirs
from misod.commands import config as ours
from misod.config import load_settings
from protocol import errors


@pytest.fixture
def file(tmp_path) -> Path:
    return tmp_path / "home" / "config.toml"


@pytest.fixture
def config(file):
    def run(*arguments: str, **env: str) -> subprocess.CompletedProcess:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MISO_")}
        environ = kept | {"MISO_HOME": str(file.parent)} | env
        command = [sys.executable, "-m", "misoctl", "config", *arguments]
        done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
        assert "Traceback" not in done.stderr
        return done

    return run


def written(file: Path, text: str) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)


def shown(done) -> dict[str, tuple]:
    return {row["name"]: (row["value"], row["origin"]) for row in json.loads(done.stdout)}


def refused(done) -> str:
    assert done.returncode == errors.BAD_CONFIG and done.stderr.count("\n") == 1 and not done.stdout
    return done.stderr


@pytest.mark.parametrize("arguments", ["config", "config set max_rows 2", "show nano", "normalize 5"])
def test_what_is_told_of_a_verb_that_is_handed_over_begins_with_the_program_that_was_typed(arguments):
    command = f"{sys.executable} -m misoctl {arguments} >&-"
    environ = os.environ | {"MISO_HOME": "~nobody-of-that-name/x"}
    done = subprocess.run(["sh", "-c", command], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode and done.stderr.startswith("misoctl: ") and done.stderr.count("\n") == 1


def test_misoctl_declares_what_misod_takes():
    def declared(group: click.Group) -> dict:
        return {
            name: [(p.name, p.opts, p.nargs, p.required, p.default) for p in verb.params]
            for name, verb in {"": group, **group.commands}.items()
        }

    assert declared(ours) == declared(theirs)


def test_each_value_is_shown_with_its_origin(config, file):
    written(file, "max_rows = 2\ndrain_s = 3\n")
    rows = shown(config("--json", MISO_DRAIN_S="4"))
    assert rows["max_rows"] == (2, str(file))
    assert rows["drain_s"] == (4.0, "MISO_DRAIN_S")
    assert rows["log_level"] == ("info", "default")
    lines = [line.split() for line in config().stdout.splitlines()]
    assert ["max_rows", "2", str(file)] in lines and len(lines) == len(rows)


def test_an_unknown_variable_is_told_with_the_near_miss(config):
    """ollama/ollama#4973: a misspelt one was ignored."""
    done = config(MISO_MAX_ROW="3", MISO_ZZZ="x")
    assert done.returncode == 0
    assert "MISO_MAX_ROW means nothing to miso; did you mean MISO_MAX_ROWS?" in done.stderr
    assert "`unset MISO_ZZZ`" in done.stderr


def test_an_unknown_key_is_told_beside_what_is_known(config, file):
    written(file, "max_row = 2\nmax_requests = 7\n")
    done = config()
    assert done.returncode == errors.BAD_CONFIG and "max_requests    7" in done.stdout
    assert "unknown setting 'max_row'; did you mean max_rows?" in done.stderr


def test_a_wrong_value_is_told(config, file):
    written(file, "max_rows = 'many'\n")
    assert "max_rows in" in refused(config())


def test_set_makes_the_file(config, file):
    assert config("set", "max_rows", "3").returncode == 0
    assert file.read_text() == "max_rows = 3\n"
    assert file.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "max_rows = 3\n"),
        ("drain_s = 1", "drain_s = 1\nmax_rows = 3\n"),
        ("max_rows = 2", "max_rows = 3"),
        (
            "# mine\n\nmax_rows=2  # for the laptop\ndrain_s = 1\n",
            "# mine\n\nmax_rows = 3  # for the laptop\ndrain_s = 1\n",
        ),
        ("# max_rows = 8\n", "# max_rows = 8\nmax_rows = 3\n"),
    ],
)
def test_set_changes_its_own_line_alone(config, file, before, after):
    written(file, before)
    assert config("set", "max_rows", "3").returncode == 0
    assert file.read_text() == after


@pytest.mark.parametrize("value", ['a"b\\é', "a # b", "  ", "line\nline", "\x7f"])
def test_text_is_kept_as_it_is_or_refused(config, file, value):
    written(file, "")
    if config("set", "model", value).returncode:
        assert file.read_text() == ""
    else:
        assert tomllib.loads(file.read_text()) == {"model": value}


@pytest.mark.parametrize("before", ['"max_rows" = 2\n', 'model = """\nmax_rows = 2\n"""\n'])
def test_a_file_that_lines_do_not_tell_apart_is_left_for_an_editor(config, file, before):
    written(file, before)
    assert "`misoctl config edit`" in refused(config("set", "max_rows", "3"))
    assert file.read_text() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("max_row", "3"), "did you mean max_rows?"),
        (("zzz", "3"), "there is model, keep_alive_s"),
        (("max_rows", "many"), "'many' is not a whole number"),
        (("max_rows", "65"), "is not within 1..64"),
        (("log_level", "loud"), "is not debug, info, warning or error"),
    ],
)
def test_set_refuses_what_misod_would(config, file, arguments, words):
    assert words in refused(config("set", *arguments))
    assert not file.exists()


def test_set_says_what_goes_before_it(config):
    assert "MISO_MAX_ROWS of this shell goes before it" in config("set", "max_rows", "3", MISO_MAX_ROWS="2").stderr


def test_a_link_stays_one(config, file, tmp_path):
    (tmp_path / "dotfiles.toml").write_text("drain_s = 1\n")
    file.parent.mkdir()
    file.symlink_to(tmp_path / "dotfiles.toml")
    assert config("set", "drain_s", "2").returncode == 0
    assert file.is_symlink() and (tmp_path / "dotfiles.toml").read_text() == "drain_s = 2.0\n"


def test_path_needs_no_file(config, file):
    assert config("path").stdout == f"{file}\n"


def editor(tmp_path: Path, script: str) -> str:
    path = tmp_path / "an editor"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return f"'{path}' --wait"


def test_edit_opens_every_setting_and_its_default_the_first_time(config, file, tmp_path):
    opened = config("edit", VISUAL=editor(tmp_path, 'test "$1" = --wait && cat "$2"'))
    assert opened.returncode == 0 and opened.stdout == file.read_text()
    assert tomllib.loads(file.read_text()) == {}
    bare = "\n".join(line.removeprefix("# ") for line in file.read_text().splitlines() if " = " in line)
    file.write_text(bare)
    assert load_settings(file, {}, {}) == load_settings(file.with_name("none"), {}, {})


def test_edit_checks_what_was_written(config, file, tmp_path):
    written(file, "max_rows = 2\n")
    done = config("edit", EDITOR=editor(tmp_path, 'echo "max_row = 3" > "$2"'), VISUAL="")
    assert "did you mean max_rows?" in refused(done)


@pytest.mark.parametrize(("name", "code"), [("none-of-that-name", errors.NO_PROGRAM), ("false", errors.FAILED)])
def test_an_editor_that_fails_is_named(config, name, code):
    done = config("edit", VISUAL=name)
    assert done.returncode == code and name in done.stderr


def test_an_editor_with_an_open_quote_is_named(config):
    assert config("edit", VISUAL="'vi").returncode == errors.NO_PROGRAM
