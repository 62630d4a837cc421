"""misod: the daemon that keeps a speech model warm."""

import os

__version__ = "0.1.0"

# Read as numpy, and OpenBLAS for MLX, are loaded: a frame's products are too small to share out, and who waits, spins.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
