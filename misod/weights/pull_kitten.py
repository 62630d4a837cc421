"""`misod pull kitten`: the published files as they are, packed weights and codec, under a manifest."""

import json
import os
import shutil
from pathlib import Path
from typing import TextIO

import misod
from misod.weights import lock, manifest, models
from misod.weights.progress import size
from misod.weights.pull import Request, Tell, Work, card, sweep
from misod.weights.recorded import Recorded
from misod.weights.sources import KITTEN, KITTEN_CODEC
from protocol import errors as codes
from protocol.errors import Failure
from protocol.paths import Paths

NAME, PRECISION = "kitten", "ternary"


def pull(request: Request, paths: Paths, tell: Tell, bars: TextIO | None) -> dict:
    """As misod.weights.pull.pull."""
    for option in ("precision", "embeddings", "origin"):
        if getattr(request, option) is not None:
            flag = "from" if option == "origin" else option
            raise Failure(codes.USAGE, f"--{flag} is for miso: kitten is taken as it was published, from {KITTEN.repo}")
    with lock.changing(paths.models):
        manifest.mend(paths.models)
        sweep(paths.models)
        done = _already(paths.models / NAME)
        if done:
            tell(f"{NAME} is here already, from {KITTEN.repo}; `misoctl rm {NAME}` first")
        else:
            _make(Work(request, PRECISION, paths, tell, bars))
        if not request.keep:
            shutil.rmtree(paths.downloads, ignore_errors=True)
    entry = models.find(paths.models, NAME)
    said = models.summary(entry, models.default_name("auto", paths.models))
    return said | {"digest": entry.manifest.digest, "pulled": not done}


def _already(directory: Path) -> bool:
    try:
        return manifest.read_manifest(directory).source.get("revision") == KITTEN.revision
    except (OSError, ValueError):
        return False


def _make(work: Work) -> None:
    from misod.weights import fetch  # the network's only door

    ours, record = work.paths.downloads, Recorded(work.paths.models / ".sources.json")
    lists = [fetch.listing(source, source.revision) for source in (KITTEN, KITTEN_CODEC)]
    todo = sorted(((each, file) for each in lists for file in each.files), key=lambda item: item[1].bytes)
    total, had = sum(each.bytes for each in lists), sum(fetch.bytes_of(*item, ours) for item in todo)
    work.tell(f"{KITTEN.repo} and its codec: {size(total)}" + (f", {size(had)} of it here" if had else ""))
    work.make_sure_of_room(total - had, 0)
    work.get([item for item in todo if item[1].path == "config.json"], record, None)
    _check_config(lists[0].directory(ours) / "config.json")
    work.get(todo, record, work.bars)
    made_of = {"repo": KITTEN.repo, "revision": lists[0].commit, "licence": KITTEN.licence}
    made_of["codec"] = f"{KITTEN_CODEC.repo} at {lists[1].commit[:12]}, {KITTEN_CODEC.licence}"
    with manifest.new_directory(work.paths.models, NAME) as partial:
        for listing, file in todo:
            target = partial / ("codec" if listing.source is KITTEN_CODEC else "") / file.path
            target.parent.mkdir(parents=True, exist_ok=True)
            os.link(listing.directory(ours) / file.path, target)  # of one home, and so of one disk
        (partial / "MODEL_CARD.md").write_text(card(NAME, PRECISION, made_of, ""))
        by = f"miso {misod.__version__}"
        manifest.write_manifest(partial, manifest.describe(partial, NAME, PRECISION, made_of, by))


def _check_config(path: Path) -> None:
    """Before the gigabytes. Raises Failure."""
    try:
        config = json.loads(path.read_bytes())
        whole = config["type"] == "KITTEN2" and config["lm_packed"] == "lm/model-ternary.safetensors"
    except (ValueError, TypeError, KeyError):
        whole = False
    if not whole:
        path.unlink()
        raise Failure(codes.BAD_DATA, f"{KITTEN.repo}/config.json is not that of a KittenTTS 2 with packed weights")
