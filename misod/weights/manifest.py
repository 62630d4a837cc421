"""A model directory: what it must hold, by manifest.json, and how one is put in place. Imports no mlx.

manifest.json names every file but itself and verified.json, with size and sha256. A directory is written beside,
its manifest last, and renamed; without a valid manifest nothing loads. Every error is a ValueError that starts
with the file's path. verified.json remembers the size and time of files whose digest was seen to be right, so that
5 GB are hashed once and not at each start.
"""

import errno
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from misod.weights.check import naming

MANIFEST, VERIFIED = "manifest.json", "verified.json"
PARTS = ("config.json", "tokenizer.json", "codec/config.json", "codec/model.safetensors")  # and the model's weights
TERNARY, TERNARY_PARTS = "ternary", ("config.json", "lm/config.json", "lm/tokenizer.json", "voices/voices.json")
HASH_BYTES = 8 << 20
SMALL_BYTES = 64 << 20  # a directory that is hashed in less time than a load takes gets no verified.json


@dataclass(frozen=True)
class File:
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """`source` says where the weights are from: repo, revision, licence, whatever of them is known."""

    model: str
    precision: str
    source: Mapping[str, str | None]
    made_by: str
    files: Mapping[str, File]  # by path relative to the directory, with slashes

    @property
    def weights(self) -> list[str]:
        """The language model's files, in order."""
        return sorted(filter(is_weights, self.files))

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files.values())

    @property
    def digest(self) -> str:
        """sha256 over the weights of model and codec: what a receipt calls the model by."""
        weights = [f"{path} {file.sha256}\n" for path, file in self.files.items() if path.endswith(".safetensors")]
        return hashlib.sha256("".join(sorted(weights)).encode()).hexdigest()


def is_weights(path: str) -> bool:
    """Whether a file of a model is the language model's."""
    return path.removeprefix("lm/").startswith("model") and path.endswith(".safetensors")


def read_manifest(directory: Path) -> Manifest:
    """Raises ValueError where it is absent, malformed, or lacks a file that every model has."""
    path = directory / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise ValueError(f"{path}: missing, so this is no finished model: make it again") from None
    with naming(path, "a model's manifest"):
        raw = json.loads(data)
        files = {name: _file(name, entry) for name, entry in raw["files"].items()}
        manifest = Manifest(raw["model"], raw["precision"], dict(raw["source"]), raw["made_by"], files)
    parts = TERNARY_PARTS if manifest.precision == TERNARY else PARTS
    absent = [part for part in parts if part not in files] or ([] if manifest.weights else ["model.safetensors"])
    if absent:
        raise ValueError(f"{path}: does not name {', '.join(absent)}")
    return manifest


def _file(name: str, entry: Mapping) -> File:
    path, digest, size = PurePosixPath(name), entry["sha256"], entry["bytes"]
    if path.is_absolute() or ".." in path.parts or name in (MANIFEST, VERIFIED):
        raise ValueError(f"{name!r} is no file of the directory")
    if type(size) is not int or size < 0 or not isinstance(digest, str) or len(digest) != 64:
        raise ValueError(f"{name!r} needs bytes and sha256")
    return File(size, digest)


def check(directory: Path, anew: bool = False) -> Manifest:
    """Every file is the one the manifest names, or ValueError naming the first that is not.

    Those that verified.json knows unchanged are not hashed again, unless `anew`.
    """
    manifest = read_manifest(directory)
    seen = {} if anew else _read_verified(directory)
    stats = {}
    for name, file in manifest.files.items():
        try:
            stats[name] = check_file(directory / name, file, seen.get(name))
        except ValueError as error:
            raise ValueError(f"{error}: make or pull the model again") from None
    if stats != seen and manifest.bytes > SMALL_BYTES:
        _write_verified(directory, stats)
    return manifest


Counter = Callable[[int], None]  # of bytes


