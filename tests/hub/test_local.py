"""`pull --from DIRECTORY`: what is here already, in any layout, without the network."""

import json
import shutil

import pytest
from pulling import FIXTURES, Home, kitten_files, tiny_tokenizer

from misod.weights import sources
from protocol import errors


@pytest.fixture
def home(tmp_path):
    """No hub: a connection would have nowhere to go."""
    return Home(tmp_path / "home")


@pytest.fixture
def directory(tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "miso_tiny" / "v99_fp32", source, ignore=shutil.ignore_patterns("*.npz"))
    (source / "codec").mkdir()
    for name in ("model.safetensors", "config.json"):
        shutil.copy(FIXTURES / "mimi_tiny" / name, source / "codec" / name)
    (source / "tokenizer.json").write_bytes(tiny_tokenizer())
    return source


def test_it_makes_the_model_and_leaves_the_directory_as_it_was(home, directory):
    before = {p.name: p.stat().st_mtime_ns for p in directory.rglob("*")}
    done = home.pull("--from", str(directory), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["source"] == str(directory)
    assert {p.name: p.stat().st_mtime_ns for p in directory.rglob("*")} == before
    assert not home.downloads.exists()
    assert home.misod("verify", "miso").returncode == 0


def test_a_model_that_misod_made_can_be_made_again_in_another_precision(home, directory, tmp_path):
    assert home.pull("-q", "--from", str(directory)).returncode == 0
    made = shutil.copytree(home.models / "miso", tmp_path / "made")
    assert home.pull("-q", "--from", str(made), "--precision", "bf16").returncode == 0
    assert json.loads(home.misod("show", "miso", "--json").stdout)["precision"] == "bf16"


@pytest.mark.parametrize(
    ("gone", "named"),
    [
        ("model.safetensors", "model.safetensors"),
        ("codec/model.safetensors", f"{sources.CODEC_FILE} (of {sources.CODEC.repo})"),
        ("tokenizer.json", f"tokenizer.json (of {sources.TOKENIZER.repo})"),
    ],
)
def test_what_a_directory_lacks_is_named(home, directory, gone, named):
    (directory / gone).unlink()
    line = home.refused(errors.NO_INPUT, "--from", str(directory))
    assert f"lacks {named}: put it there" in line


def test_a_checkpoint_of_other_dims_is_one_line_that_names_tensors(home, directory):
    config = json.loads((directory / "config.json").read_text())
    config["backbone"]["num_layers"] += 1
    (directory / "config.json").write_text(json.dumps(config))
    line = home.refused(errors.BAD_DATA, "--from", str(directory))
    assert "missing backbone.layers.3.attn.q_proj.weight" in line


@pytest.mark.parametrize("name", ["/nowhere", "./nowhere", "~nobody-of-that-name/x"])
def test_a_directory_that_is_not_there(home, name):
    assert f"--from {name}: there is no such directory" in home.refused(errors.NO_INPUT, "--from", name)


def test_a_name_that_is_longer_than_any(home):
    assert "File name too long" in home.refused(errors.IO_ERROR, "--from", "/" + "a" * 300)


def test_a_file_in_place_of_its_directory(home, directory):
    line = home.refused(errors.NO_INPUT, "--from", str(directory / "model.safetensors"))
    assert "give the directory that it is in" in line


def test_too_little_room_is_said_before_anything_is_written(home, directory):
    line = home.refused(errors.IO_ERROR, "--from", str(directory), PULL_FREE_BYTES="1000")
    assert "are free: free" in line


# ---- kitten


@pytest.fixture
def kitten(tmp_path):
    """As `hf download` leaves it, and the codec beside it."""
    directory = tmp_path / "kitten-tts-2"
    for name, data in (kitten_files(tmp_path) | {CODEC: b"codec" * 4000}).items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    return directory


CODEC = sources.KITTEN_CODEC.wanted[0]


def kitten_refused(home, code: int, directory, *, plain: bool = False) -> str:
    """`plain`: with the true codec's digest."""
    done = home.misod(*["-m", "misod"] * plain, "pull", "-q", "kitten", "--from", str(directory), plain=plain)
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert done.stderr.startswith("misod: ") and done.stderr.count("\n") == 1, done.stderr
    assert not [path for path in home.models.iterdir() if path.is_dir()]
    return done.stderr


def test_kitten_is_made_of_a_directory_under_a_manifest_and_of_copies(home, kitten):
    done = home.misod("pull", "kitten", "--json", "--from", str(kitten))
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["source"], told["pulled"]) == (str(kitten), True)
    (kitten / "voices" / "bruno.npz").write_bytes(b"another")
    kept = home.contents("kitten")
    assert kept[f"codec/{CODEC}"] == b"codec" * 4000 and kept["voices/bruno.npz"] == b"bruno"
    assert "lm/model.safetensors" not in kept and (kitten / CODEC).exists()
    assert "all 10 files are as they were made" in home.misod("verify", "kitten").stderr


def test_kitten_put_here_by_hand_gets_its_manifest_where_it_is(home, kitten):
    home.models.mkdir(parents=True)
    by_hand = kitten.rename(home.models / "kitten")
    assert home.misod("verify", "kitten").returncode == errors.BAD_DATA
    assert home.misod("pull", "-q", "kitten", "--from", str(by_hand)).returncode == 0
    assert home.misod("verify", "kitten").returncode == 0


@pytest.mark.parametrize("gone", ["lm/tokenizer.json", "voices", "speaker", CODEC])
def test_what_a_directory_of_kitten_lacks_is_named(home, kitten, gone):
    path = kitten / gone
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    named = {"voices": "voices/*", "speaker": "speaker/*", CODEC: f"{CODEC} (of {sources.KITTEN_CODEC.repo})"}
    assert f"lacks {named.get(gone, gone)}: put it there" in kitten_refused(home, errors.NO_INPUT, kitten)


def test_a_kitten_that_is_none_is_refused_before_it_is_copied_and_leaves_nothing(home, kitten):
    weights, config = kitten / "lm" / "model-ternary.safetensors", kitten / "config.json"
    whole, packed = weights.read_bytes(), config.read_bytes()
    weights.write_bytes(whole[:-1])
    assert str(weights) in kitten_refused(home, errors.BAD_DATA, kitten)
    weights.write_bytes(whole)
    config.write_text('{"type": "KITTEN2", "default_weights": "full"}')
    assert f"{config} is not that of a KittenTTS 2 with packed weights" in kitten_refused(home, errors.BAD_DATA, kitten)
    config.write_bytes(packed)
    assert f"{kitten / CODEC} is not the codec" in kitten_refused(home, errors.BAD_DATA, kitten, plain=True)
    done = home.misod("pull", "-q", "kitten", "--from", str(kitten), env=home.environ | {"PULL_FREE_BYTES": "1000"})
    assert done.returncode == errors.IO_ERROR and "kitten in ternary needs 35 KB" in done.stderr
