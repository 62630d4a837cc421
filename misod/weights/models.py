"""The models that are here, behind `list`, `show`, `verify` and `rm`. Reads manifests and headers; imports no mlx."""

import json
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from misod.weights import lock, manifest
from misod.weights.check import read_headers
from misod.weights.manifest import Manifest
from misod.weights.plan import Affine, read_quantization
from protocol import errors as codes
from protocol.errors import Failure

BUNDLED = "nano"
UNPULLED = "put here by hand: it speaks, and nothing tells whether it is whole; `misoctl rm` it, then pull it"


@dataclass(frozen=True)
class Entry:
    """A model that is here, or what is left of one: then `manifest` is None and `problem` says why."""

    name: str
    directory: Path
    manifest: Manifest | None
    problem: str = ""
    damaged: bool = True  # where there is a problem; False: it was put there by hand, and speaks


def bundled() -> Path:
    return Path(__file__).parents[1] / "miso" / BUNDLED


def default_name(wanted: str, models: Path) -> str:
    """The model that is spoken with where `wanted` is auto, the best that is here; else `wanted`."""
    if wanted != "auto":
        return wanted
    return "miso" if (models / "miso").is_dir() else BUNDLED


def directories(models: Path) -> dict[str, Path]:
    """Name -> directory of every model that is here, whole or not; nano first, and always the bundled one."""
    kept = sorted(p for p in models.iterdir() if p.is_dir() and not p.name.startswith(".")) if models.is_dir() else []
    return {BUNDLED: bundled()} | {p.name: p for p in kept if p.name != BUNDLED}


def entries(models: Path) -> list[Entry]:
    """All, in the same order."""
    mend(models)
    return [_entry(name, directory) for name, directory in directories(models).items()]


def mend(models: Path) -> None:
    """Unless a pull is between its two renames just now, when it is in order that no model has the name."""
    if models.is_dir() and not lock.changed_now(models):
        manifest.mend(models)


def find(models: Path, name: str) -> Entry:
    """Raises Failure with the nearest name where there is none of this one, or where it is no finished model."""
    here = {entry.name: entry for entry in entries(models)}
    if name not in here:
        raise Failure(codes.NO_INPUT, f"there is no model {name!r} here: {codes.near(name, here)}")
    if here[name].manifest is None:
        raise Failure(codes.BAD_DATA, here[name].problem)
    return here[name]


def summary(entry: Entry, default: str) -> dict:
    """One line of `list`."""
    made = entry.manifest
    return {
        "name": entry.name,
        "precision": made.precision if made else None,
        "bytes": made.bytes if made else None,
        "source": made.source.get("repo") if made else None,
        "default": entry.name == default,
        "bundled": entry.name == BUNDLED,
        "problem": entry.problem or None,
        "damaged": bool(entry.problem) and entry.damaged,
        "directory": str(entry.directory),
    }


def detail(entry: Entry, default: str) -> dict:
    """All that `show` says. Raises Failure where a file is not as it must be to say so."""
    made, directory = entry.manifest, entry.directory
    try:
        config = json.loads((directory / "config.json").read_bytes())
        quantization = read_quantization(config.get("quantization", {}))
        found = read_headers(directory / name for name in made.weights)
    except OSError as error:
        raise Failure(codes.BAD_DATA, f"{error.filename}: {error.strerror}: pull the model again") from None
    except (ValueError, AttributeError) as error:  # those of read_headers name their file
        raise Failure(codes.BAD_DATA, f"{directory}: {error}") from None
    tensors = [
        {"name": name, "type": tensor.dtype, "shape": list(tensor.shape)} | _stored_as(name, quantization)
        for name, tensor in sorted(found.items())
    ]
    return summary(entry, default) | {
        "digest": made.digest,
        "made_by": made.made_by,
        "source": dict(made.source),
        "files": {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in sorted(made.files.items())},
        "quantized": _groups(quantization, found),
        "tensors": tensors,
    }


def verify(entry: Entry, count: manifest.Counter) -> Manifest:
    """Hash every file. Raises Failure naming each that differs; bytes that were read go to `count`."""
    wrong = []
    for name, file in sorted(entry.manifest.files.items()):
        try:
            manifest.check_file(entry.directory / name, file, count=count)
        except ValueError as error:
            wrong.append(str(error))
    if wrong:
        cure = "pull the model again" if entry.name != BUNDLED else "install miso again"
        raise Failure(codes.BAD_DATA, f"{entry.name} is damaged: {', '.join(wrong)}: {cure}")
    return entry.manifest


def remove(models: Path, name: str) -> int:
    """-> the bytes that are free again. A daemon that has it loaded goes on with what it has."""
    if name == BUNDLED:
        raise Failure(codes.USAGE, f"{BUNDLED} comes with miso and stays: `pip uninstall` removes both")
    here = [entry.name for entry in entries(models) if entry.name != BUNDLED]
    directory = models / name
    if name not in here:  # also one with a slash in it
        known = codes.near(name, here) if here else "no model was pulled"
        raise Failure(codes.NO_INPUT, f"there is no model {name!r} to remove: {known}")
    with lock.changing(models):
        doomed = models / f".{name}.removed"
        shutil.rmtree(doomed, ignore_errors=True)
        freed = sum(path.lstat().st_size for path in directory.rglob("*") if path.is_file())
        try:
            os.rename(directory, doomed)  # at once: half a model never has its name
            doomed.unlink() if doomed.is_symlink() else shutil.rmtree(doomed)
        except OSError as error:
            raise Failure(codes.IO_ERROR, f"cannot remove {error.filename}: {error.strerror}") from None
    return freed


def _entry(name: str, directory: Path) -> Entry:
    try:
        return Entry(name, directory, manifest.read_manifest(directory))
    except ValueError as error:
        if unpulled(directory):
            return Entry(name, directory, None, UNPULLED, damaged=False)
        return Entry(name, directory, None, str(error))
    except OSError as error:
        return Entry(name, directory, None, f"{error.filename}: {error.strerror}")


def unpulled(directory: Path) -> bool:
    """Whether it is a KittenTTS 2 that was put here by hand."""
    try:
        return (
            not (directory / manifest.MANIFEST).exists()
            and json.loads((directory / "config.json").read_bytes())["type"] == "KITTEN2"
        )
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _stored_as(name: str, quantization: Mapping[str, Affine]) -> dict:
    base, _, part = name.rpartition(".")
    how = quantization.get(base) if part in ("weight", "scales", "biases") else None
    return {"bits": how.bits, "group_size": how.group_size} if how else {}


def _groups(quantization: Mapping[str, Affine], found: Mapping) -> list[dict]:
    """How many tensors of which part are stored how, most bits last; bits None: as they were."""
    groups: dict[tuple, Counter] = {}
    for name in found:
        base, _, part = name.rpartition(".")
        if base in quantization and part != "weight":
            continue  # scales and biases belong to their weight
        how = quantization.get(base)
        key = (how.bits, how.group_size) if how else (None, None)
        groups.setdefault(key, Counter())[_part(name)] += 1
    return [
        {"bits": bits, "group_size": group_size, "tensors": counts.total(), "parts": dict(sorted(counts.items()))}
        for (bits, group_size), counts in sorted(groups.items(), key=lambda item: item[0][0] or 99)
    ]


def _part(name: str) -> str:
    if "_embeddings" in name:
        return "the embeddings"
    if "_head" in name:
        return "the heads"
    return {"decoder": "the depth decoder"}.get(first := name.partition(".")[0], f"the {first}")
