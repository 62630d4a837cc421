"""Where MLX computes."""

import mlx.core as mx


def backend() -> str:
    if mx.default_device() == mx.cpu:
        return "mlx cpu"
    return "mlx metal" if mx.metal.is_available() else "mlx cuda"


def compiles() -> bool:
    """Whether frames are: on Metal alone. On CUDA it gains nothing, on a CPU little, and at first use a compiler takes
    a minute or two for the kernels (docs/performance.md)."""
    return backend() == "mlx metal"
