"""A model directory is whole or it is refused, the file named, before any memory is taken; a swap is all or nothing."""

import json
import os
import shutil
from pathlib import Path

import mlx.core as mx
import pytest

from misod.engine import ModelError
from misod.miso.engine import MisoEngine
from misod.weights import manifest as m
from misod.weights.manifest import MANIFEST, VERIFIED, check, describe, mend, new_directory, write_manifest
from misod.weights.models import bundled

ORIGIN = {"repo": "fixture", "revision": None, "licence": None}
FILES = sorted(path.relative_to(bundled()).as_posix() for path in bundled().rglob("*.*"))
COVERED = [name for name in FILES if name not in (MANIFEST, VERIFIED)]


@pytest.fixture
def model(tmp_path) -> Path:
    return Path(shutil.copytree(bundled(), tmp_path / "models" / "mine"))


def test_the_bundled_voice_is_sealed():
    assert sorted(check(bundled()).files) == COVERED, "after a change run `python -m training.seal misod/miso/nano`"


@pytest.mark.parametrize("name", COVERED)
@pytest.mark.parametrize("where", [0.0, 0.5, 1.0])
def test_one_flipped_byte_in_any_file_is_refused_by_name_before_memory_is_taken(model, name, where, monkeypatch):
    path = model / name
    data = bytearray(path.read_bytes())
    data[int(where * (len(data) - 1))] ^= 1
    path.write_bytes(data)
    monkeypatch.setattr(mx, "load", lambda *_: pytest.fail("weights were read"))
    with pytest.raises(ModelError, match="sha256 differs") as error:
        MisoEngine.open("mine", model, max_rows=1)
    assert str(error.value).startswith(f"{path}: ") and "\n" not in str(error.value)


@pytest.mark.parametrize("name", COVERED)
def test_a_missing_or_longer_file_is_refused_by_name(model, name):
    (model / name).write_bytes((model / name).read_bytes() + b"\0")
    with pytest.raises(ValueError, match=f"^{model / name}: .* bytes, should be"):
        check(model)
    (model / name).unlink()
    with pytest.raises(ValueError, match=f"^{model / name}: No such file"):
        check(model)


def test_a_directory_without_a_manifest_never_loads(model):
    (model / MANIFEST).unlink()
    with pytest.raises(ModelError, match=r"manifest\.json: missing"):
        MisoEngine.open("mine", model, max_rows=1)


def edited(change) -> str:
    raw = json.loads((bundled() / MANIFEST).read_text())
    change(raw)
    return json.dumps(raw)


def set_file(name: str, **entry):
    return lambda raw: raw["files"].update({name: {"bytes": 1, "sha256": "0" * 64} | entry})


BROKEN = {
    "not json": "{",
    "a list": "[]",
    "deep": "[" * 100_000,
    "no files": edited(lambda raw: raw.pop("files")),
    "no weights": edited(lambda raw: raw["files"].pop("model.safetensors")),
    "no tokenizer": edited(lambda raw: raw["files"].pop("tokenizer.json")),
    "no codec": edited(lambda raw: raw["files"].pop("codec/model.safetensors")),
    "above": edited(set_file("../else")),
    "absolute": edited(set_file("/etc/passwd")),
    "itself": edited(set_file(MANIFEST)),
    "negative": edited(set_file("more", bytes=-1)),
    "bool": edited(set_file("more", bytes=True)),
    "short digest": edited(set_file("more", sha256="00")),
    "no digest": edited(lambda raw: raw["files"]["tokenizer.json"].pop("sha256")),
}


@pytest.mark.parametrize("raw", BROKEN.values(), ids=BROKEN.keys())
def test_a_manifest_that_is_none_is_refused_by_name(model, raw):
    (model / MANIFEST).write_text(raw)
    with pytest.raises(ValueError, match=rf"^{model / MANIFEST}: ") as error:
        check(model)
    assert "\n" not in str(error.value)


def test_a_shard_that_the_manifest_does_not_name_is_not_loaded(model):
    shutil.copy(model / "codec" / "model.safetensors", model / "model-00002-of-00002.safetensors")
    engine = MisoEngine.open("mine", model, max_rows=1)
    assert engine.info.digest == check(model).digest
    engine.close()


