import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "daemon"))

from harness import fake, home, nano  # noqa: F401
