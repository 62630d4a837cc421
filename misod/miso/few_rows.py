"""One position of a few rows on an NVIDIA GPU: a layer in five launches, not twelve (misod/cuda.py has the products).

The plain path, misod/miso/model.py and transformer.py, is what all of this must agree with: tests/model/test_cuda.py
compares them.
"""

from collections.abc import Callable

import mlx.core as mx

from misod import cuda
from misod.cuda import Packed, constants, product

LANES = 32  # of a warp: each has as many of a head's numbers
MAX_POSITIONS = LANES  # of the depth decoder: a lane each

# One position of the depth decoder: q and k are turned to position P, what was before is in `past` (B, HKV, 2, P, D),
# and `kept` is that with this position. A block for each row and head of k and v, a warp for each head of q.
ATTEND = """
  constexpr int H = HKV * EACH;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, b = blockIdx.x / HKV, h = blockIdx.x % HKV;
  const int P = PAST;
  __shared__ float q[EACH][D], key[D], value[D];
  const bf16* from = qkv + b * (H + 2 * HKV) * D;
  bf16* to = kept + (b * HKV + h) * 2 * (P + 1) * D;

  auto turned = [&](const bf16* head, int i, float* into) {
    float sine, cosine, x = head[2 * i], y = head[2 * i + 1];
    sincosf(P * theta[i], &sine, &cosine);
    into[2 * i] = (bf16)(x * cosine - y * sine);
    into[2 * i + 1] = (bf16)(x * sine + y * cosine);
  };
  for (int i = lane; i < D / 2; i += 32) turned(from + (h * EACH + warp) * D, i, q[warp]);
  if (warp == 0) for (int i = lane; i < D / 2; i += 32) turned(from + (H + h) * D, i, key);
  if (warp == EACH - 1) for (int i = lane; i < D; i += 32) value[i] = from[(H + HKV + h) * D + i];
  __syncthreads();
  for (int i = threadIdx.x; i < D; i += EACH * 32) {
    to[P * D + i] = key[i];
    to[(2 * P + 1) * D + i] = value[i];
  }
  BEFORE
  float score = -INFINITY;
  if (lane <= P) {
    score = 0;
    for (int i = 0; i < D; i++) score += q[warp][i] * (lane < P ? (float)AT(0, lane, i) : key[i]);
    score *= SCALE;
  }
  float most = score;
  for (int i = 16; i; i /= 2) most = max(most, __shfl_xor_sync(0xFFFFFFFF, most, i));
  float weight = __expf(score - most), total = weight;
  for (int i = 16; i; i /= 2) total += __shfl_xor_sync(0xFFFFFFFF, total, i);
  float y[D / 32] = {};
  for (int j = 0; j <= P; j++) {
    const float share = __shfl_sync(0xFFFFFFFF, weight, j);
    for (int i = 0; i < D / 32; i++) y[i] += share * (j < P ? (float)AT(1, j, i * 32 + lane) : value[i * 32 + lane]);
  }
  for (int i = 0; i < D / 32; i++) out[(b * H + h * EACH + warp) * D + i * 32 + lane] = y[i] / total;
"""
BEFORE = """
  const bf16* old = past + (b * HKV + h) * 2 * P * D;
  for (int i = threadIdx.x * 8; i < P * D; i += EACH * 256) {
    *(uint4*)(to + i) = *(const uint4*)(old + i);
    *(uint4*)(to + (P + 1) * D + i) = *(const uint4*)(old + P * D + i);
  }
"""


