"""A conversion is right, repeatable and whole, or it leaves nothing that loads; a wrong source is one line."""

import json
import random
import shutil
import signal
import subprocess
import sys
import tracemalloc
from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest

import misod.weights.convert as c
from misod.miso.load import load_model, read_config
from misod.weights.budget import PRECISIONS, disk_bytes
from misod.weights.check import read_headers
from misod.weights.convert import Parts, convert, output_bytes
from misod.weights.manifest import check, mend
from misod.weights.plan import plan
from tests.weights.conftest import TINY, write_mlx_audio

ORIGIN = {"repo": "fixture", "revision": "1", "licence": "none"}
# Of a tensor's own size, at most. In bf16 a norm's factors, which have bits of their own, are in what reads it.
ERRORS = {"q4-d3": 0.25, "q4": 0.12, "mixed": 0.12, "q8": 0.008, "bf16": 0.003}


def made(parts: Parts, models, precision: str = "q8", name: str = "made", **options):
    return convert(parts, models, name, precision, origin=ORIGIN, card="A fixture.\n", **options)


def loaded(folder, room_bytes: int | None = None):
    args, _, quantization = read_config(folder / "config.json")
    return load_model([folder / name for name in check(folder).weights], args, quantization, room_bytes)


def flat(model) -> dict[str, np.ndarray]:
    from mlx.utils import tree_flatten

    return {name: np.array(w) for name, w in tree_flatten(model.parameters())}


@pytest.mark.parametrize("precision", PRECISIONS)
def test_each_precision_holds_the_sources_numbers_to_its_bits(tiny, models, precision):
    source = flat(load_model([TINY / "model.safetensors"], c.Source(TINY).args, {}))
    model = flat(loaded(made(tiny, models, precision)))
    assert model.keys() == source.keys()
    for name, w in model.items():
        error = np.sqrt(np.square(w - source[name]).mean() / np.square(source[name]).mean())
        assert error <= ERRORS[precision], name
    assert read_config(models / "made" / "config.json")[2] == plan(c.Source(TINY).args, precision)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("embeddings", ["q8", "bf16"])
def test_bytes_are_those_of_the_arithmetic(tiny, models, precision, embeddings):
    folder, args = made(tiny, models, precision, embeddings=embeddings), c.Source(TINY).args
    (path,) = (folder / name for name in check(folder).weights)
    header = min(tensor.begin for tensor in read_headers([path]).values())
    assert path.stat().st_size - header == disk_bytes(args, precision, embeddings)
    total = sum(file.stat().st_size for file in folder.rglob("*.safetensors"))
    assert output_bytes(tiny, precision, embeddings) == pytest.approx(total, abs=80_000)


def test_the_codec_is_copied_bit_for_bit(tiny, models):
    stored, copied = mx.load(str(tiny.codec)), mx.load(str(made(tiny, models) / "codec" / "model.safetensors"))
    assert stored.keys() == copied.keys() and all(mx.array_equal(stored[name], copied[name]) for name in stored)


def test_the_manifest_says_what_it_is_and_where_from(tiny, models):
    manifest = check(made(tiny, models, "mixed"))
    assert (manifest.model, manifest.precision, manifest.source) == ("miso", "mixed", ORIGIN)
    assert manifest.made_by.startswith("miso-speech ")


def test_the_same_source_gives_the_same_bytes(tiny, models, monkeypatch):
    first = check(made(tiny, models, "mixed", "first"))
    monkeypatch.setattr(c, "PACK_BYTES", 1000)
    monkeypatch.setattr("misod.weights.tensors.BLOCK_BYTES", 5000)
    assert check(made(tiny, models, "mixed", "second")).files == first.files


@pytest.mark.parametrize("precision", ["q4", "q8"])
def test_shards_hold_the_same_model(tiny, models, monkeypatch, precision):
    whole = flat(loaded(made(tiny, models, precision, "whole")))
    monkeypatch.setattr(c, "SHARD_BYTES", 400_000)
    folder = made(tiny, models, precision, "parts")
    names = check(folder).weights
    assert len(names) > 1 and names[0] == f"model-00001-of-{len(names):05}.safetensors"
    assert all((folder / name).stat().st_size < 430_000 for name in names)
    parts = flat(loaded(folder))
    assert parts.keys() == whole.keys() and all((parts[name] == whole[name]).all() for name in whole)
    with pytest.raises(ValueError, match=rf"^{folder}\S*: \d+ tensors .*missing"):
        args, _, quantization = read_config(folder / "config.json")
        load_model([folder / name for name in names if name != names[1]], args, quantization)


