"""manifest.json of a finished folder: run it after any change in the bundled voice, its card included.

python -m training.seal misod/miso/nano
"""

import pathlib
import sys

import misod
from misod.weights.manifest import describe, read_manifest, write_manifest

SOURCE = {"repo": "trained by training/", "revision": None, "licence": "Apache-2.0"}


def seal(folder: pathlib.Path, precision: str) -> None:
    write_manifest(folder, describe(folder, "nano", precision, SOURCE, f"miso-speech {misod.__version__}"))


if __name__ == "__main__":
    folder = pathlib.Path(sys.argv[1])
    seal(folder, read_manifest(folder).precision)
