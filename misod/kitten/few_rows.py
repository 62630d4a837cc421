"""One token of a few rows on an NVIDIA GPU: a layer in five launches and a write, not twelve (misod/cuda.py has the
products). The plain path, misod/kitten/model.py, is what it must agree with: tests/model/test_cuda.py compares them.
"""

from collections.abc import Callable

import mlx.core as mx

from misod import cuda
from misod.kitten.cache import Cache

LayerStep = Callable[[mx.array, int, Cache], mx.array]  # (x (B, D), layer, cache) -> (B, D)

LANES = 8  # to a position: each has 16 bytes of a key twice
WARPS = 16

# A block for each row and head of k and v. Its first warps norm and turn the heads of q and the key; then every eight
# lanes go through positions of their own, with a softmax as they go, and what all of them have is put together.
ATTEND = """
  constexpr int H = HKV * EACH, LONG = D / 8, AT_ONCE = 2, STRIDE = WARPS * 4;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, b = blockIdx.x / HKV, h = blockIdx.x % HKV;
  const int P = offsets[b], C = past_shape[2];
  __shared__ float heads[EACH + 1][D], value[D], parts[WARPS][EACH][D + 2];
  const bf16* from = qkv + b * (H + 2 * HKV) * D;
  bf16* to = kept + (b * 2 * HKV + h) * D;

  if (warp <= EACH) {
    const bf16* head = from + (warp < EACH ? h * EACH + warp : H + h) * D;
    const bf16* gains = warp < EACH ? q_gains : k_gains;
    float square = 0;
    for (int i = lane; i < D; i += 32) square += (float)head[i] * (float)head[i];
    for (int i = 16; i; i /= 2) square += __shfl_xor_sync(0xFFFFFFFF, square, i);
    const float factor = rsqrtf(square / D + EPS);
    for (int i = lane; i < D / 2; i += 32) {
      float sine, cosine;
      sincosf(P * theta[i], &sine, &cosine);
      const float x = (bf16)((float)head[i] * factor * (float)gains[i]);
      const float y = (bf16)((float)head[i + D / 2] * factor * (float)gains[i + D / 2]);
      heads[warp][i] = (bf16)(x * cosine - y * sine);
      heads[warp][i + D / 2] = (bf16)(x * sine + y * cosine);
    }
  } else if (warp == EACH + 1) {
    for (int i = lane; i < D; i += 32) value[i] = from[(H + HKV + h) * D + i];
  }
  __syncthreads();
  if (warp == 0) {
    for (int i = lane; i < D; i += 32) {
      to[i] = heads[EACH][i];
      to[HKV * D + i] = value[i];
    }
  }

  const int part = lane % 8, group = warp * 4 + lane / 8;
  float q[EACH][LONG], y[EACH][LONG] = {}, most[EACH], total[EACH] = {};
  for (int e = 0; e < EACH; e++) {
    most[e] = -INFINITY;
    for (int i = 0; i < LONG; i++) q[e][i] = heads[e][part * LONG + i] * SCALE;
  }
  auto scored = [&](int e, const float (&key)[LONG]) {
    float score = 0;
    for (int i = 0; i < LONG; i++) score += q[e][i] * key[i];
    for (int i = 4; i; i /= 2) score += __shfl_xor_sync(0xFFFFFFFF, score, i);
    return score;
  };
  auto take = [&](int e, float score, const float (&v)[LONG]) {
    const float before = most[e];
    most[e] = max(before, score);
    const float old = __expf(before - most[e]), weight = __expf(score - most[e]);
    total[e] = total[e] * old + weight;
    for (int i = 0; i < LONG; i++) y[e][i] = y[e][i] * old + weight * v[i];
  };
  auto widened = [&](const uint4 (&raw)[LONG / 8], float (&wide)[LONG]) {
    for (int i = 0; i < LONG / 8; i++) {
      const unsigned words[4] = {raw[i].x, raw[i].y, raw[i].z, raw[i].w};
      for (int j = 0; j < 4; j++) wide[i * 8 + 2 * j] = low(words[j]), wide[i * 8 + 2 * j + 1] = high(words[j]);
    }
  };
  {
    float key[LONG], v[LONG];
    for (int i = 0; i < LONG; i++) key[i] = heads[EACH][part * LONG + i], v[i] = value[part * LONG + i];
    for (int e = 0; e < EACH; e++) {
      const float score = scored(e, key);
      if (group == 0) take(e, score, v);
    }
  }
  const bf16* keys = past + (size_t)(b * 2 * HKV + h) * C * D + part * LONG;
  const bf16* values = keys + (size_t)HKV * C * D;
  for (int first = 0; first < P; first += STRIDE * AT_ONCE) {
    uint4 raw_k[AT_ONCE][LONG / 8], raw_v[AT_ONCE][LONG / 8];
    for (int n = 0; n < AT_ONCE; n++) {
      const int at = min(first + n * STRIDE + group, P - 1);
      for (int i = 0; i < LONG / 8; i++) {
        raw_k[n][i] = ((const uint4*)(keys + (size_t)at * D))[i];
        raw_v[n][i] = ((const uint4*)(values + (size_t)at * D))[i];
      }
    }
    for (int n = 0; n < AT_ONCE; n++) {
      float key[LONG], v[LONG];
      widened(raw_k[n], key);
      widened(raw_v[n], v);
      for (int e = 0; e < EACH; e++) {
        const float score = scored(e, key);
        if (first + n * STRIDE + group < P) take(e, score, v);
      }
    }
  }

  for (int e = 0; e < EACH; e++) {  // of a warp's four groups, then of all warps
    float top = most[e];
    for (int i = 8; i < 32; i *= 2) top = max(top, __shfl_xor_sync(0xFFFFFFFF, top, i));
    const float share = most[e] == -INFINITY ? 0 : __expf(most[e] - top);
    float sum = total[e] * share;
    for (int i = 8; i < 32; i *= 2) sum += __shfl_xor_sync(0xFFFFFFFF, sum, i);
    for (int i = 0; i < LONG; i++) {
      float z = y[e][i] * share;
      for (int j = 8; j < 32; j *= 2) z += __shfl_xor_sync(0xFFFFFFFF, z, j);
      if (lane < 8) parts[warp][e][part * LONG + i] = z;
    }
    if (lane == 0) parts[warp][e][D] = top, parts[warp][e][D + 1] = sum;
  }
  __syncthreads();
  for (int n = threadIdx.x; n < EACH * D; n += WARPS * 32) {
    const int e = n / D, i = n % D;
    float top = -INFINITY, sum = 0, z = 0;
    for (int w = 0; w < WARPS; w++) top = max(top, parts[w][e][D]);
    for (int w = 0; w < WARPS; w++) {
      const float share = parts[w][e][D] == -INFINITY ? 0 : __expf(parts[w][e][D] - top);
      sum += parts[w][e][D + 1] * share;
      z += parts[w][e][i] * share;
    }
    out[(b * H + h * EACH) * D + n] = z / sum;
  }
"""


