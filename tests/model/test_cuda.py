"""The kernels for an NVIDIA GPU against the plain path. Where there is none they are not run: docs/performance.md says
where they were."""

from dataclasses import replace
from unittest.mock import patch

import mlx.core as mx
import pytest
from mlx import nn

from benchmarks.frame import random_model
from benchmarks.kitten import DIMS, SPEAKER_DIM
from misod import cuda
from misod.cuda import Packed, product
from misod.kitten.cache import Step, StepAlone
from misod.kitten.model import Model as Kitten
from misod.kitten.model import ModelArgs
from misod.miso.cache import KVCache, RowsCache
from misod.miso.model import Model
from misod.miso.transformer import RMSNorm
from misod.weights.dims import MISO_8B

pytestmark = pytest.mark.skipif(not cuda.is_here(), reason="needs MLX on an NVIDIA GPU")


def packed(N: int, K: int, bits: int, group: int = 64) -> nn.Module:
    layer = nn.Linear(K, N, bias=False)
    layer.weight = (mx.random.normal((N, K)) * 0.02).astype(mx.bfloat16)
    return nn.QuantizedLinear.from_linear(layer, group, bits)


def exact(layer: nn.Module, x: mx.array) -> mx.array:
    parts = (layer[part].astype(mx.float32) for part in ("scales", "biases"))
    return x @ mx.dequantize(layer.weight, *parts, layer.group_size, layer.bits).T


def error(got: mx.array, wanted: mx.array) -> float:
    return float(mx.linalg.norm(got.astype(mx.float32) - wanted) / mx.linalg.norm(wanted))


@pytest.mark.parametrize("rows", [1, 3, 8])
@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(("N", "K"), [(2304, 1536), (1536, 6912), (2051, 1536), (28_672, 4096), (48, 64)])
def test_a_product_is_the_plain_one(N, K, bits, rows):
    layer, x = packed(N, K, bits), mx.random.normal((rows, K)).astype(mx.bfloat16)
    assert error(product(Packed.of(layer))(x), exact(layer, x.astype(mx.float32))) < 3e-3


def test_a_product_in_groups_of_128():
    layer, x = packed(2304, 1536, 4, group=128), mx.random.normal((3, 1536)).astype(mx.bfloat16)
    assert error(product(Packed.of(layer))(x), exact(layer, x.astype(mx.float32))) < 3e-3


@pytest.mark.parametrize("bits", [4, 8])
def test_what_stands_before_and_after_a_product(bits):
    layer, x = packed(512, 1536, bits), (mx.random.normal((5, 1536)) * 3).astype(mx.bfloat16)
    norm = RMSNorm(1536, 1e-5)
    norm.scale = mx.random.uniform(0.5, 2, (1536,)).astype(mx.bfloat16)
    wide = x.astype(mx.float32)
    normed = mx.fast.rms_norm(wide, norm.scale.astype(mx.float32), 1e-5)
    assert error(product(Packed.of(layer), norm=(norm.scale, 1e-5))(x), exact(layer, normed)) < 6e-3
    gate, up = mx.split(exact(layer, normed), 2, axis=-1)
    assert error(product(Packed.of(layer), norm=(norm.scale, 1e-5), gated=True)(x), gate * mx.sigmoid(gate) * up) < 6e-3
    more = mx.random.normal((5, 512)).astype(mx.bfloat16)
    assert error(product(Packed.of(layer), added=True)(x, more), exact(layer, wide) + more) < 3e-3


@pytest.fixture(scope="module")
def models() -> tuple[Model, Model]:
    """The kernels' and the plain one, of the same weights: the 8B's shapes, two layers each."""
    shallow = [replace(part, num_layers=2) for part in (MISO_8B.backbone, MISO_8B.decoder)]
    args = replace(MISO_8B, backbone=shallow[0], decoder=shallow[1], text_vocab_size=64)
    kernels = random_model(args)
    with patch.object(cuda, "is_here", lambda: False):
        return kernels, random_model(args)


def caches(model: Model, rows: int) -> RowsCache:
    each = []
    for row in range(rows):
        each.append(KVCache(model.args.backbone.num_layers))
        x = mx.random.normal((1, 40 + row, model.args.backbone.embed_dim), key=mx.random.key(row))
        mx.eval(model.read(x.astype(mx.bfloat16), each[-1]))
    return RowsCache(each)


