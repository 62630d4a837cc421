"""What must be set before mlx is imported: each engine's package does it first."""

import ctypes
import os
import sys
from importlib import metadata


def prepare() -> None:
    _use_openblas()
    _keep_cuda_graphs()


def _use_openblas() -> None:
    """On Linux, let MLX's CPU backend multiply matrices with OpenBLAS: about ten times faster.

    The mlx-cpu wheel carries the reference BLAS (4 GFLOP/s a core where OpenBLAS does over 50). A library
    that is loaded globally before libmlx takes the place of its cblas_sgemm. Without it all works, slower.
    """
    if sys.platform != "linux" or "mlx.core" in sys.modules:
        return
    try:
        library = metadata.distribution("cmeel-openblas").locate_file("cmeel.prefix/lib/libopenblas.so.0")
        ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    except (metadata.PackageNotFoundError, OSError):
        pass


def _keep_cuda_graphs() -> None:
    """MLX's CUDA backend keeps 400 graphs by their form, and after 800 new ones it raises an error: a daemon's last.

    A frame is some 40 of them, and each number of rows, with guidance and without, has its own.
    """
    os.environ.setdefault("MLX_CUDA_GRAPH_CACHE_SIZE", "4000")
