"""What the tests carry stays small: a clone is for everybody."""

from pathlib import Path

TESTS = Path(__file__).parents[1]
LIMIT_BYTES = 12_000_000


def test_the_tests_and_their_data_are_under_12_mb():
    sizes = [path.stat().st_size for path in TESTS.rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert 5_000_000 < sum(sizes) < LIMIT_BYTES
