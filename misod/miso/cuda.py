"""One position of a few rows on an NVIDIA GPU, where a frame is bound by launches and by products of a few rows.

A product of 1 to 8 rows with a packed matrix, with what stands before and after it: five launches a layer, not twelve.
Tensor cores read a weight once for all rows, always eight, so a row's sums have one order whoever else speaks.
The plain path (misod/miso/model.py) is what all of this must agree with: benchmarks/cuda_kernels.py compares them.
"""

from collections.abc import Callable

import mlx.core as mx
from mlx import nn

from misod.weights.dims import TransformerArgs

MAX_ROWS = 8  # of an mma tile
MAX_POSITIONS = 32  # of the depth decoder: a lane each
GROUP = 64
WARPS = 8
WIDE = 16_384  # outputs from which a warp makes two tiles

HEADER = """
using bf16 = __nv_bfloat16;

__device__ inline void mma(float (&c)[4], unsigned a0, unsigned a1, unsigned a2, unsigned a3, unsigned b0,
                           unsigned b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ inline unsigned multiplied(unsigned a, unsigned b, unsigned c) {  // of pairs
  unsigned d;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Numbers 0..15 or 0..255 as pairs of bf16, all exact. Of 4 bits the pairs are (0,4) (1,5) (2,6) (3,7), of 8 (0,1)...
template <int BITS> struct Packed;

template <> struct Packed<4> {
  using Load = uint2;
  __device__ static void unpack(Load v, unsigned (&pairs)[8]) {
    const unsigned words[2] = {v.x, v.y};
    for (int i = 0; i < 8; i++) {
      unsigned bits = ((words[i / 4] >> (4 * (i % 4))) & 0x000F000F) | 0x43004300;  // 128 + q
      pairs[i] = multiplied(bits, 0x3F803F80, 0xC300C300);  // less 128
    }
  }
  __device__ static void order(const unsigned (&x)[8], unsigned (&pairs)[8]) {
    for (int i = 0; i < 8; i += 4) {
      pairs[i] = __byte_perm(x[i], x[i + 2], 0x5410);
      pairs[i + 1] = __byte_perm(x[i], x[i + 2], 0x7632);
      pairs[i + 2] = __byte_perm(x[i + 1], x[i + 3], 0x5410);
      pairs[i + 3] = __byte_perm(x[i + 1], x[i + 3], 0x7632);
    }
  }
};

template <> struct Packed<8> {
  using Load = uint4;
  __device__ static void unpack(Load v, unsigned (&pairs)[8]) {
    const unsigned words[4] = {v.x, v.y, v.z, v.w};
    for (int i = 0; i < 8; i++) {
      unsigned word = words[i / 2], at = 2 * (i % 2);
      float low = __uint_as_float(__byte_perm(word, 0x4B000000, 0x7540 + at)) - 8388608.0f;  // 2^23 + q
      float high = __uint_as_float(__byte_perm(word, 0x4B000000, 0x7541 + at)) - 8388608.0f;
      pairs[i] = __byte_perm(__float_as_uint(low), __float_as_uint(high), 0x7632);
    }
  }
  __device__ static void order(const unsigned (&x)[8], unsigned (&pairs)[8]) {
    for (int i = 0; i < 8; i++) pairs[i] = x[i];
  }
};

__device__ inline float low(unsigned pair) { return __uint_as_float(pair << 16); }
__device__ inline float high(unsigned pair) { return __uint_as_float(pair & 0xFFFF0000); }
"""