def test_8_bit_weights_of_mlx_audio_are_taken_as_they_are_for_q8(tiny, models, tmp_path):
    source = write_mlx_audio(TINY, tmp_path / "audio", bits=8)
    folder = made(replace(tiny, weights=source), models, "q8")
    theirs, ours = mx.load(str(source / "model.safetensors")), mx.load(str(folder / "model.safetensors"))
    pairs = {
        "projection": "model.projection",
        "decoder.layers.1.attn.output_proj": "model.decoder.layers.1.self_attn.o_proj",
    }
    for name, spelled in pairs.items():
        for part in ("weight", "scales", "biases"):
            assert mx.array_equal(ours[f"{name}.{part}"], theirs[f"{spelled}.{part}"])
    assert ours["audio_head.weight"].shape == (31, 99, 16), "a stack that mlx-audio leaves dense"


@pytest.mark.parametrize("precision", ["q4", "bf16"])
def test_8_bit_weights_are_unpacked_for_other_precisions(tiny, models, tmp_path, precision):
    source = write_mlx_audio(TINY, tmp_path / "audio", bits=8)
    converted = flat(loaded(made(replace(tiny, weights=source), models, precision)))
    direct = flat(loaded(made(tiny, models, precision, "direct")))
    for name, w in converted.items():
        scale = np.sqrt(np.square(direct[name]).mean())
        assert np.sqrt(np.square(w - direct[name]).mean()) <= (0.06 if precision == "q4" else 0.012) * scale, name


def test_a_model_directory_is_a_source_too(tiny, models):
    q8 = made(tiny, models, "q8", "q8")
    parts = Parts(q8, q8 / "codec" / "model.safetensors", q8 / "tokenizer.json")
    assert check(made(parts, models, "q8", "again")).files == check(q8).files
    q4 = flat(loaded(made(parts, models, "q4")))
    assert q4["audio_head"].shape == (31, 64, 99)


def test_progress_ends_at_what_was_announced(tiny, models):
    seen = []
    made(tiny, models, count=seen.append)
    assert len(seen) > 20 and min(seen) > 0
    assert sum(seen) == output_bytes(tiny, "q8")


def test_a_conversion_holds_a_few_blocks_and_not_the_checkpoint(middling_source, models, monkeypatch):
    monkeypatch.setattr("misod.weights.tensors.BLOCK_BYTES", 4 << 20)
    source = middling_source
    parts = Parts(source, source / "codec" / "model.safetensors", source / "tokenizer.json")
    for precision in ("q4", "bf16"):
        tracemalloc.start()  # counts what numpy and file reads take
        made(parts, models, precision)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 40 << 20, "a block as read and as fp32, and the scales and biases of one tensor"
    assert (source / "model.safetensors").stat().st_size > 180 << 20


# ---- sources that are not what they should be


def edited(tmp_path, change) -> Parts:
    folder = tmp_path / "source"
    shutil.copytree(TINY, folder)
    weights = mx.load(str(TINY / "model.safetensors"))
    change(weights)
    mx.save_safetensors(str(folder / "model.safetensors"), weights)
    return folder


def not_a_number(weights) -> None:
    weights["backbone.layers.1.mlp.w2.weight"][3, 5] = float("nan")


WRONG = {
    "missing": (lambda w: w.pop("projection.weight"), r"missing projection\.weight \[64, 96\]"),
    "extra": (lambda w: w.update(more=mx.zeros((2,))), r"extra more \[2\]"),
    "misshapen": (lambda w: w.update({"audio_head": mx.zeros((31, 64, 98))}), r"misshapen audio_head .*\[31, 64, 99\]"),
    "wrong type": (lambda w: w.update({"projection.weight": mx.zeros((64, 96), mx.int32)}), r"wrong type projection"),
    "not finite": (not_a_number, r"backbone\.layers\.1\.mlp\.w2: not all its values are finite"),
    "two spellings": (
        lambda w: w.update({"model.projection.weight": mx.zeros((64, 96))}),
        r"projection\.weight is in it in two spellings",
    ),
    "scales alone": (lambda w: w.update({"more.scales": mx.zeros((2,))}), r"extra more\.scales"),
}


