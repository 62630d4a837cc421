"""What was fetched, kept in models/.sources.json: a repository's commit, each file's size and sha256.

What a first pull got is what every later one must get.
"""

import json
from dataclasses import asdict
from pathlib import Path

from misod.weights.manifest import replace_synced
from misod.weights.sources import Known, Source
from protocol import errors as codes
from protocol.errors import Failure


class Recorded:
    def __init__(self, path: Path):
        """Raises Failure where the file is there and not ours to read."""
        self.path = path
        try:
            raw = json.loads(path.read_bytes())
            self._repos = {
                repo: (entry["revision"], {name: Known(**known) for name, known in entry["files"].items()})
                for repo, entry in raw.items()
            }
        except FileNotFoundError:
            self._repos = {}
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            why = f"{path}: cannot be read as a record of what was fetched ({type(error).__name__})"
            raise Failure(codes.BAD_DATA, f"{why}: move it away, then digests are recorded anew") from None

    def revision(self, repo: str) -> str | None:
        return self._repos[repo][0] if repo in self._repos else None

    def known(self, source: Source, commit: str, name: str) -> Known | None:
        """What this file must be: by what was published, or by the first pull of this commit."""
        revision, files = self._repos.get(source.repo, (None, {}))
        return source.known.get(name) or (files.get(name) if revision == commit else None)

    def put(self, repo: str, commit: str, name: str, got: Known) -> None:
        """Another commit of the same repository takes the place of the one before."""
        revision, files = self._repos.get(repo, (None, {}))
        self._repos[repo] = commit, (files if revision == commit else {}) | {name: got}
        raw = {
            each: {"revision": at, "files": {name: asdict(known) for name, known in sorted(of.items())}}
            for each, (at, of) in sorted(self._repos.items())
        }
        replace_synced(self.path, json.dumps(raw, indent=1).encode())