def check_file(path: Path, file: File, seen: Mapping | None = None, count: Counter = lambda _: None) -> dict:
    """Its stat, once it is known to be the file; not read where that is as `seen`. Raises ValueError naming it."""
    try:
        info = path.stat()
        stat = {"bytes": info.st_size, "mtime_ns": info.st_mtime_ns}
        if info.st_size != file.bytes:
            raise ValueError(f"{path}: {info.st_size} bytes, should be {file.bytes}")
        if stat != seen and sha256_of(path, count) != file.sha256:
            raise ValueError(f"{path}: changed since it was made (its sha256 differs)")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    return stat


def sha256_of(path: Path, count: Counter = lambda _: None) -> str:
    """Bytes that were read go to `count` as they are."""
    digest = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while block := file.read(HASH_BYTES):
            digest.update(block)
            count(len(block))
    return digest.hexdigest()


def _read_verified(directory: Path) -> dict:
    try:
        seen = json.loads((directory / VERIFIED).read_bytes())
    except (OSError, ValueError, RecursionError):  # no cache: all is hashed
        return {}
    return seen if isinstance(seen, dict) else {}


def _write_verified(directory: Path, stats: dict) -> None:
    try:
        replace_synced(directory / VERIFIED, (json.dumps(stats, indent=1) + "\n").encode())
    except OSError:  # where the directory cannot be written, the next load hashes again
        pass


def describe(directory: Path, model: str, precision: str, source: Mapping[str, str | None], made_by: str) -> Manifest:
    """The manifest of a directory that is complete already."""
    paths = {path.relative_to(directory).as_posix(): path for path in directory.rglob("*") if path.is_file()}
    names = sorted(name for name in paths.keys() - {MANIFEST, VERIFIED} if not paths[name].name.startswith("."))
    files = {name: File(paths[name].stat().st_size, sha256_of(paths[name])) for name in names}
    return Manifest(model, precision, source, made_by, files)


def write_manifest(directory: Path, manifest: Manifest) -> None:
    raw = asdict(manifest) | {"files": {name: asdict(manifest.files[name]) for name in sorted(manifest.files)}}
    (directory / MANIFEST).unlink(missing_ok=True)
    write_synced(directory / MANIFEST, (json.dumps(raw, indent=1) + "\n").encode())


def write_synced(path: Path, data: bytes) -> File:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    return File(len(data), hashlib.sha256(data).hexdigest())


def replace_synced(path: Path, data: bytes) -> None:
    """Never half a file at `path`. Raises OSError, and leaves nothing beside it."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        write_synced(beside, data)
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


@contextmanager
def new_directory(models: Path, name: str) -> Iterator[Path]:
    """A fresh directory beside the models; it becomes models/name when the block ends, and vanishes if it fails.

    What an earlier attempt left there when it was killed is removed first. The block writes the manifest last.
    """
    mend(models)
    partial = models / f".{name}.partial"
    shutil.rmtree(partial, ignore_errors=True)
    (partial / "codec").mkdir(parents=True, mode=0o700)
    try:
        yield partial
        read_manifest(partial)
        for directory in (partial / "codec", partial):
            sync(directory)
        _publish(models, name, partial)
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise


def _publish(models: Path, name: str, partial: Path) -> None:
    target, old = models / name, models / f".{name}.old"
    while not _moved(partial, target):  # it is there already, or another process mended in between
        target.rename(old)
    sync(models)
    shutil.rmtree(old, ignore_errors=True)


def _moved(partial: Path, target: Path) -> bool:
    try:
        partial.rename(target)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        return False
    return True


def mend(models: Path) -> None:
    """End a replacement that was killed between its renames: the old model stays until the new one is in place."""
    for old in models.glob(".*.old"):
        target = models / old.name.removeprefix(".").removesuffix(".old")
        if target.exists():
            shutil.rmtree(old, ignore_errors=True)
        else:
            old.rename(target)


def sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
