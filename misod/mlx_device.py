"""Where MLX computes."""

import mlx.core as mx


def backend() -> str:
    if mx.default_device() == mx.cpu:
        return "mlx cpu"
    return "mlx metal" if mx.metal.is_available() else "mlx cuda"


def compiles() -> bool:
    """Whether a compiled frame pays: on Metal alone. On CUDA and on a CPU it gains nothing (docs/performance.md), and
    its kernels take minutes of a compiler at first use."""
    return backend() == "mlx metal"
