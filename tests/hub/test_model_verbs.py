"""list, show, rm, verify: what they say, and how they end. Through misoctl, which becomes misod."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading

import click
import pytest
from pulling import Home

from misoctl.handed import MODEL_VERBS as THEIRS
from misod.commands import MODEL_VERBS as OURS
from misod.engine import model_directory
from misod.weights import lock, models
from protocol import errors


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


@pytest.fixture
def mine(home):
    """A second model: nano's files under another name."""
    shutil.copytree(models.bundled(), home.models / "mine")
    return home.models / "mine"


def misoctl(home, *arguments: str, **more) -> subprocess.CompletedProcess:
    done = home.misod("-m", "misoctl", *arguments, plain=True, **more)
    assert done.returncode or not done.stderr or "misoctl: " in done.stderr
    return done


def one_line(done, code: int) -> str:
    assert done.returncode == code, done.stderr
    assert done.stderr.count("\n") == 1 and not done.stdout
    return done.stderr


# ---- both sides


@pytest.mark.parametrize(
    ("ours", "theirs"),
    list(zip([verb for verb in OURS if not verb.hidden], THEIRS, strict=True)),
    ids=lambda verb: verb.name,
)
def test_misoctl_declares_what_misod_takes(ours: click.Command, theirs: click.Command):
    def declared(verb: click.Command) -> list:
        return [(p.name, p.opts, p.nargs, p.required, p.type.to_info_dict(), p.default) for p in verb.params]

    assert ours.name == theirs.name
    assert declared(ours) == declared(theirs)


@pytest.mark.parametrize("verb", THEIRS, ids=lambda verb: verb.name)
def test_each_verbs_help_has_an_example_and_says_what_each_option_does(home, verb):
    done = misoctl(home, verb.name, "--help")
    assert done.returncode == 0 and f"  misoctl {verb.name}" in done.stdout
    assert all(option.help for option in verb.params if isinstance(option, click.Option))


WRONG = [("list", "--jsn"), ("show",), ("pull", "--precision", "q5"), ("verify", "a", "b")]


@pytest.mark.parametrize("arguments", WRONG, ids=" ".join)
def test_a_wrong_command_line_is_one_line(home, arguments):
    assert "--help`" in one_line(misoctl(home, *arguments), errors.USAGE)
    assert "--help`" in one_line(home.misod(*arguments), errors.USAGE)


def test_a_misspelt_model_is_told_by_misoctl_itself(home):
    line = one_line(misoctl(home, "pull", "misso"), errors.USAGE)
    assert line.startswith("misoctl: ") and "did you mean miso?" in line


# ---- list


def test_list_names_what_is_here_and_marks_the_one_that_speaks(home, mine):
    rows = misoctl(home, "list").stdout.splitlines()
    assert [row.split()[:3] for row in rows] == [["*", "nano", "mixed"], ["mine", "mixed", "21"]]
    said = json.loads(misoctl(home, "list", "--json").stdout)
    assert [(m["name"], m["default"], m["bundled"], m["precision"]) for m in said] == [
        ("nano", True, True, "mixed"),
        ("mine", False, False, "mixed"),
    ]
    assert said[0]["bytes"] == said[1]["bytes"] > 19e6 and said[1]["directory"] == str(mine)


def test_the_default_is_miso_where_it_is_here_or_what_the_settings_say(home, mine):
    def default(**environ) -> str:
        listed = json.loads(misoctl(home, "list", "--json", env=home.environ | environ).stdout)
        return next(m["name"] for m in listed if m["default"])

    assert default() == "nano" == model_directory("auto", home.models).name
    shutil.copytree(mine, home.models / "miso")
    assert default() == "miso" == model_directory("auto", home.models).name
    assert default(MISO_MODEL="mine") == "mine"


def test_a_directory_that_is_no_model_is_listed_as_damaged_and_the_rest_as_ever(home, mine):
    (home.models / "half").mkdir()
    (mine / "manifest.json").write_text("{")
    rows = misoctl(home, "list").stdout.splitlines()
    assert "nano" in rows[0]
    assert "half" in rows[1] and "damaged: " in rows[1] and "manifest.json: missing" in rows[1]
    assert "mine" in rows[2] and "not a model's manifest" in rows[2]


def test_what_a_pull_left_is_no_model(home, mine):
    for name in (".miso.partial", ".miso.removed"):
        shutil.copytree(mine, home.models / name)
    assert [m["name"] for m in json.loads(misoctl(home, "list", "--json").stdout)] == ["nano", "mine"]


def test_a_replacement_killed_between_its_renames_is_mended_but_not_while_a_pull_runs(home, mine):
    mine.rename(home.models / ".mine.old")
    with lock.changing(home.models):
        assert len(json.loads(misoctl(home, "list", "--json").stdout)) == 1
    assert len(json.loads(misoctl(home, "list", "--json").stdout)) == 2
    assert mine.exists()


def test_list_on_a_new_machine_makes_nothing(home):
    assert misoctl(home, "list").returncode == 0
    assert not home.path.exists()


def test_list_ends_when_its_reader_does(home):
    command = f"{sys.executable} -m misod list | true"
    done = subprocess.run(["bash", "-c", command], env=home.environ, capture_output=True, timeout=30, check=True)
    assert done.stderr == b""


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="a Linux device")
@pytest.mark.parametrize("arguments", [("list",), ("show", "nano"), ("list", "--json")])
def test_a_full_disk_under_standard_output_is_one_line(home, arguments):
    with open("/dev/full", "w") as full:
        done = misoctl(home, *arguments, stdout=full)
    assert done.returncode == errors.IO_ERROR
    assert done.stderr == "misoctl: standard output: No space left on device\n"