def depth_attention(heads: int, kv_heads: int, head_dim: int, theta: mx.array) -> Callable:
    """(qkv (B, (H + 2 Hkv) d), past (B, Hkv, 2, P, d) or None) -> (B, H d), and past with this position."""
    each = heads // kv_heads
    settings = constants(HKV=kv_heads, EACH=each, D=head_dim, SCALE=float(head_dim**-0.5))

    def kernel(first: bool):
        source = ATTEND.replace("PAST", "0" if first else "past_shape[3]").replace("BEFORE", "" if first else BEFORE)
        at = "#define AT(c, j, i) " + ("key[i]" if first else "old[((c) * P + (j)) * D + (i)]") + "\n"
        return mx.fast.cuda_kernel(
            name=f"depth_{heads}_{kv_heads}_{head_dim}_{int(first)}",
            input_names=["qkv", "theta", *([] if first else ["past"])],
            output_names=["out", "kept"],
            header=cuda.HEADER,
            source=at + settings + source,
        )

    begin, go_on, kinds = kernel(True), kernel(False), [mx.bfloat16, mx.bfloat16]

    def run(qkv: mx.array, past: mx.array | None) -> tuple[mx.array, mx.array]:
        B, P = qkv.shape[0], 0 if past is None else past.shape[3]
        return (begin if past is None else go_on)(
            inputs=[qkv, theta] if past is None else [qkv, theta, past],
            output_shapes=[(B, heads * head_dim), (B, kv_heads, 2, P + 1, head_dim)],
            output_dtypes=kinds,
            grid=(B * heads * 32, 1, 1),
            threadgroup=(each * 32, 1, 1),
        )

    return run


def products(layer) -> tuple | None:
    """cuda.layer_products of a layer of misod.miso.transformer, prepared."""
    parts = layer.attn.get("qkv_proj"), layer.attn.output_proj, layer.mlp.get("w13"), layer.mlp.w2
    return cuda.layer_products(parts, *((norm.scale, norm.eps) for norm in (layer.sa_norm, layer.mlp_norm)))


def step_of(layer) -> Callable | None:
    """The layer for one position of at most MAX_ROWS rows, x (B, D); None where that is not served here."""
    if not (launches := products(layer)):
        return None
    (qkv, add_output, gate_up, add_down), scale = launches, layer.attn.scale

    def step(x: mx.array, number: int, cache, turn: Callable) -> mx.array:
        y = cache.attend(number, *turn(qkv(x)), scale)  # (B, H, 1, d)
        x = add_output(y.reshape(x.shape[0], -1), x)
        return add_down(gate_up(x), x)

    return step


class Depth:
    """A frame's codebooks: the heads and the depth decoder, its K and V in what each position returns."""

    def __init__(self, project: Callable, heads: list[Callable], layers: list[tuple], attend: Callable):
        self._project, self._heads, self._layers, self._attend = project, heads, layers, attend

    @classmethod
    def of(cls, model) -> "Depth | None":
        """Of a misod.miso.model.Model, prepared; None where it is not served here."""
        decoder, heads, args = model.decoder, model.audio_head, model.args.decoder
        layers = [products(layer) for layer in decoder.layers]
        before = [Packed.of(layer) for layer in (model.projection, model.codebook0_head)]
        few = model.args.audio_num_codebooks <= MAX_POSITIONS and args.head_dim % LANES == 0
        if not (few and all((*layers, *before)) and Packed.fit(heads)):
            return None
        rest = [Packed(*matrix, heads.bits, heads.group_size) for matrix in heads.matrices()]
        norm = decoder.norm.scale, decoder.norm.eps
        project, first = map(product, before)
        attend = depth_attention(args.num_heads, args.num_kv_heads, args.head_dim, decoder.rope.theta)
        return cls(project, [first, *(product(matrix, norm=norm) for matrix in rest)], layers, attend)

    def begin(self, last_h: mx.array) -> tuple[mx.array, Callable[[int, mx.array], mx.array]]:
        """See misod.miso.model.Model.at_depth."""
        past = [None] * len(self._layers)
        self._step(self._project(last_h), past)
        return self._heads[0](last_h), lambda k, x: self._heads[k](self._step(x, past))

    def _step(self, x: mx.array, past: list[mx.array | None]) -> mx.array:
        """x (B, Dd) -> the last layer's output (B, Dd), not normed; `past`, of each layer, is moved on."""
        for i, (qkv, add_output, gate_up, add_down) in enumerate(self._layers):
            y, past[i] = self._attend(qkv(x), past[i])
            x = add_output(y, x)
            x = add_down(gate_up(x), x)
        return x