def test_a_position_of_the_backbone_and_a_frame_are_the_plain_ones(models):
    x = mx.random.normal((4, 1, MISO_8B.backbone.embed_dim), key=mx.random.key(9)).astype(mx.bfloat16)
    got, wanted = (model.read(x, caches(model, 4)) for model in models)
    assert error(got, wanted.astype(mx.float32)) < 2e-2

    given = mx.random.randint(0, 2048, (32, 4), key=mx.random.key(3))
    seen = []
    for model in models:
        logits = []
        model.frame(wanted, lambda k, each, logits=logits: logits.append(each) or given[k])
        seen.append(mx.stack(logits).astype(mx.float32))
    for k in range(32):
        assert error(seen[0][k], seen[1][k]) < 3e-2, k


def test_a_row_has_the_same_numbers_alone_and_in_company(models):
    kernels, _ = models
    last_h = mx.random.normal((8, MISO_8B.backbone.embed_dim), key=mx.random.key(5)).astype(mx.bfloat16)

    def logits(rows: mx.array) -> mx.array:
        made = []
        kernels.frame(rows, lambda k, each: made.append(each) or mx.argmax(each, axis=-1))
        return mx.stack(made)

    together = logits(last_h)
    for row in (0, 3, 7):
        assert mx.array_equal(logits(last_h[row : row + 1])[:, 0], together[:, row])


@pytest.fixture(scope="module")
def kittens() -> tuple[Kitten, Kitten]:
    """The kernels' and the plain one, of the same weights: the true shapes, two layers each."""

    def made() -> Kitten:
        model = Kitten(ModelArgs(**DIMS | {"num_hidden_layers": 2, "vocab_size": 64}, speaker_dim=SPEAKER_DIM))
        mx.random.seed(0)
        for layer in model.model.layers:
            for part in (layer.self_attn.qkv_proj, layer.self_attn.o_proj, layer.mlp.gate_up_proj, layer.mlp.down_proj):
                digits = mx.random.randint(0, 3, (*part.scales.shape, 128))
                shifts = mx.arange(0, 32, 4, dtype=mx.uint32)
                part.weight = (digits.astype(mx.uint32).reshape(*part.weight.shape, 8) << shifts).sum(axis=-1)
                part.scales = mx.random.uniform(0.01, 0.04, part.scales.shape)
                part.biases = -part.scales
            for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
                norm.weight = mx.random.uniform(0.5, 2, norm.weight.shape)
        model.set_dtype(mx.bfloat16)
        model.model.prepare()
        return model

    kernels = made()
    with patch.object(cuda, "is_here", lambda: False):
        return kernels, made()


@pytest.mark.parametrize("lengths", [[1], [300], [2000], [40, 300, 511, 5]])
def test_a_token_of_kitten_is_the_plain_one_and_is_kept(kittens, lengths):
    rows = len(lengths)
    shape = rows, 2 * DIMS["num_key_value_heads"], 2048, DIMS["head_dim"]
    past = [mx.random.normal(shape, key=mx.random.key(i)).astype(mx.bfloat16) for i in range(2)]
    x = mx.random.normal((rows, 1, DIMS["hidden_size"]), key=mx.random.key(9)).astype(mx.bfloat16)
    offsets, hidden, kept = mx.array(lengths, mx.int32), [], []
    for model in kittens:
        cache = StepAlone(past, lengths[0], offsets) if rows == 1 else Step(past, offsets)
        hidden.append(model(x, cache).astype(mx.float32))
        kept.append(mx.stack(cache.kv).astype(mx.float32))
    assert error(hidden[0], hidden[1]) < 2e-2
    assert error(kept[0], kept[1]) < 1e-3
    for row, length in enumerate(lengths):
        at = slice(length, length + 1)
        assert error(kept[0][:, row, :, at], kept[1][:, row, :, at]) < 2e-2
        assert not mx.array_equal(kept[0][:, row, :, at], mx.stack(past)[:, row, :, at].astype(mx.float32))


def test_a_row_of_kitten_has_the_same_numbers_alone_and_in_company(kittens):
    kernels, _ = kittens
    shape = 4, 2 * DIMS["num_key_value_heads"], 512, DIMS["head_dim"]
    past = [mx.random.normal(shape, key=mx.random.key(i)).astype(mx.bfloat16) for i in range(2)]
    x = mx.random.normal((4, 1, DIMS["hidden_size"]), key=mx.random.key(9)).astype(mx.bfloat16)
    offsets = mx.array([40, 300, 511, 5], mx.int32)
    together = kernels(x, Step(past, offsets))
    for row, length in enumerate(offsets.tolist()):
        alone = StepAlone([kv[row : row + 1] for kv in past], length, offsets[row : row + 1])
        assert mx.array_equal(kernels(x[row : row + 1], alone)[0], together[row])
