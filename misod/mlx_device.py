"""Where MLX computes."""

import mlx.core as mx


def backend() -> str:
    if mx.default_device() == mx.cpu:
        return "mlx cpu"
    return "mlx metal" if mx.metal.is_available() else "mlx cuda"