# x (B <= 8, K) times w (N, K) of BITS bits in groups of 64. A block makes 16 rows of w in each of its TILES, its warps
# each a share of K. GATED: silu of rows n times rows n + N / 2. The norm's factor, the same along K, comes last.
PRODUCT = """
  constexpr int GROUPS = K / 64, OUT = GATED ? N / 2 : N, MADE = GATED ? 16 : 16 * TILES;
  using Load = typename Packed<BITS>::Load;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int B = x_shape[0], first = blockIdx.x * MADE;
  __shared__ float sums[WARPS][16 * TILES][9], squares[WARPS][8];

  float acc[TILES][4] = {}, square = 0;
  #pragma unroll 2
  for (int q = warp; q < GROUPS; q += WARPS) {
    const int k = q * 64 + t * 16;
    unsigned raw[8] = {}, pairs[8];
    if (g < B) {
      *(uint4*)raw = *(const uint4*)(x + g * K + k);
      *(uint4*)(raw + 4) = *(const uint4*)(x + g * K + k + 8);
    }
    if constexpr (NORM) {
      unsigned gain[8];
      *(uint4*)gain = *(const uint4*)(gains + k);
      *(uint4*)(gain + 4) = *(const uint4*)(gains + k + 8);
      for (int i = 0; i < 8; i++) {
        square += low(raw[i]) * low(raw[i]) + high(raw[i]) * high(raw[i]);
        raw[i] = multiplied(raw[i], gain[i], 0x80008000);
      }
    }
    Packed<BITS>::order(raw, pairs);
    float all[4] = {};  // the sum of x over the group, which the biases multiply
    for (int i = 0; i < 8; i += 2) mma(all, 0x3F803F80, 0x3F803F80, 0x3F803F80, 0x3F803F80, pairs[i], pairs[i + 1]);
    for (int m = 0; m < TILES; m++) {
      const int row = first + (GATED ? m * OUT : m * 16) + g;
      const int a = min(row, N - 1), b = min(row + 8, N - 1);
      unsigned upper[8], lower[8];
      Packed<BITS>::unpack(*(const Load*)(w + (size_t)a * (K * BITS / 32) + k * BITS / 32), upper);
      Packed<BITS>::unpack(*(const Load*)(w + (size_t)b * (K * BITS / 32) + k * BITS / 32), lower);
      float c[4] = {};
      for (int i = 0; i < 8; i += 2) mma(c, upper[i], lower[i], upper[i + 1], lower[i + 1], pairs[i], pairs[i + 1]);
      const float sa = scales[a * GROUPS + q], ba = biases[a * GROUPS + q];
      const float sb = scales[b * GROUPS + q], bb = biases[b * GROUPS + q];
      acc[m][0] += sa * c[0] + ba * all[0];
      acc[m][1] += sa * c[1] + ba * all[1];
      acc[m][2] += sb * c[2] + bb * all[0];
      acc[m][3] += sb * c[3] + bb * all[1];
    }
  }
  for (int m = 0; m < TILES; m++) {
    sums[warp][m * 16 + g][2 * t] = acc[m][0];
    sums[warp][m * 16 + g][2 * t + 1] = acc[m][1];
    sums[warp][m * 16 + g + 8][2 * t] = acc[m][2];
    sums[warp][m * 16 + g + 8][2 * t + 1] = acc[m][3];
  }
  if constexpr (NORM) {
    square += __shfl_xor_sync(0xFFFFFFFF, square, 1);
    square += __shfl_xor_sync(0xFFFFFFFF, square, 2);
    if (t == 0) squares[warp][g] = square;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < MADE * B; i += WARPS * 32) {
    const int r = i % MADE, b = i / MADE, n = first + r;
    if (n >= OUT) continue;
    float y = 0, up = 0, factor = 1;
    for (int s = 0; s < WARPS; s++) y += sums[s][r][b];
    if constexpr (NORM) {
      float total = 0;
      for (int s = 0; s < WARPS; s++) total += squares[s][b];
      factor = rsqrtf(total / K + EPS);
      y *= factor;
    }
    if constexpr (GATED) {
      for (int s = 0; s < WARPS; s++) up += sums[s][r + 16][b];
      y = y / (1 + __expf(-y)) * up * factor;
    }
    out[b * OUT + n] = y RESIDUAL;
  }
"""

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


def constants(**values: int | float) -> str:
    kinds = {bool: "bool", int: "int", float: "float"}
    return "".join(f"constexpr {kinds[type(v)]} {name} = {str(v).lower()};\n" for name, v in values.items())


Product = Callable[..., mx.array]


def is_here() -> bool:
    """Whether MLX computes on an NVIDIA GPU that knows bf16 (compute capability 8.0)."""
    if mx.default_device() == mx.cpu or not mx.cuda.is_available():
        return False
    return mx.device_info().get("compute_capability_major", 0) >= 8


