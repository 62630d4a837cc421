"""Files of a repository on the Hugging Face Hub, fetched through the hub's own client; resumed, and checked by sha256.

huggingface_hub has the session, the headers, the token, HF_ENDPOINT and the errors. Its hf_hub_download is not used:
it begins anew after each interruption (its temporary file is its own process's; huggingface_hub #4228) and compares
sizes only. So bytes go to NAME.partial, which any later pull goes on from. Only `misod pull` imports this.
"""

import fnmatch
import hashlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"  # both are read when the package is imported
os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"

import httpx2
from huggingface_hub import HfApi, constants, errors, get_session, hf_hub_url, hf_raise_for_status
from huggingface_hub.hf_api import RepoSibling
from huggingface_hub.utils import build_hf_headers, logging

from misod.weights import hub_errors
from misod.weights.manifest import Counter, sha256_of
from misod.weights.sources import Known, Source
from protocol import errors as codes
from protocol.errors import Failure

logging.set_verbosity_error()  # what goes wrong is said here, once

RETRY_WAITS_S = (0.5, 1, 2, 4, 8)  # without a new byte between them; then it is an error


@dataclass(frozen=True)
class RemoteFile:
    """`sha256` as the hub says it, of what it keeps in large-file storage; of the rest it knows git's own digest."""

    path: str
    bytes: int
    sha256: str | None
    git_sha1: str | None


@dataclass(frozen=True)
class Listing:
    """The wanted files of a source, as they are at `commit`."""

    source: Source
    commit: str
    files: tuple[RemoteFile, ...]

    @property
    def bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def directory(self, downloads: Path) -> Path:
        """Where its files go: another commit's are never taken for them."""
        return downloads / self.source.repo / self.commit[:12]


def listing(source: Source, revision: str | None = None) -> Listing:
    """Ask the hub. `revision`: a commit, or None for `main`. Raises Failure."""
    try:
        info = HfApi().model_info(
            source.repo, revision=revision, files_metadata=True, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT
        )
    except (httpx2.HTTPError, httpx2.InvalidURL, errors.HfHubHTTPError, errors.OfflineModeIsEnabled) as error:
        raise hub_errors.explain(error, source.repo) from error
    except UnicodeEncodeError as error:
        raise hub_errors.bad_token() from error
    except OSError as error:  # the token's own file
        raise Failure(codes.NO_TOKEN, f"{error.filename}: {error.strerror}: {hub_errors.LOG_IN}") from error
    except (ValueError, KeyError, TypeError) as error:  # an answer of 200 that is no answer of a hub
        raise hub_errors.no_hub() from error
    there = {s.rfilename: s for s in info.siblings or () if ".." not in s.rfilename.split("/")}
    chosen = {name for pattern in source.wanted + source.optional for name in _matching(there, pattern)}
    for pattern in source.wanted:
        if not _matching(there, pattern):
            raise hub_errors.no_file(source.repo, pattern, info.sha)
    return Listing(source, info.sha, tuple(_remote_file(there[name]) for name in sorted(chosen)))


def _matching(names: Iterable[str], pattern: str) -> list[str]:
    """Those in the pattern's own folder: a star does not reach into another."""
    return [name for name in fnmatch.filter(names, pattern) if name.count("/") == pattern.count("/")]


def _remote_file(sibling: RepoSibling) -> RemoteFile:
    stored = sibling.lfs
    return RemoteFile(
        sibling.rfilename, sibling.size or 0, stored.sha256 if stored else None, None if stored else sibling.blob_id
    )


def partial(target: Path) -> Path:
    return target.with_name(f"{target.name}.partial")


def bytes_of(listing: Listing, file: RemoteFile, downloads: Path) -> int:
    """How much of it an earlier pull has left."""
    target = listing.directory(downloads) / file.path
    there = next((path for path in (target, partial(target)) if path.exists()), None)
    return min(there.stat().st_size, file.bytes) if there else 0


