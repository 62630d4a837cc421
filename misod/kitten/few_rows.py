"""One token of a few rows on an NVIDIA GPU: a layer's products and what stands around them (misod/cuda.py)."""

from collections.abc import Callable

import mlx.core as mx

from misod import cuda
from misod.kitten.cache import Cache

LayerStep = Callable[[mx.array, int, Cache], mx.array]  # (x (B, D), layer, cache) -> (B, D)


def step_of(layer) -> LayerStep | None:
    """The layer of misod.kitten.model for one position of at most cuda.MAX_ROWS rows; None: not here."""
    attention, mlp = layer.self_attn, layer.mlp
    parts = attention.qkv_proj, attention.o_proj, mlp.gate_up_proj, mlp.down_proj
    norms = ((norm.weight, norm.eps) for norm in (layer.input_layernorm, layer.post_attention_layernorm))
    if not (launches := cuda.layer_products(parts, *norms)):
        return None
    qkv, add_output, gate_up, add_down = launches

    def step(x: mx.array, number: int, cache: Cache) -> mx.array:
        y = attention.attend(qkv(x)[:, None], number, cache)  # (B, 1, H d)
        x = add_output(y[:, 0], x)
        return add_down(gate_up(x), x)

    return step
