"""`misod pull kitten`: the published files as they are, packed weights and codec, under a manifest."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

import misod
from misod.weights import lock, manifest, models
from misod.weights.check import read_header
from misod.weights.progress import Progress, size
from misod.weights.pull import Request, Tell, Work, as_failure, card, origin, sweep
from misod.weights.recorded import Recorded
from misod.weights.sources import KITTEN, KITTEN_CODEC
from protocol import errors as codes
from protocol.errors import Failure
from protocol.paths import Paths

NAME, PRECISION = "kitten", "ternary"
CONFIG, WEIGHTS = "config.json", "lm/model-ternary.safetensors"
OTHER_KIND = "is not that of a KittenTTS 2 with packed weights"

Files = dict[str, Path]  # a file's place in the model -> where it lies now
Place = Callable[[Path, Path], None]


def pull(request: Request, paths: Paths, tell: Tell, bars: TextIO | None) -> dict:
    """As misod.weights.pull.pull."""
    for option in ("precision", "embeddings"):
        if getattr(request, option) is not None:
            raise Failure(codes.USAGE, f"--{option} is for miso: kitten is taken as it was published")
    directory, source = origin(request.origin, (KITTEN,))
    with lock.changing(paths.models):
        manifest.mend(paths.models)
        sweep(paths.models)
        done = source and _already(paths.models / NAME)
        if done:
            tell(f"{NAME} is here already, from {KITTEN.repo}; `misoctl rm {NAME}` first")
        else:
            work = Work(request, PRECISION, paths, tell, bars)
            _make(work, *(_local(work, directory) if directory else _fetched(work)))
        if source and not request.keep:
            shutil.rmtree(paths.downloads, ignore_errors=True)
    entry = models.find(paths.models, NAME)
    said = models.summary(entry, models.default_name("auto", paths.models))
    return said | {"digest": entry.manifest.digest, "pulled": not done}


def _already(directory: Path) -> bool:
    try:
        return manifest.read_manifest(directory).source.get("revision") == KITTEN.revision
    except (OSError, ValueError):
        return False


def _fetched(work: Work) -> tuple[Files, dict, Place]:
    """From the hub; the downloads are of one home, and so of one disk."""
    from misod.weights import fetch  # the network's only door

    ours, record = work.paths.downloads, Recorded(work.paths.models / ".sources.json")
    lists = [fetch.listing(source, source.revision) for source in (KITTEN, KITTEN_CODEC)]
    todo = sorted(((each, file) for each in lists for file in each.files), key=lambda item: item[1].bytes)
    total, had = sum(each.bytes for each in lists), sum(fetch.bytes_of(*item, ours) for item in todo)
    work.tell(f"{KITTEN.repo} and its codec: {size(total)}" + (f", {size(had)} of it here" if had else ""))
    work.make_sure_of_room(total - had, 0)
    work.get([item for item in todo if item[1].path == CONFIG], record, None)
    config = lists[0].directory(ours) / CONFIG
    if not _is_packed(config):
        config.unlink()
        raise Failure(codes.BAD_DATA, f"{KITTEN.repo}/{CONFIG} {OTHER_KIND}")
    work.get(todo, record, work.bars)
    files = {("codec/" if each.source is KITTEN_CODEC else "") + file.path: each.directory(ours) / file.path
             for each, file in todo}  # fmt: skip
    made_of = {"repo": KITTEN.repo, "revision": lists[0].commit, "licence": KITTEN.licence}
    return files, made_of | {"codec": f"{KITTEN_CODEC.repo} at {lists[1].commit[:12]}, {KITTEN_CODEC.licence}"}, os.link


def _local(work: Work, directory: Path) -> tuple[Files, dict, Place]:
    """From a directory of one's own, laid out as the repository is, the codec in it or in its codec/."""
    found = {pattern: _beside(directory, pattern) for pattern in (*KITTEN.wanted, *KITTEN.optional)}
    missing = [pattern for pattern in KITTEN.wanted if not found[pattern]]
    (codec,) = KITTEN_CODEC.wanted
    codecs = [path for path in (directory / "codec" / codec, directory / codec) if path.is_file()]
    missing += [] if codecs else [f"{codec} (of {KITTEN_CODEC.repo})"]
    if missing:
        raise Failure(codes.NO_INPUT, f"--from {directory} lacks {', '.join(missing)}: put it there")
    if not _is_packed(directory / CONFIG):
        raise Failure(codes.BAD_DATA, f"{directory / CONFIG} {OTHER_KIND}")
    files = {path.relative_to(directory).as_posix(): path for paths in found.values() for path in paths}
    files[f"codec/{codec}"] = codecs[0]
    with as_failure(work.paths.models):
        read_header(directory / WEIGHTS)  # of all of it: a file that was cut is told before it is copied
        work.make_sure_of_room(0, sum(path.stat().st_size for path in files.values()))
    return files, {"repo": str(directory), "revision": None, "licence": None}, _copy


def _beside(directory: Path, pattern: str) -> list[Path]:
    """The files in a repository's own layout that a pattern of `wanted` is of."""
    return [path for path in sorted(directory.glob(pattern)) if path.is_file()]


def _make(work: Work, files: Files, made_of: dict, place: Place) -> None:
    total = sum(path.stat().st_size for path in files.values())
    with as_failure(work.paths.models), manifest.new_directory(work.paths.models, NAME) as partial:
        with Progress("copying", total, None if place is os.link else work.bars) as bar:
            for name, path in files.items():
                (partial / name).parent.mkdir(parents=True, exist_ok=True)
                place(path, partial / name)
                bar.add(path.stat().st_size)
        (partial / "MODEL_CARD.md").write_text(card(NAME, PRECISION, made_of, ""))
        made = manifest.describe(partial, NAME, PRECISION, made_of, f"miso {misod.__version__}")
        for name, known in KITTEN_CODEC.known.items():
            if made.files[f"codec/{name}"].sha256 != known.sha256:
                raise Failure(codes.BAD_DATA, f"{files[f'codec/{name}']} is not the codec that {KITTEN_CODEC.repo} has")
        manifest.write_manifest(partial, made)


def _copy(source: Path, target: Path) -> None:
    """What the manifest will vouch for is on the disk before it is."""
    shutil.copyfile(source, target)
    with target.open("rb+") as file:
        os.fsync(file.fileno())


def _is_packed(path: Path) -> bool:
    """Told by its config, before the gigabytes."""
    try:
        config = json.loads(path.read_bytes())
        return config["type"] == "KITTEN2" and config["lm_packed"] == WEIGHTS
    except (OSError, ValueError, TypeError, KeyError):
        return False