def attention(attn) -> Callable[[mx.array, mx.array, mx.array], tuple[mx.array, mx.array]] | None:
    """(qkv (B, (H + 2 Hkv) d), past (B, 2 Hkv, C, d), offsets (B,)) -> (B, H d), and what is to be written (B, 2 Hkv,
    1, d): misod.kitten.model.Attention for one position, norms and all. None where its shape is not served.
    """
    H, Hkv, d = attn.heads, attn.kv_heads, attn.head_dim
    if d % (8 * LANES) or H % Hkv or H // Hkv > 4:
        return None
    each = H // Hkv
    settings = {"HKV": Hkv, "EACH": each, "D": d, "WARPS": WARPS, "SCALE": float(d**-0.5), "EPS": attn.q_norm.eps}
    theta = 1 / attn.theta ** (mx.arange(0, d, 2, dtype=mx.float32) / d)
    mx.eval(theta)
    kernel = mx.fast.cuda_kernel(
        name=f"attend_{H}_{Hkv}_{d}",
        input_names=["qkv", "past", "offsets", "theta", "q_gains", "k_gains"],
        output_names=["out", "kept"],
        header=cuda.HEADER,
        source=cuda.constants(**settings) + ATTEND,
    )
    gains = attn.q_norm.weight, attn.k_norm.weight

    def run(qkv: mx.array, past: mx.array, offsets: mx.array) -> tuple[mx.array, mx.array]:
        B = qkv.shape[0]
        return kernel(
            inputs=[qkv, past, offsets, theta, *gains],
            output_shapes=[(B, H * d), (B, 2 * Hkv, 1, d)],
            output_dtypes=[mx.bfloat16, mx.bfloat16],
            grid=(B * Hkv * WARPS * 32, 1, 1),
            threadgroup=(WARPS * 32, 1, 1),
        )

    return run


def step_of(layer) -> LayerStep | None:
    """The layer of misod.kitten.model for one position of at most cuda.MAX_ROWS rows; None: not here."""
    attn, mlp = layer.self_attn, layer.mlp
    parts = attn.qkv_proj, attn.o_proj, mlp.gate_up_proj, mlp.down_proj
    norms = ((norm.weight, norm.eps) for norm in (layer.input_layernorm, layer.post_attention_layernorm))
    if not (launches := cuda.layer_products(parts, *norms)) or not (attend := attention(attn)):
        return None
    qkv, add_output, gate_up, add_down = launches

    def step(x: mx.array, number: int, cache: Cache) -> mx.array:
        y, kept = attend(qkv(x), cache.kv[number], cache.offsets)
        cache.write(number, kept)
        x = add_output(y, x)
        return add_down(gate_up(x), x)

    return step