@pytest.mark.parametrize(("change", "words"), WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("precision", ["q4", "bf16"])
def test_a_source_with_a_wrong_tensor_is_one_line_and_leaves_nothing(tiny, models, tmp_path, change, words, precision):
    source = edited(tmp_path, change)
    with pytest.raises(ValueError, match=words) as error:
        made(replace(tiny, weights=source), models, precision)
    assert str(error.value).startswith(str(source)) and "\n" not in str(error.value)
    assert list(models.iterdir()) == []


@pytest.mark.parametrize("part", ["weights", "codec", "tokenizer"])
def test_a_part_that_is_cut_short_is_named(tiny, models, tmp_path, part):
    path = tmp_path / "cut"
    whole = TINY / "model.safetensors" if part == "weights" else getattr(tiny, part)
    path.mkdir()
    for beside in whole.parent.glob("config.json"):
        shutil.copy(beside, path)
    cut = path / whole.name
    cut.write_bytes(whole.read_bytes()[:-100])
    with pytest.raises(ValueError, match=f"^{cut}: "):
        made(replace(tiny, **{part: cut}), models)
    assert list(models.iterdir()) == []


def test_a_folder_without_weights_says_what_it_lacks(tiny, models, tmp_path):
    with pytest.raises(ValueError, match=r"no model\.safetensors"):
        made(replace(tiny, weights=tmp_path / "models"), models)


def test_a_full_disk_leaves_the_old_model_and_nothing_else(tiny, models, monkeypatch):
    made(tiny, models, "q8")
    before = check(models / "made")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("misod.weights.tensors.os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        made(tiny, models, "q4")
    assert [path.name for path in models.iterdir()] == ["made"] and check(models / "made") == before


# ---- kill -9

CHILD = """
import json, sys
from pathlib import Path
from misod.weights.convert import Parts, convert, output_bytes
source, codec, tokenizer, models, kill_at = sys.argv[1:]
origin = {"repo": "fixture", "revision": "1", "licence": "none"}
parts = Parts(Path(source), Path(codec), Path(tokenizer))
done, total = 0, output_bytes(parts, "q4")
def count(written):
    global done
    done += written
    print(done / total, flush=True)
    if done / total >= float(kill_at): sys.stdin.read()
convert(parts, Path(models), "made", "q4", origin=origin, card="A fixture.\\n", count=count)
"""


def killed_at(parts: Parts, models, fraction: float) -> None:
    """A conversion in a process of its own, killed once that share of its bytes is written."""
    arguments = [str(part) for part in (parts.weights, parts.codec, parts.tokenizer, models, fraction)]
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    for line in child.stdout:
        if float(line) >= fraction:
            break
    child.kill()
    assert child.wait(timeout=60) == -signal.SIGKILL
    child.stdin.close()
    child.stdout.close()


def test_a_conversion_killed_at_20_points_leaves_nothing_that_loads_and_the_next_is_as_if_it_never_was(tiny, models):
    whole = check(made(tiny, models.parent / "undisturbed", "q4")).files
    random.seed(4)
    for fraction in sorted(random.uniform(0, 1) for _ in range(20)):
        killed_at(tiny, models, fraction)
        assert not (models / "made").exists()
        assert [path.name for path in models.iterdir()] == [".made.partial"]
    assert check(made(tiny, models, "q4")).files == whole
    assert [path.name for path in models.iterdir()] == ["made"]


def test_a_replacement_that_is_killed_leaves_the_old_model(tiny, models):
    old = check(made(tiny, models, "q8"))
    for fraction in (0.1, 0.9, 1.0):
        killed_at(tiny, models, fraction)
        mend(models)
        assert check(models / "made") == old
    json.loads((models / "made" / "config.json").read_text())