# ---- show


def test_show_says_what_a_model_is_made_of(home):
    said = misoctl(home, "show", "nano").stdout
    for words in (
        "precision   mixed",
        "270 tensors in model.safetensors",
        "in 6 bits, groups of 64: 56 of the backbone",
        "Apache-2.0",
    ):
        assert words in said
    detail = json.loads(misoctl(home, "show", "nano", "--json").stdout)
    assert len(detail["tensors"]) == 270 and len(detail["digest"]) == 64
    first = detail["tensors"][0]
    assert set(first) >= {"name", "type", "shape"}
    packed = next(t for t in detail["tensors"] if t["name"] == "backbone.layers.0.mlp.w1.weight")
    assert packed == {"name": packed["name"], "type": "U32", "shape": [704, 48], "bits": 6, "group_size": 64}
    assert sum(file["bytes"] for file in detail["files"].values()) == detail["bytes"]


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_a_model_that_is_not_here_is_told_with_the_nearest_name(home, mine, verb):
    assert "did you mean nano?" in one_line(misoctl(home, verb, "nanno"), errors.NO_INPUT)
    assert "there is nano, mine" in one_line(misoctl(home, verb, "xyzzy"), errors.NO_INPUT)
    assert "there is no model '../x'" in one_line(misoctl(home, verb, "../x"), errors.NO_INPUT)


def test_show_of_a_cut_file_names_it(home, mine):
    os.truncate(mine / "model.safetensors", 1000)
    assert str(mine / "model.safetensors") in one_line(misoctl(home, "show", "mine"), errors.BAD_DATA)


# ---- verify


def test_verify_reads_every_file(home, mine):
    done = misoctl(home, "verify", "mine")
    assert done.returncode == 0 and re.search(r"all \d files are as they were made, digest [0-9a-f]{12}", done.stderr)
    assert misoctl(home, "verify", "nano", "-q").stderr == ""


@pytest.mark.parametrize("name", sorted(p for p in models.manifest.read_manifest(models.bundled()).files))
def test_verify_names_the_file_with_a_flipped_byte(home, mine, name):
    data = bytearray((mine / name).read_bytes())
    data[len(data) // 2] ^= 1
    (mine / name).write_bytes(data)
    line = one_line(misoctl(home, "verify", "mine"), errors.BAD_DATA)
    assert f"{mine / name}: changed" in line and "pull the model again" in line


def test_verify_names_all_that_are_damaged(home, mine):
    (mine / "tokenizer.json").unlink()
    os.truncate(mine / "codec" / "model.safetensors", 10)
    line = one_line(misoctl(home, "verify", "mine"), errors.BAD_DATA)
    assert "tokenizer.json: No such file or directory" in line and "codec/model.safetensors: 10 bytes" in line


# ---- rm


def test_rm_removes_a_model_and_nothing_else(home, mine):
    shutil.copytree(mine, home.models / "other")
    done = misoctl(home, "rm", "mine")
    assert done.returncode == 0 and "removed mine: 21 MB are free again" in done.stderr
    assert not mine.exists() and (home.models / "other" / "manifest.json").exists()
    assert not list(home.models.glob(".mine*"))


def test_rm_takes_a_damaged_model_too(home, mine):
    (mine / "manifest.json").unlink()
    assert misoctl(home, "rm", "mine", "-q").returncode == 0
    assert not mine.exists()


def test_rm_of_a_link_leaves_what_it_leads_to(home, mine, tmp_path):
    shutil.move(mine, tmp_path / "elsewhere")
    mine.symlink_to(tmp_path / "elsewhere")
    assert misoctl(home, "rm", "mine", "-q").returncode == 0
    assert not mine.is_symlink() and (tmp_path / "elsewhere" / "manifest.json").exists()


def test_rm_nano_is_refused(home):
    assert "comes with miso and stays" in one_line(misoctl(home, "rm", "nano"), errors.USAGE)
    assert models.bundled().exists()


@pytest.mark.parametrize("name", ["mien", "../mine", ".", "..", ""])
def test_rm_of_what_is_not_there(home, mine, name):
    line = one_line(misoctl(home, "rm", name), errors.NO_INPUT)
    assert "no model" in line
    assert mine.exists()


def test_rm_while_a_pull_runs_waits_for_another_time(home, mine):
    with lock.changing(home.models):
        line = one_line(misoctl(home, "rm", "mine"), errors.TRY_AGAIN)
    assert f"pid {os.getpid()}" in line and mine.exists()


def test_a_daemon_speaks_on_with_a_model_that_was_removed(home, mine):
    """What is loaded is held by the process, not by the name."""
    daemon = subprocess.Popen(
        [sys.executable, "-m", "misod", "serve", "--model", "mine"], env=home.environ, stderr=subprocess.DEVNULL
    )
    threading.Thread(target=daemon.wait, daemon=True).start()
    try:
        speak = ["say", "--no-start", "-o", str(home.path / "a.wav"), "Hello.", "-q"]
        for _ in range(200):
            if (done := misoctl(home, *speak)).returncode != errors.UNAVAILABLE:
                break
        assert done.returncode == 0, done.stderr
        misoctl(home, "rm", "mine", "-q")
        assert misoctl(home, *speak).returncode == 0
    finally:
        daemon.kill()
