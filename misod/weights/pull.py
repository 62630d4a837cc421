"""`misod pull`: have a model ready in one go. Say what it takes, fetch, check, convert, check again, clean up.

Each part may be killed at any time: what is fetched stays in downloads/ and is gone on from, a half conversion never
has the model's name (misod.weights.manifest). Only fetching uses the network, and with a local directory nothing does.
"""

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from misod.weights import budget, convert, layout, lock, manifest, models
from misod.weights.convert import Parts
from misod.weights.progress import Progress, size
from misod.weights.recorded import Recorded
from misod.weights.sources import CODEC, CODEC_FILE, TOKENIZER, WEIGHTS, Source
from protocol import errors as codes
from protocol.errors import Failure
from protocol.paths import Paths

LOCAL_CODECS = (CODEC_FILE, "codec/model.safetensors", "mimi/model.safetensors")  # in a directory of one's own

Tell = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """`precision` None: by this machine's memory. `origin`: one of the model's repositories, a directory, or None."""

    model: str
    precision: str | None = None
    embeddings: str | None = None
    origin: str | None = None
    keep: bool = False


def pull(request: Request, paths: Paths, memory_bytes: int, tell: Tell, bars: TextIO | None) -> dict:
    """Make `<home>/models/<model>` -> what was done. `tell` gets lines for a person, `bars` progress. Raises Failure.

    A model of that name that was there stays until the new one is whole.
    """
    precision, why = request.precision, ""
    if precision is None:
        precision, why = budget.choose(memory_bytes)
    directory, source = origin(request.origin)
    with lock.changing(paths.models):
        manifest.mend(paths.models)
        sweep(paths.models)
        done = source and _already(paths.models, request, precision, source)
        if done:
            tell(f"{request.model} is here already, {precision} from {source.repo}; `misoctl rm {request.model}` first")
        else:
            tell(f"precision {precision}" + (f": {why}" if why else ""))
            work = Work(request, precision, paths, tell, bars)
            work.convert(*(work.local(directory) if directory else work.fetch(source)))
        if source and not request.keep:
            shutil.rmtree(paths.downloads, ignore_errors=True)
    entry = models.find(paths.models, request.model)
    said = models.summary(entry, models.default_name("auto", paths.models))
    return said | {"digest": entry.manifest.digest, "pulled": not done}


def origin(name: str | None, sources: tuple[Source, ...] = WEIGHTS) -> tuple[Path | None, Source | None]:
    """What --from names: a directory, else one of the repositories; without a name the first of these."""
    if name is None:
        return None, sources[0]
    directory = Path(os.path.expanduser(name))  # Path's own raises at ~nobody-of-that-name
    if directory.is_dir():
        return directory.absolute(), None
    known = {source.repo: source for source in sources}
    if name in known:
        return None, known[name]
    if directory.exists():
        raise Failure(codes.NO_INPUT, f"--from {name}: a file; give the directory that it is in")
    if name.startswith(("/", "~", ".")):
        raise Failure(codes.NO_INPUT, f"--from {name}: there is no such directory")
    why = f"--from {name}: no directory, and no repository that this version knows"
    raise Failure(codes.USAGE, f"{why}: {codes.near(name, known)}")


