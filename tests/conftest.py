"""For every test: what it starts keeps its compiled modules, also where the machine's environment says otherwise."""

import os

os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # or each of a thousand processes compiles all of miso