def download(listing: Listing, file: RemoteFile, downloads: Path, known: Known | None, count: Counter) -> None:
    """Have all bytes of `file` in the listing's directory; as they come they go to `count`.

    `known`: what it must be, by an earlier pull or by what was published. Raises Failure.
    """
    target = listing.directory(downloads) / file.path
    name = f"{listing.source.repo}/{file.path}"
    _same_as_known(name, file, known)
    if not (target.exists() and target.stat().st_size == file.bytes):
        target.parent.mkdir(parents=True, exist_ok=True)
        waiting = partial(target)
        _fill(waiting, name, file.bytes, hf_hub_url(listing.source.repo, file.path, revision=listing.commit), count)
        os.replace(waiting, target)


def check(listing: Listing, file: RemoteFile, downloads: Path, known: Known | None, count: Counter) -> Known:
    """Hash what was downloaded -> what was got. Raises Failure, and removes the file, where it is another."""
    target = listing.directory(downloads) / file.path
    name = f"{listing.source.repo}/{file.path}"
    got = Known(file.bytes, sha256_of(target, count))
    wanted = known.sha256 if known else file.sha256
    if (wanted and got.sha256 != wanted) or (file.git_sha1 and _git_sha1(target) != file.git_sha1):
        target.unlink()
        why = f"{name}: what came is not what was announced: sha256 {got.sha256[:12]}…"
        why += f", it should be {wanted[:12]}…" if wanted else ""
        raise Failure(codes.BAD_DATA, f"{why}: it was removed; pull again, and tell its owner if that does not help")
    return got


def _git_sha1(path: Path) -> str:
    """What git calls the file; the hub has only small ones under it."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


def _same_as_known(name: str, file: RemoteFile, known: Known | None) -> None:
    """Refuse before the first byte what the hub itself calls another file than the one we know."""
    if known and file.bytes != known.bytes:
        why = f"{name}: the hub has {file.bytes:,} bytes, it should be {known.bytes:,}"
    elif known and file.sha256 and file.sha256 != known.sha256:
        why = f"{name}: the hub has a file of sha256 {file.sha256[:12]}…, it should be {known.sha256[:12]}…"
    else:
        return
    raise Failure(codes.BAD_DATA, f"{why}: it was changed since, do not trust it")


def _fill(path: Path, name: str, size: int, url: str, count: Counter) -> None:
    """Append to `path` what it lacks to `size` bytes. What is there stays, on every way out."""
    failed = 0
    with path.open("ab", buffering=0) as out:
        if out.tell() > size:
            out.truncate(0)
            out.seek(0)
        while (before := out.tell()) < size:
            try:
                _stream(out, name, size, url, count)
                problem = None
            except (httpx2.TransportError, httpx2.StreamError, errors.HfHubHTTPError) as error:
                problem = error
                if not hub_errors.is_passing(error):
                    raise hub_errors.explain(error, name) from error
            except OSError as error:
                cure = "free some room, then the same command goes on from here"
                raise Failure(codes.IO_ERROR, f"cannot write {path}: {error.strerror}", cure) from error
            failed = 0 if out.tell() > before else failed + 1
            if failed > len(RETRY_WAITS_S):
                raise hub_errors.explain(problem, name) if problem else hub_errors.cut_short(name)
            if failed:
                time.sleep(RETRY_WAITS_S[failed - 1])
        os.fsync(out.fileno())


def _stream(out, name: str, size: int, url: str, count: Counter) -> None:
    """One request, from where `out` ends."""
    have = out.tell()
    headers = build_hf_headers(headers={"Accept-Encoding": "identity", "Range": f"bytes={have}-"})
    with get_session().stream("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
        hf_raise_for_status(response)
        if not response.headers.get("Content-Range", "").startswith(f"bytes {have}-") and have:
            count(-have)  # the server does not resume: from the start
            out.truncate(0)
            out.seek(0)
        for chunk in response.iter_bytes():  # as it comes: what is collected first would be lost at a break
            out.write(chunk)
            count(len(chunk))
            if out.tell() > size:
                raise Failure(codes.BAD_DATA, f"{name}: more comes than the {size:,} bytes that it has")
