"""The real daemon and the real kitten engine, with a double in kittenml's place: `python kitten_misod.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from misod import cli as entry
from misod.engine import PrefixRoom, open_engine


def open_kitten(directory: Path, max_rows: int, prefixes: PrefixRoom):
    if directory.name != "kitten":
        return open_engine(directory, max_rows, prefixes)
    from misod.kitten.engine import KittenEngine
    from tests.model.kitten_fixture import Double

    return KittenEngine.open(directory.name, directory, max_rows, Double())


if __name__ == "__main__":
    entry.leave(entry.run({}, open_kitten))