def reads(module: nn.Module) -> bool:
    """Whether `product` can multiply with this."""
    return (
        getattr(module, "mode", "") == "affine"
        and module.bits in (4, 8)
        and module.group_size == GROUP
        and module.scales.dtype == mx.bfloat16
    )


def product(module: nn.Module, norm: nn.Module | None = None, gated: bool = False, added: bool = False) -> Product:
    """(x (B, K)[, residual (B, N)]) -> (B, N), or (B, N / 2) where gated. B at most 8; x and all else bf16."""
    return packed_product(module.weight, module.scales, module.biases, module.bits, norm, gated, added)


def packed_product(
    w: mx.array,
    scales: mx.array,
    biases: mx.array,
    bits: int,
    norm: nn.Module | None = None,
    gated: bool = False,
    added: bool = False,
) -> Product:
    N, K = w.shape[0], w.shape[1] * 32 // bits
    out = N // 2 if gated else N
    tiles = 2 if gated or N > WIDE else 1
    made = 16 if gated else 16 * tiles
    settings = constants(
        N=N, K=K, BITS=bits, TILES=tiles, WARPS=WARPS, GATED=gated, NORM=norm is not None,
        EPS=float(norm.eps) if norm else 0.0,
    )  # fmt: skip
    fixed, names = [w, scales, biases], ["w", "scales", "biases"]
    if norm is not None:
        fixed, names = [*fixed, norm.scale], [*names, "gains"]
    else:
        settings += "constexpr const bf16* gains = nullptr;\n"
    kernel = mx.fast.cuda_kernel(
        name=f"product_{N}_{K}_{bits}_{int(gated)}{int(added)}{int(norm is not None)}",
        input_names=["x", *names, *(["residual"] if added else [])],
        output_names=["out"],
        header=HEADER,
        source=settings + PRODUCT.replace("RESIDUAL", "+ (float)residual[b * OUT + n]" if added else ""),
    )
    grid, block, kinds = (-(-out // made) * WARPS * 32, 1, 1), (WARPS * 32, 1, 1), [mx.bfloat16]

    def run(x: mx.array, *residual: mx.array) -> mx.array:
        inputs = [x, *fixed, *residual]
        return kernel(
            inputs=inputs, output_shapes=[(x.shape[0], out)], output_dtypes=kinds, grid=grid, threadgroup=block
        )[0]

    return run


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
            header=HEADER,
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


def serves(layers: list[nn.Module]) -> bool:
    """Whether these layers, prepared, can take their steps here."""
    parts = (part for layer in layers for part in (layer.attn.output_proj, layer.mlp.w2, *joined(layer)))
    return is_here() and all(part is not None and reads(part) for part in parts)


def joined(layer: nn.Module) -> tuple[nn.Module | None, nn.Module | None]:
    return layer.attn.get("qkv_proj"), layer.mlp.get("w13")


def products(layer: nn.Module) -> tuple[Product, Product, Product, Product]:
    """norm and qkv; output and sum; norm, gate and up; down and sum."""
    qkv, gate_up = joined(layer)
    return (
        product(qkv, norm=layer.sa_norm),
        product(layer.attn.output_proj, added=True),
        product(gate_up, norm=layer.mlp_norm, gated=True),
        product(layer.mlp.w2, added=True),
    )


class Depth:
    """The depth decoder, position by position, its K and V in what each step returns."""

    def __init__(self, layers: list[nn.Module], args: TransformerArgs, theta: mx.array):
        self._layers = [products(layer) for layer in layers]
        self._attend = depth_attention(args.num_heads, args.num_kv_heads, args.head_dim, theta)

    def step(self, x: mx.array, past: list[mx.array | None]) -> mx.array:
        """x (B, Dd) -> the last layer's output (B, Dd), not normed; `past`, of each layer, is moved on."""
        for i, (qkv, add_output, gate_up, add_down) in enumerate(self._layers):
            y, past[i] = self._attend(qkv(x), past[i])
            x = add_output(y, x)
            x = add_down(gate_up(x), x)
        return x