class Work:
    """One pull, under the lock."""

    def __init__(self, request: Request, precision: str, paths: Paths, tell: Tell, bars: TextIO | None):
        self.request, self.precision, self.paths, self.tell, self.bars = request, precision, paths, tell, bars

    def local(self, directory: Path) -> tuple[Parts, dict]:
        """From a directory of one's own, in any layout that convert knows."""
        codec = next((directory / name for name in LOCAL_CODECS if (directory / name).exists()), None)
        tokenizer = directory / "tokenizer.json"
        missing = [] if any(directory.glob("model*.safetensors")) else ["model.safetensors"]
        missing += [] if codec else [f"{CODEC_FILE} (of {CODEC.repo})"]
        missing += [] if tokenizer.exists() else [f"tokenizer.json (of {TOKENIZER.repo})"]
        if missing:
            raise Failure(codes.NO_INPUT, f"--from {directory} lacks {', '.join(missing)}: put it there")
        parts = Parts(directory, codec, tokenizer)
        with as_failure(self.paths.models):
            need = convert.output_bytes(parts, self.precision, self.request.embeddings)
        self.make_sure_of_room(0, need)
        return parts, {"repo": str(directory), "revision": None, "licence": None}

    def fetch(self, source: Source) -> tuple[Parts, dict]:
        """From the hub; configs first, for the dims decide how much will be written."""
        from misod.weights import fetch  # the network's only door

        ours, record = self.paths.downloads, Recorded(self.paths.models / ".sources.json")
        of = (source, CODEC, TOKENIZER)
        lists = [fetch.listing(each, each.revision or record.revision(each.repo)) for each in of]
        weights, codec, tokenizer = (each.directory(ours) for each in lists)
        todo = sorted(((each, file) for each in lists for file in each.files), key=lambda item: item[1].bytes)
        total, had = sum(each.bytes for each in lists), sum(fetch.bytes_of(*item, ours) for item in todo)
        self.get([item for item in todo if item[1].path == "config.json"], record, None)
        here = f", {size(had)} of it here" if had else ""
        self.tell(f"{source.repo}, its codec and tokenizer: {size(total)}{here}")
        if source.smaller and not had:
            self.tell(f"about half as much to fetch: `--from {source.smaller}`, the same in bf16")
        with as_failure(ours):
            args = layout.read_args(weights / "config.json")
        written = budget.disk_bytes(args, self.precision, self.request.embeddings) + lists[1].bytes + lists[2].bytes
        self.make_sure_of_room(total - had, written, source.smaller)
        self.get(todo, record, self.bars)
        return Parts(weights, codec / CODEC_FILE, tokenizer / TOKENIZER.wanted[0]), provenance(lists)

    def get(self, wanted: list, record: Recorded, bars: TextIO | None) -> None:
        """Have and check these (listing, file); what was got is recorded."""
        from misod.weights import fetch

        downloads, total = self.paths.downloads, sum(file.bytes for _, file in wanted)
        here = sum(fetch.bytes_of(*item, downloads) for item in wanted)
        items = [(listing, file, record.known(listing.source, listing.commit, file.path)) for listing, file in wanted]
        with Progress("fetching", total, bars if here < total else None, done=here) as bar:
            for listing, file, known in items:
                fetch.download(listing, file, downloads, known, bar.add)
        with Progress("checking", total, bars) as bar:
            for listing, file, known in items:
                got = fetch.check(listing, file, downloads, known, bar.add)
                record.put(listing.source.repo, listing.commit, file.path, got)

    def convert(self, parts: Parts, made_of: dict) -> None:
        """Write the model and read all of it back."""
        name, models_dir, how = self.request.model, self.paths.models, (self.precision, self.request.embeddings)
        with as_failure(models_dir):
            with Progress("converting", convert.output_bytes(parts, *how), self.bars) as bar:
                text = card(name, self.precision, made_of, _licences(parts.weights))
                directory = convert.convert(parts, models_dir, name, *how, origin=made_of, card=text, count=bar.add)
            self.tell("checking what was written")
            manifest.check(directory, anew=True)

    def make_sure_of_room(self, fetched: int, written: int, smaller: str | None = None) -> None:
        """Both lie on the disk at once, for a while. Raises Failure saying how much to free, or what takes less."""
        need, free = int((fetched + written) * budget.SPARE), shutil.disk_usage(self.paths.models).free
        parts = f"{size(fetched)} to fetch and {size(written)} to write" if fetched else f"{size(written)} to write"
        self.tell(f"disk: {parts}, a tenth to spare: {size(need)} of the {size(free)} that are free")
        if need > free:
            why = f"{self.request.model} in {self.precision} needs {size(need)} on the disk of {self.paths.models}"
            cures = [f"free {size(need - free)}"]
            smaller_there = self.precision in budget.PRECISIONS[1:]
            cures += ["choose a smaller --precision"] if smaller_there else []
            cures += [f"fetch half as much with `--from {smaller}`"] if smaller else []
            raise Failure(codes.IO_ERROR, f"{why}, {size(free)} are free: {', or '.join(cures)}")


def provenance(lists: list) -> dict:
    """The manifest's `source`, of the listings of weights, codec and tokenizer."""
    of = {"repo": lists[0].source.repo, "revision": lists[0].commit, "licence": lists[0].source.licence}
    for part, each in zip(("codec", "tokenizer"), lists[1:], strict=True):
        of[part] = f"{each.source.repo} at {each.commit[:12]}, {each.source.licence}"
    return of


def sweep(models_dir: Path) -> None:
    """Gigabytes that killed conversions and removals left: room that this pull may need."""
    for pattern in (".*.partial", ".*.removed"):
        for left in models_dir.glob(pattern):
            shutil.rmtree(left, ignore_errors=True)


def card(name: str, precision: str, made_of: dict, licences: str) -> str:
    """What MODEL_CARD.md says: where it all is from, and under which terms."""
    lines = [f"# {name}, {precision}", "", "Made by `misoctl pull`. What it is made of:", ""]
    lines += [f"- {part}: {value or 'not known'}" for part, value in made_of.items()]
    lines += ["", "The licence of each part is its owner's; converting changes the numbers, not the terms."]
    return "\n".join(lines) + "\n" + licences


def _licences(weights: Path) -> str:
    texts = [f"\n## {path.name}\n\n{path.read_text(errors='replace')}" for path in sorted(weights.glob("LICENSE*"))]
    return "".join(texts)


def _already(models_dir: Path, request: Request, precision: str, source: Source) -> bool:
    """Whether the model here is what would be made."""
    directory = models_dir / request.model
    try:
        made = manifest.read_manifest(directory)
        stored = json.loads((directory / "config.json").read_bytes()).get("quantization", {})
    except (OSError, ValueError):
        return False
    embeddings = request.embeddings or ("bf16" if precision == "bf16" else "q8")
    same = made.precision == precision and ("text_embeddings" in stored) == (embeddings == "q8")
    of = made.source.get("repo"), made.source.get("revision")
    return same and of[0] == source.repo and source.revision in (None, of[1])


@contextmanager
def as_failure(models_dir: Path) -> Iterator[None]:
    """What converting raises, as one line."""
    try:
        yield
    except ValueError as error:
        raise Failure(codes.BAD_DATA, str(error)) from error
    except OSError as error:
        cure = "; free some room and pull again, what was fetched is kept" if error.errno == errno.ENOSPC else ""
        raise Failure(codes.IO_ERROR, f"{error.filename or models_dir}: {error.strerror}{cure}") from error