def test_the_digest_is_that_of_the_weights_and_of_nothing_else(model):
    before = check(model).digest
    (model / "MODEL_CARD.md").write_text("Another card.\n")
    write_manifest(model, describe(model, "mine", "q8", ORIGIN, "a test"))
    assert check(model).digest == before == check(bundled()).digest
    data = bytearray((model / "codec" / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (model / "codec" / "model.safetensors").write_bytes(data)
    write_manifest(model, describe(model, "mine", "q8", ORIGIN, "a test"))
    assert check(model).digest != before


class Hashed(list):
    """What was hashed, by name."""

    def __init__(self, monkeypatch):
        super().__init__()
        real = m.sha256_of
        monkeypatch.setattr(m, "sha256_of", lambda path, _: (self.append(path.name), real(path))[1])

    def take(self) -> list[str]:
        taken = sorted(self)
        self.clear()
        return taken


def test_what_was_seen_to_be_right_is_not_hashed_again_until_its_stat_differs(model, monkeypatch):
    monkeypatch.setattr(m, "SMALL_BYTES", 0)
    hashed = Hashed(monkeypatch)
    check(model)
    assert hashed.take() == sorted(Path(name).name for name in COVERED)
    check(model)
    assert hashed.take() == []
    os.utime(model / "tokenizer.json", ns=(1, 1))
    check(model)
    assert hashed.take() == ["tokenizer.json"]
    check(model, anew=True)
    assert len(hashed.take()) == len(COVERED)


@pytest.mark.parametrize("cache", ["[]", "{", "3", '{"tokenizer.json": 3}', '{"tokenizer.json": {"bytes": true}}'])
def test_a_cache_that_is_none_only_costs_time(model, monkeypatch, cache):
    monkeypatch.setattr(m, "SMALL_BYTES", 0)
    (model / VERIFIED).write_text(cache)
    hashed = Hashed(monkeypatch)
    check(model)
    assert len(hashed.take()) == len(COVERED)
    assert json.loads((model / VERIFIED).read_text()).keys() == set(COVERED)


def test_a_small_model_is_hashed_at_each_load_and_leaves_no_cache(model):
    check(model)
    assert not (model / VERIFIED).exists()


def test_a_cache_that_cannot_be_written_is_done_without(model, monkeypatch):
    monkeypatch.setattr(m, "SMALL_BYTES", 0)
    (model / VERIFIED).mkdir()  # stands for a directory that is not ours: root may write everywhere
    check(model)
    assert [path.name for path in model.glob(".*")] == []


# ---- putting a directory in place


def fill(folder: Path, text: str) -> None:
    shutil.copytree(bundled(), folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(MANIFEST, VERIFIED))
    (folder / "MODEL_CARD.md").write_text(text)
    write_manifest(folder, describe(folder, "mine", "q8", ORIGIN, "a test"))


def card(models: Path) -> str:
    return (models / "mine" / "MODEL_CARD.md").read_text()


def test_a_new_directory_takes_the_old_ones_place_at_the_end(tmp_path):
    for text in ("one", "two"):
        with new_directory(tmp_path, "mine") as folder:
            fill(folder, text)
            assert not (tmp_path / "mine").exists() or card(tmp_path) == "one"
        assert card(tmp_path) == text and check(tmp_path / "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"]


def test_a_failure_leaves_the_old_one_and_nothing_else(tmp_path):
    with new_directory(tmp_path, "mine") as folder:
        fill(folder, "one")
    with pytest.raises(OSError, match="No space"), new_directory(tmp_path, "mine") as folder:
        fill(folder, "two")
        raise OSError(28, "No space left on device")
    with pytest.raises(ValueError, match=r"manifest\.json: missing"), new_directory(tmp_path, "mine") as folder:
        (folder / "config.json").write_text("{}")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine"] and card(tmp_path) == "one"


@pytest.mark.parametrize("killed_after", ["first rename", "second rename"])
def test_a_replacement_killed_between_its_renames_is_mended_by_the_next_look(tmp_path, killed_after):
    with new_directory(tmp_path, "mine") as folder:
        fill(folder, "one")
    (tmp_path / "mine").rename(tmp_path / ".mine.old")
    if killed_after == "second rename":
        (tmp_path / "mine").mkdir()
        fill(tmp_path / "mine", "two")
    else:
        (tmp_path / ".mine.partial").mkdir()
    mend(tmp_path)
    assert card(tmp_path) == ("one" if killed_after == "first rename" else "two")
    assert not (tmp_path / ".mine.old").exists()


def test_a_look_in_the_middle_of_a_replacement_does_not_stop_it(tmp_path, monkeypatch):
    with new_directory(tmp_path, "mine") as folder:
        fill(folder, "one")
    moved, looks = m._moved, [mend]

    def look_first(partial, target):
        for look in looks:
            look(tmp_path)
        looks.clear()
        return moved(partial, target)

    monkeypatch.setattr(m, "_moved", look_first)
    with new_directory(tmp_path, "mine") as folder:
        fill(folder, "two")
        (tmp_path / "mine").rename(tmp_path / ".mine.old")
    assert card(tmp_path) == "two"


def test_there_is_nothing_to_mend_where_there_are_no_models(tmp_path):
    mend(tmp_path / "models")
    assert not (tmp_path / "models").exists()
