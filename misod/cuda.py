"""Products of a few rows with packed matrices on an NVIDIA GPU, with what stands before and after them in one launch.

Tensor cores read a weight once for all rows, and always multiply eight: eight rows take about as long as one, and a
row's sums have the same order whoever else is there. MLX's own products take several times as long from two rows on.
"""

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

MAX_ROWS = 8  # of an mma tile
GROUPS = (64, 128)
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
template <int BITS> struct Digits;

template <> struct Digits<4> {
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

template <> struct Digits<8> {
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

# x (B <= 8, K) times w (N, K) of BITS bits in groups of GROUP. A block takes 16 rows of w in each of its TILES, each of
# its warps a share of K. GATED: silu of rows n times rows n + N / 2. The norm's factor, the same along K, comes last.
PRODUCT = """
  constexpr int GROUPS = K / GROUP, OUT = GATED ? N / 2 : N, MADE = GATED ? 16 : 16 * TILES;
  using Load = typename Digits<BITS>::Load;
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
  const int B = x_shape[0], first = blockIdx.x * MADE;
  __shared__ float sums[WARPS][16 * TILES][9], squares[WARPS][8];

  float acc[TILES][4] = {}, square = 0;
  #pragma unroll 2
  for (int q = warp; q < K / 64; q += WARPS) {
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
    Digits<BITS>::order(raw, pairs);
    float all[4] = {};  // the sum of x over the group, which the biases multiply
    for (int i = 0; i < 8; i += 2) mma(all, 0x3F803F80, 0x3F803F80, 0x3F803F80, 0x3F803F80, pairs[i], pairs[i + 1]);
    for (int m = 0; m < TILES; m++) {
      const int row = first + (GATED ? m * OUT : m * 16) + g;
      const int a = min(row, N - 1), b = min(row + 8, N - 1);
      unsigned upper[8], lower[8];
      Digits<BITS>::unpack(*(const Load*)(w + (size_t)a * (K * BITS / 32) + k * BITS / 32), upper);
      Digits<BITS>::unpack(*(const Load*)(w + (size_t)b * (K * BITS / 32) + k * BITS / 32), lower);
      float c[4] = {};
      for (int i = 0; i < 8; i += 2) mma(c, upper[i], lower[i], upper[i + 1], lower[i + 1], pairs[i], pairs[i + 1]);
      const int upon = a * GROUPS + q * 64 / GROUP, under = b * GROUPS + q * 64 / GROUP;
      const float sa = scales[upon], ba = biases[upon], sb = scales[under], bb = biases[under];
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


def constants(**values: int | float) -> str:
    kinds = {bool: "bool", int: "int", float: "float"}
    return "".join(f"constexpr {kinds[type(v)]} {name} = {str(v).lower()};\n" for name, v in values.items())


def is_here() -> bool:
    """Whether MLX computes on an NVIDIA GPU that knows bf16 (compute capability 8.0)."""
    if mx.default_device() == mx.cpu or not mx.cuda.is_available():
        return False
    return mx.device_info().get("compute_capability_major", 0) >= 8


@dataclass(frozen=True)
class Packed:
    """A matrix (N, K) in MLX's affine layout."""

    weight: mx.array
    scales: mx.array
    biases: mx.array
    bits: int
    group_size: int

    @classmethod
    def of(cls, layer) -> "Packed | None":
        """What a layer holds, if `product` can multiply with it."""
        if layer is None or not cls.fit(layer):
            return None
        return cls(layer.weight, layer.scales, layer.biases, layer.bits, layer.group_size)

    @staticmethod
    def fit(layer) -> bool:
        """Whether it is packed, and in a way that `product` knows."""
        return (
            isinstance(layer, dict)  # as a module is
            and "scales" in layer
            and getattr(layer, "mode", "affine") == "affine"
            and layer.bits in (4, 8)
            and layer.group_size in GROUPS
            and layer.scales.dtype == mx.bfloat16
        )


def product(
    matrix: Packed, norm: tuple[mx.array, float] | None = None, gated: bool = False, added: bool = False
) -> Callable[..., mx.array]:
    """(x (B, K)[, residual (B, N)]) -> (B, N), or (B, N / 2) where gated. B at most MAX_ROWS; x and all else bf16.

    norm: x is first normed, with these gains and epsilon. gated: silu of the first half of the outputs times the other.
    added: residual is added.
    """
    bits = matrix.bits
    N, K = matrix.weight.shape[0], matrix.weight.shape[1] * 32 // bits
    out = N // 2 if gated else N
    tiles = 2 if gated or N > WIDE else 1
    made = 16 if gated else 16 * tiles
    settings = constants(
        N=N, K=K, BITS=bits, GROUP=matrix.group_size, TILES=tiles, WARPS=WARPS, GATED=gated, NORM=norm is not None,
        EPS=norm[1] if norm else 0.0,
    )  # fmt: skip
    fixed, names = [matrix.weight, matrix.scales, matrix.biases], ["w", "scales", "biases"]
    if norm:
        fixed, names = [*fixed, norm[0]], [*names, "gains"]
    else:
        settings += "constexpr const bf16* gains = nullptr;\n"
    kernel = mx.fast.cuda_kernel(
        name=f"product_{N}_{K}_{bits}_{matrix.group_size}_{int(gated)}{int(added)}{int(norm is not None)}",
        input_names=["x", *names, *(["residual"] if added else [])],
        output_names=["out"],
        header=HEADER,
        source=settings + PRODUCT.replace("RESIDUAL", "+ (float)residual[b * OUT + n]" if added else ""),
    )
    launch = {"grid": (-(-out // made) * WARPS * 32, 1, 1), "threadgroup": (WARPS * 32, 1, 1)}

    def run(x: mx.array, *residual: mx.array) -> mx.array:
        shapes = [(x.shape[0], out)]
        return kernel(inputs=[x, *fixed, *residual], output_shapes=shapes, output_dtypes=[mx.bfloat16], **launch)[0]

    return run


def layer_products(layers: tuple, before: tuple[mx.array, float], between: tuple[mx.array, float]) -> tuple | None:
    """Of a decoder layer's four matrices, its norms' gains and epsilons: norm, q, k and v; output and sum; norm, gate
    and up; down and sum. None where these are not served here."""
    if not is_here() or not all(packed := [Packed.of(layer) for layer in layers]):
        return None
    qkv, output, gate_up, down = packed
    return (
        product(qkv, norm=before),
        product(output, added=True),
        product(gate_up, norm=between, gated=True),
        product(down, added=True),
    )
