"""misod's log is bounded, and what it said before a restart stays."""

import logging

import pytest

from misod.log import start_log

MOST_BYTES = 2 << 20


@pytest.fixture
def root():
    root = logging.getLogger()
    before = root.handlers[:], root.level
    yield root
    for handler in set(root.handlers) - set(before[0]):
        handler.close()
    root.handlers[:] = before[0]
    root.setLevel(before[1])


def test_the_log_keeps_10_mb_and_outlives_a_restart(tmp_path, root):
    """jundot/omlx#1106: without a bound, or lost at a restart."""
    path = tmp_path / "misod.log"
    for start in range(2):
        start_log(path, "info")
        for line in range(60):
            logging.info("start %d line %d %s", start, line, "x" * 100_000)
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["misod.log", *(f"misod.log.{n}" for n in range(1, 5))]
    assert all(file.stat().st_size <= MOST_BYTES for file in files)
    lines = [line[:60] for file in files for line in file.read_text().splitlines()]
    assert any("start 0 line 59" in line for line in lines) and any("start 1 line 59" in line for line in lines)
