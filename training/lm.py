"""The language model: MisoTTS's architecture, names and maths (torchtune spelling), in torch, for training.

backbone over rows (a text token or the sum of a frame's K code embeddings) -> codebook 0; depth decoder inside a
frame -> codebooks 1..K-1. Shorthand: B rows, T positions, K codebooks, D width, V audio vocabulary.
"""

import math

import torch
import torch.nn.functional as F
from torch import nn

ROPE = {
    "max_seq_len": 2048,
    "norm_eps": 1e-5,
    "rope_base": 500000,
    "rope_scale_factor": 32,
    "rope_low_freq_factor": 1,
    "rope_high_freq_factor": 4,
    "rope_old_context_len": 8192,
    "rope_interleaved": True,
    "attn_dropout": 0.0,
}
CONFIG = {
    "backbone": {
        "num_layers": 8,
        "num_heads": 4,
        "num_kv_heads": 2,
        "embed_dim": 256,
        "intermediate_dim": 704,
        "head_dim": 64,
        **ROPE,
    },
    "decoder": {
        "num_layers": 3,
        "num_heads": 3,
        "num_kv_heads": 1,
        "embed_dim": 192,
        "intermediate_dim": 512,
        "head_dim": 64,
        **ROPE,
    },
    "text_vocab_size": 512,
    "audio_vocab_size": 515,
    "audio_num_codebooks": 16,
}


def rope_table(c):
    """cos and sin [max_seq_len, head_dim / 2], Llama-3 scaled (torchtune Llama3ScaledRoPE)."""
    base = 1.0 / c["rope_base"] ** (torch.arange(0, c["head_dim"], 2).float() / c["head_dim"])
    wave = 2 * math.pi / base
    low, high, old = c["rope_low_freq_factor"], c["rope_high_freq_factor"], c["rope_old_context_len"]
    smooth = ((old / wave - low) / (high - low)).clamp(0, 1)  # 1: kept, 0: divided by the factor
    theta = smooth * base + (1 - smooth) * base / c["rope_scale_factor"]
    angle = torch.arange(c["max_seq_len"]).float()[:, None] * theta
    return angle.cos(), angle.sin()


