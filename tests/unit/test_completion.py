"""Tab, in the shells themselves where they are here; and a verb that is nearly right."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from misoctl import completion, handed
from misoctl.cli import cli
from misod.config import KNOWN
from misod.voices import SUFFIX
from misod.weights.models import bundled

# what a shell is told to do with: the script, the words up to the cursor, the last of them to be completed
SHELLS = {
    "bash": 'source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))\n'
    '_misoctl_completion misoctl; printf "%s\\n" "${COMPREPLY[@]}"',
    "zsh": "compdef() {}; _describe() { print -l -- ${(P)3//:*/} }; compadd() { print -l -- ${(P)@[-1]} }\n"
    '_path_files() { print files }; script=$1; shift; words=("$@"); CURRENT=$#; source $script; _misoctl_completion',
    "fish": 'source $argv[1]; set line (string join " " -- $argv[2..-2])" $argv[-1]"; complete -C $line',
}


@pytest.fixture
def home(tmp_path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def filled(home):
    for voice in ("anna", "ann", "bob", ".left"):
        (home / "voices" / f"{voice}.safetensors").parent.mkdir(parents=True, exist_ok=True)
        (home / "voices" / f"{voice}.safetensors").touch()
    for model in ("miso", "mine", ".partial"):
        (home / "models" / model).mkdir(parents=True)
    return home


def environ(home: Path, **more: str) -> dict:
    return os.environ | {"MISO_HOME": str(home)} | more


def offered(home: Path, *words: str) -> list[str]:
    """For the last of `words`."""
    asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1), completion.VARIABLE: "bash_complete"}
    done = subprocess.run(
        [sys.executable, "-m", "misoctl"],
        env=environ(home, **asked),
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert not done.stderr
    return done.stdout.split()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        ("say -v an", ["plain,ann", "plain,anna"]),
        ("forget b", ["plain,bob"]),
        ("voices export ann", ["plain,ann", "plain,anna"]),
        ("load mi", ["plain,mine", "plain,miso"]),
        ("say --model n", ["plain,nano"]),
        ("pull m", ["plain,miso"]),
        ("config set max_", ["plain,max_requests", "plain,max_rows"]),
        ("say -f let", ["file,let"]),
        ("say --stems t", ["dir,t"]),
        ("learn anna cl", ["file,cl"]),
        ("stat", ["plain,status"]),
        ("service un", ["plain,uninstall"]),
        ("say --preset e", ["plain,expressive"]),
        ("completion z", ["plain,zsh"]),
    ],
)
def test_each_place_offers_what_fits_there(filled, words, names):
    assert offered(filled, "misoctl", *words.split()) == names


@pytest.mark.parametrize("words", ["say -v x", "say -v ? --se", "say -v ? -v", "--version sa", "load x"])
def test_tab_asks_no_daemon_and_makes_no_file(home, words):
    offered(home, "misoctl", *words.split())
    assert not home.exists()


@pytest.mark.parametrize("shell", SHELLS)
def test_the_shell_itself_completes(filled, tmp_path, shell):
    if not shutil.which(shell):
        pytest.skip(f"no {shell} here")
    bin_directory = tmp_path / "bin"
    bin_directory.mkdir()
    program = bin_directory / "misoctl"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m misoctl "$@"\n')
    program.chmod(0o755)
    env = environ(filled, PATH=f"{bin_directory}:{os.environ['PATH']}", HOME=str(tmp_path))
    script = tmp_path / "script"
    with script.open("w") as file:
        subprocess.run([program, "completion", shell], env=env, stdout=file, timeout=60, check=True)
    for words, expected in ((["say", "-v", "an"], {"ann", "anna"}), (["unl"], {"unload"})):
        flags = ["--norc"] if shell == "bash" else ["-f"] if shell == "zsh" else ["--no-config"]
        ends = [shell] if shell != "fish" else []  # $0
        command = [shell, *flags, "-c", SHELLS[shell], *ends, str(script), "misoctl", *words]
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
        assert {line.split("\t")[0] for line in done.stdout.splitlines() if line} == expected, done.stderr


def test_the_names_that_misoctl_knows_by_heart_are_misods():
    assert tuple(KNOWN) == handed.SETTINGS
    assert bundled().name == completion.BUNDLED
    assert completion.SUFFIX == SUFFIX


def test_every_place_in_the_table_is_one():
    def places(command, path):
        yield from (f"{path} {param.name}" for param in command.params)
        for name, verb in getattr(command, "commands", {}).items():
            yield from places(verb, f"{path} {name}")

    there = set(places(cli, "misoctl"))
    assert there >= set(completion.PLACES)
    assert {place.split()[-1] for place in there} >= {*completion.FILES, *completion.FOLDERS, *completion.NAMES}


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["stauts"], "No such command 'stauts': did you mean status?"),
        (["speak"], "did you mean say?"),
        (["xyzzy"], "there is "),
        (["config", "pth"], "did you mean path?"),
        (["service", "instal"], "did you mean install?"),
        (["say", "--sede", "3"], "--seed"),
    ],
)
def test_a_near_miss_is_named(capsys, words, line):
    with pytest.raises(SystemExit) as ended:
        cli.main(words)
    said = capsys.readouterr().err
    assert ended.value.code == 2 and line in said and said.count("\n") == 1
