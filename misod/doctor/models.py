"""The models under the home: which one would speak, and whether each is whole."""

import os
from pathlib import Path

from misod.config import ConfigError, load_settings
from misod.doctor.finding import Finding, Site, fail, ok, warn
from misod.weights.manifest import read_manifest
from misod.weights.models import BUNDLED, bundled, default_name, directories, unpulled
from misod.weights.progress import size
from misod.weights.sources import KITTEN
from protocol.errors import MOVE_HOME
from protocol.paths import Paths
from protocol.words import PULLABLE


def here(paths: Paths) -> dict[str, Path]:
    """Name -> directory of every model."""
    try:
        return directories(paths.models)
    except OSError:  # the line of `unfinished` says it
        return {BUNDLED: bundled()}


def installed_precision(paths: Paths) -> str | None:
    """Of the 8B that is here."""
    try:
        return read_manifest(paths.models / "miso").precision
    except (OSError, ValueError):  # the line of `whole` says it
        return None


def spoken(site: Site) -> Finding:
    """What a daemon started now would load."""
    try:
        wanted = load_settings(site.paths.config, {}, site.environ).model
    except ConfigError:
        return warn("model", "unknown while the settings are wrong", "mend the line `config` or `variables` first")
    names = here(site.paths)
    if wanted == "auto":
        try:
            return ok("model", f"{default_name(wanted, site.paths.models)}, the best that is here")
        except OSError as error:
            return fail("model", f"{error.filename}: {error.strerror}", f"let misod read it, or {MOVE_HOME}")
    if wanted not in names:
        cure = f"set `model` to auto, or `misoctl pull {wanted}`" if wanted in PULLABLE else "set `model` to auto"
        return fail("model", f"{wanted!r} is set, but there are only {', '.join(names)}", cure)
    return ok("model", f"{wanted}, as set")


def whole(_site: Site, name: str, directory: Path) -> Finding:
    """Every file the manifest names, in the size it names; digests are checked at each load, not here."""
    shown = f"model {name}"
    cure = f"`misoctl rm {name}`, then `misoctl pull {name}`" if name in PULLABLE else f"`misoctl rm {name}`"
    if name == BUNDLED:
        cure = "install miso again: nano comes with it"
    if unpulled(directory):
        return _by_hand(shown, directory)
    try:
        manifest = read_manifest(directory)
    except OSError as error:
        return fail(shown, f"{error.filename}: {error.strerror}", cure)
    except ValueError as error:
        return fail(shown, str(error), cure)
    for path, file in manifest.files.items():
        if (found := _size(directory / path)) != file.bytes:
            state = "is missing" if found is None else f"has {found} bytes, not {file.bytes}"
            return fail(shown, f"{directory / path} {state}", cure)
    return ok(shown, f"{manifest.precision}, {size(manifest.bytes)} in {len(manifest.files)} files, all there")


def _by_hand(shown: str, directory: Path) -> Finding:
    """A KittenTTS 2 that was put here as `hf download` made it."""
    missing = [pattern for pattern in KITTEN.wanted if not any(directory.glob(pattern))]
    if missing:
        cure = f"put it there, or `misoctl rm {directory.name}` and pull it"
        return fail(shown, f"{directory} lacks {', '.join(missing)}", cure)
    cure = f"`misoctl pull kitten --from {directory}` makes one that is checked at each load"
    return warn(shown, "put here by hand: it speaks, and nothing tells whether it is whole", cure)


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


def unfinished(site: Site) -> Finding:
    """What a pull that was cut off, or still runs, has written so far."""
    kept = site.paths.models
    try:
        left = sorted(name for name in os.listdir(kept) if name.startswith(".") and name.endswith(".partial"))
    except FileNotFoundError:
        left = []
    except OSError as error:
        return fail("pulls", f"{kept}: {error.strerror}", f"make it a directory of yours, or {MOVE_HOME}")
    if left:
        cure = "let it finish, or begin it again with `misoctl pull`"
        return warn("pulls", f"{', '.join(left)} in {kept} is not finished", cure)
    return ok("pulls", "none unfinished")