def rotate(x, cos, sin):
    """RoPE on interleaved pairs. x [B, H, T, d]; cos, sin [.., T, d / 2]."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    return torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2).type_as(x)


class RMSNorm(nn.Module):
    def __init__(self, D, eps):
        super().__init__()
        self.scale, self.eps = nn.Parameter(torch.ones(D)), eps

    def forward(self, x):
        f = x.float()
        return (f * torch.rsqrt(f.square().mean(-1, keepdim=True) + self.eps)).type_as(x) * self.scale.type_as(x)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        D, d = c["embed_dim"], c["head_dim"]
        self.heads, self.kv_heads, self.dim = c["num_heads"], c["num_kv_heads"], d
        self.q_proj = nn.Linear(D, self.heads * d, bias=False)
        self.k_proj = nn.Linear(D, self.kv_heads * d, bias=False)
        self.v_proj = nn.Linear(D, self.kv_heads * d, bias=False)
        self.output_proj = nn.Linear(self.heads * d, D, bias=False)

    def forward(self, x, cos, sin, mask, cache=None, at=None):
        """mask [.., T, S] or None: causal. With a cache (k, v [B, H, S, d]) row b's T new keys go to at[b].."""
        split = lambda y, heads: y.unflatten(-1, (heads, self.dim)).transpose(1, 2)
        q, k = (
            rotate(split(self.q_proj(x), self.heads), cos, sin),
            rotate(split(self.k_proj(x), self.kv_heads), cos, sin),
        )
        v = split(self.v_proj(x), self.kv_heads)
        if cache is not None:
            for store, new in zip(cache, (k, v)):
                where = (at[:, None] + torch.arange(x.shape[1], device=x.device))[:, None, :, None]
                store.scatter_(2, where.expand_as(new), new)
            k, v = cache
        group = self.heads // self.kv_heads
        k, v = (y.repeat_interleave(group, 1) for y in (k, v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.output_proj(y.transpose(1, 2).flatten(2))


class MLP(nn.Module):
    def __init__(self, D, hidden):
        super().__init__()
        self.w1, self.w3 = nn.Linear(D, hidden, bias=False), nn.Linear(D, hidden, bias=False)
        self.w2 = nn.Linear(hidden, D, bias=False)

    def forward(self, x):
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Layer(nn.Module):
    def __init__(self, c, dropout):
        super().__init__()
        D, eps = c["embed_dim"], c["norm_eps"]
        self.attn, self.mlp = Attention(c), MLP(D, c["intermediate_dim"])
        self.sa_norm, self.mlp_norm, self.dropout = RMSNorm(D, eps), RMSNorm(D, eps), dropout

    def forward(self, x, *attention):
        x = x + F.dropout(self.attn(self.sa_norm(x), *attention), self.dropout, self.training)
        return x + F.dropout(self.mlp(self.mlp_norm(x)), self.dropout, self.training)


class Transformer(nn.Module):
    def __init__(self, c, dropout):
        super().__init__()
        self.config = c
        self.layers = nn.ModuleList(Layer(c, dropout) for _ in range(c["num_layers"]))
        self.norm = RMSNorm(c["embed_dim"], c["norm_eps"])
        for name, table in zip(("cos", "sin"), rope_table(c)):
            self.register_buffer(name, table, persistent=False)

    def forward(self, x, mask=None):
        T = x.shape[1]
        for layer in self.layers:
            x = layer(x, self.cos[:T], self.sin[:T], mask)
        return self.norm(x)

    def new_cache(self, B, size):
        shape = (B, self.config["num_kv_heads"], size, self.config["head_dim"])
        return [tuple(torch.zeros(shape, device=self.cos.device) for _ in "kv") for _ in self.layers]

    def extend(self, x, cache, at):
        """x [B, T, D] at positions at[b].. of row b, over a cache."""
        position = at[:, None] + torch.arange(x.shape[1], device=x.device)  # [B, T]
        cos, sin = self.cos[position][:, None], self.sin[position][:, None]
        mask = (torch.arange(cache[0][0].shape[2], device=x.device) <= position[..., None])[:, None]
        for layer, kv in zip(self.layers, cache):
            x = layer(x, cos, sin, mask, kv, at)
        return self.norm(x)


class Model(nn.Module):
    def __init__(self, config=CONFIG, dropout=0.0):
        super().__init__()
        b, d = config["backbone"], config["decoder"]
        self.config, self.V, self.K, self.dropout = (
            config,
            config["audio_vocab_size"],
            config["audio_num_codebooks"],
            dropout,
        )
        self.backbone, self.decoder = Transformer(b, dropout), Transformer(d, dropout)
        self.text_embeddings = nn.Embedding(config["text_vocab_size"], b["embed_dim"])
        self.audio_embeddings = nn.Embedding(self.V * self.K, b["embed_dim"])
        self.projection = nn.Linear(b["embed_dim"], d["embed_dim"], bias=False)
        self.codebook0_head = nn.Linear(b["embed_dim"], self.V, bias=False)
        self.audio_head = nn.Parameter(torch.empty(self.K - 1, d["embed_dim"], self.V))
        self.register_buffer("offsets", torch.arange(self.K) * self.V, persistent=False)
        self.initialise()

    @torch.no_grad()
    def initialise(self):
        for name, p in self.named_parameters():
            if p.dim() < 2:
                continue
            std = 0.7 * p.shape[-1] ** -0.5
            if name.endswith(("output_proj.weight", "w2.weight")):
                std /= math.sqrt(2 * self.config["backbone"]["num_layers"])
            nn.init.normal_(p, std=std)
        nn.init.normal_(self.text_embeddings.weight, std=0.3)
        nn.init.normal_(self.audio_embeddings.weight, std=0.1)
        nn.init.normal_(self.codebook0_head.weight, std=0.02)
        nn.init.normal_(self.audio_head, std=0.02)

    def embed_frames(self, codes):  # [..., K] -> [..., D]
        return self.audio_embeddings(codes + self.offsets).sum(-2)

    def hidden(self, text, codes, is_audio, segment):
        """-> [B, T, D]. text [B, T]; codes [B, T, K]; is_audio, segment [B, T]: rows see their own segment."""
        x = torch.where(is_audio[..., None], self.embed_frames(codes), self.text_embeddings(text))
        causal = torch.ones(text.shape[1], text.shape[1], dtype=torch.bool, device=text.device).tril()
        mask = (causal & (segment[:, :, None] == segment[:, None]))[:, None]
        return self.backbone(F.dropout(x, self.dropout, self.training), mask)

    def depth_logits(self, h, codes):
        """h [M, D] and its frames' codes [M, K] -> logits [M, K-1, V] of codebooks 1..K-1."""
        e = self.audio_embeddings(codes + self.offsets)[:, :-1]
        d = self.decoder(self.projection(torch.cat([h[:, None], e], 1)))
        return torch.einsum("mkd,kdv->mkv", d[:, 1:], self.audio_head.to(d.dtype))


def draw(logits, temperature, top_k, generator):
    """logits [B, V] -> codes [B]; temperature 0 is the argmax."""
    if temperature == 0:
        return logits.argmax(-1)
    least = logits.topk(top_k)[0][:, -1:]
    p = (logits / temperature).masked_fill(logits < least, -torch.inf).softmax(-1)
    return torch.multinomial(p, 1, generator=generator)[:, 0]


@torch.no_grad()
def generate(model, prompts, max_frames, temperature, top_k, seed=0):
    """prompts: lists of text ids. Returns per prompt codes [T, K] and whether it ended by itself (a frame of zeros)."""
    device, B = model.offsets.device, len(prompts)
    generator = torch.Generator(device).manual_seed(seed)
    length = torch.tensor([len(p) for p in prompts], device=device)
    ids = nn.utils.rnn.pad_sequence([torch.tensor(p) for p in prompts], batch_first=True).to(device)
    cache = model.backbone.new_cache(B, ids.shape[1] + max_frames)
    h = model.backbone.extend(model.text_embeddings(ids), cache, torch.zeros_like(length))
    h = h[torch.arange(B), length - 1]
    frames, ended = [], torch.zeros(B, dtype=torch.bool, device=device)
    count = torch.zeros_like(length)
    for step in range(max_frames):
        codes = [draw(model.codebook0_head(h), temperature, top_k, generator)]
        depth = model.decoder.new_cache(B, model.K)
        model.decoder.extend(model.projection(h)[:, None], depth, torch.zeros_like(length))
        for k in range(1, model.K):
            x = model.projection(model.audio_embeddings(codes[-1] + model.offsets[k - 1]))
            d = model.decoder.extend(x[:, None], depth, torch.full_like(length, k))[:, 0]
            codes.append(draw(d @ model.audio_head[k - 1], temperature, top_k, generator))
        frame = torch.stack(codes, 1)
        ended |= (frame == 0).all(1)
        count += ~ended
        frames.append(frame)
        if ended.all():
            break
        h = model.backbone.extend(model.embed_frames(frame)[:, None], cache, length + step)[:, 0]
    frames = torch.stack(frames, 1)
    return [frames[b, :n].cpu() for b, n in enumerate(count.tolist())], ended.tolist()
