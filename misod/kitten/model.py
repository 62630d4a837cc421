"""KittenTTS 2's language model: a Qwen3 over one vocabulary of text and speech, in the checkpoint's own names.

In the order it computes: Attention, MLP, Layer, Transformer, Model. Position 0 of every prompt is the speaker.
"""

from dataclasses import dataclass

import mlx.core as mx
import mlx.nn as nn

from misod.cuda import MAX_ROWS
from misod.gate import gated, gated_at_once
from misod.kitten import few_rows
from misod.kitten.cache import Cache
from misod.kitten.ternary import BITS, GROUP_SIZE

FEW_ROWS = 4  # up to here MLX's CPU backend multiplies packed weights faster than it unpacks them


@dataclass(frozen=True)
class ModelArgs:
    """Fields of lm/config.json, and the width of a speaker's embedding."""

    hidden_size: int
    num_hidden_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    rope_theta: float
    vocab_size: int
    speaker_dim: int

    def linears(self) -> dict[str, tuple[int, int]]:
        """A layer's ternary matrices and their shapes (out, in)."""
        D, hidden = self.hidden_size, self.intermediate_size
        queries, keys = self.num_attention_heads * self.head_dim, self.num_key_value_heads * self.head_dim
        return {
            "self_attn.q_proj": (queries, D),
            "self_attn.k_proj": (keys, D),
            "self_attn.v_proj": (keys, D),
            "self_attn.o_proj": (D, queries),
            "mlp.gate_proj": (hidden, D),
            "mlp.up_proj": (hidden, D),
            "mlp.down_proj": (D, hidden),
        }

    def products(self) -> dict[str, tuple[str, ...]]:
        """What a layer multiplies by -> which matrices, one above the other, are in it: those of one input are one."""
        return {
            "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
            "self_attn.o_proj": ("self_attn.o_proj",),
            "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
            "mlp.down_proj": ("mlp.down_proj",),
        }

    def product_shape(self, name: str) -> tuple[int, int]:
        shapes = [self.linears()[part] for part in self.products()[name]]
        return sum(rows for rows, _ in shapes), shapes[0][1]


class Ternary(nn.Module):
    """y = x W^T, W of -s, 0 and +s in its packed form."""

    def __init__(self, shape: tuple[int, int]):
        super().__init__()
        rows, columns = shape
        self.weight = mx.zeros((rows, columns * BITS // 32), mx.uint32)
        self.scales = self.biases = mx.zeros((rows, columns // GROUP_SIZE))
        self.bits, self.group_size = BITS, GROUP_SIZE

    def __call__(self, x: mx.array) -> mx.array:
        """x (..., in) -> (..., out)."""
        if x.size // x.shape[-1] > FEW_ROWS and mx.default_device() == mx.cpu:
            return x @ self._unpacked().T
        return mx.quantized_matmul(x, self.weight, self.scales, self.biases, True, self.group_size, self.bits)

    def _unpacked(self) -> mx.array:
        """W (out, in). mx.dequantize does the same, and takes twice as long on a CPU."""
        pair = self.weight.view(mx.uint8)  # the low digit first
        digits = mx.stack([pair & 15, pair >> BITS], axis=-1).reshape(*self.scales.shape, GROUP_SIZE)
        return ((digits.astype(self.scales.dtype) - 1) * self.scales[..., None]).flatten(1)


class Attention(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.qkv_proj = Ternary(args.product_shape("self_attn.qkv_proj"))
        self.o_proj = Ternary(args.product_shape("self_attn.o_proj"))
        self.q_norm = nn.RMSNorm(args.head_dim, eps=args.rms_norm_eps)
        self.k_norm = nn.RMSNorm(args.head_dim, eps=args.rms_norm_eps)
        self.heads, self.kv_heads = args.num_attention_heads, args.num_key_value_heads
        self.head_dim, self.theta = args.head_dim, args.rope_theta

    def __call__(self, x: mx.array, layer: int, cache: Cache) -> mx.array:
        return self.o_proj(self.attend(self.qkv_proj(x), layer, cache))

    def attend(self, qkv: mx.array, layer: int, cache: Cache) -> mx.array:
        """(B, T, (H + 2 Hkv) d) -> (B, T, H d)."""
        B, T, _ = qkv.shape
        parts = [self.heads, self.heads + self.kv_heads]
        q, k, v = mx.split(qkv.reshape(B, T, -1, self.head_dim), parts, axis=2)  # (B, T, H, d), (B, T, Hkv, d) twice
        q, k, v = (part.swapaxes(1, 2) for part in (self.q_norm(q), self.k_norm(k), v))
        q, k = (self._rotate(part, cache.offset) for part in (q, k))
        kv = mx.concatenate([k, v], axis=1)
        return cache.attend(layer, q, kv, self.head_dim**-0.5).swapaxes(1, 2).reshape(B, T, -1)

    def _rotate(self, x: mx.array, offset: int | mx.array) -> mx.array:
        return mx.fast.rope(x, self.head_dim, traditional=False, base=self.theta, scale=1.0, offset=offset)


class MLP(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.gate_up_proj = Ternary(args.product_shape("mlp.gate_up_proj"))
        self.down_proj = Ternary(args.product_shape("mlp.down_proj"))
        self._gated = gated if mx.default_device() == mx.cpu else gated_at_once

    def __call__(self, x: mx.array) -> mx.array:
        return self.down_proj(self._gated(*mx.split(self.gate_up_proj(x), 2, axis=-1)))


class Layer(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.self_attn = Attention(args)
        self.mlp = MLP(args)
        self.input_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)

    def __call__(self, x: mx.array, layer: int, cache: Cache) -> mx.array:
        x = x + self.self_attn(self.input_layernorm(x), layer, cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Transformer(nn.Module):
    def __init__(self, args: ModelArgs):
        super().__init__()
        self.embed_tokens = nn.Embedding(args.vocab_size, args.hidden_size)
        self.layers = [Layer(args) for _ in range(args.num_hidden_layers)]
        self.norm = nn.RMSNorm(args.hidden_size, eps=args.rms_norm_eps)
        self._few: list[few_rows.LayerStep] = []

    def prepare(self) -> None:
        """Once the weights are loaded."""
        steps = [few_rows.step_of(layer) for layer in self.layers]
        self._few = steps if all(steps) else []

    def __call__(self, x: mx.array, cache: Cache) -> mx.array:
        """x (B, T, D) at the cache's offset -> the normed hidden state of the last position (B, D)."""
        if self._few and x.shape[1] == 1 and len(x) <= MAX_ROWS:
            x = x[:, 0]
            for i, step in enumerate(self._few):
                x = step(x, i, cache)
            return self.norm(x)
        for i, layer in enumerate(self.layers):
            x = layer(x, i, cache)
        return self.norm(x[:, -1])


class Model(nn.Module):
    """Tokens in, the hidden state that the next is drawn from out. The head is the embedding: decode.Vocabulary."""

    def __init__(self, args: ModelArgs):
        super().__init__()
        self.args = args
        self.model = Transformer(args)
        self.spk_proj = [nn.Linear(args.speaker_dim, args.hidden_size), nn.LayerNorm(args.hidden_size)]

    @property
    def dtype(self) -> mx.Dtype:
        """Of activations, and so of what a cache holds."""
        return self.model.norm.weight.dtype

    def speaker_row(self, embedding: mx.array) -> mx.array:
        """A speaker's embedding (speaker_dim,) -> what stands at position 0 (D,)."""
        linear, norm = self.spk_proj
        return norm(linear(embedding.astype(self.dtype)))

    def embed(self, tokens: mx.array) -> mx.array:
        """(..., ) -> (..., D)."""
        return self.model.embed_tokens(tokens).astype(self.dtype)

    def __call__(self, x: mx.array, cache: Cache) -> mx.array:
        """x (B, T, D) -> (B, D), of the last position."""
        return self.model(x, cache)
