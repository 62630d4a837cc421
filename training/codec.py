"""A small Mimi: SEANet encoder and decoder, two small transformers, a split residual quantiser.

Module names are those of Kyutai's published checkpoint (moshi), so a state dict is an export.
wav [B, 1, T*1920] <-> codes [B, K, T]; 12.5 frames a second. Causal throughout; the transformers see
`context` steps (at 25 a second) back. Shorthand: C channels, D width, Q quantiser width.
"""

import torch
import torch.nn.functional as F
from torch import nn

CONFIG = {
    "sample_rate": 24000,
    "channels": 1,
    "frame_rate": 12.5,
    "seanet": {
        "channels": 1,
        "dimension": 192,
        "causal": True,
        "n_filters": 24,
        "n_residual_layers": 1,
        "activation": "ELU",
        "compress": 2,
        "dilation_base": 2,
        "disable_norm_outer_blocks": 0,
        "kernel_size": 7,
        "residual_kernel_size": 3,
        "last_kernel_size": 3,
        "norm": "none",
        "pad_mode": "constant",
        "ratios": [8, 6, 5, 4],
        "true_skip": True,
    },
    "quantizer": {"dimension": 32, "n_q": 16, "bins": 512, "input_dimension": 192, "output_dimension": 192},
    "transformer": {
        "d_model": 192,
        "num_heads": 4,
        "num_layers": 2,
        "causal": True,
        "layer_scale": 0.01,
        "context": 75,
        "conv_layout": True,
        "max_period": 10000,
        "gating": "none",
        "norm": "layer_norm",
        "positional_embedding": "rope",
        "dim_feedforward": 512,
        "input_dimension": 192,
        "output_dimensions": [192],
    },
}
EMA, DEAD = 0.97, 0.05  # codebook averaging; a code used less than DEAD of its fair share is moved


class Inner(nn.Module):
    """One level of naming: moshi nests conv.conv, convtr.convtr, transformer."""

    def __init__(self, **modules):
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)


class Conv(nn.Module):
    def __init__(self, c_in, c_out, kernel, stride=1, groups=1, bias=True, pad="constant"):
        super().__init__()
        self.conv = Inner(conv=nn.Conv1d(c_in, c_out, kernel, stride, groups=groups, bias=bias))
        self.left, self.pad = kernel - stride, pad

    def forward(self, x):
        return self.conv.conv(F.pad(x, (self.left, 0), mode=self.pad))


class ConvTranspose(nn.Module):
    def __init__(self, c_in, c_out, kernel, stride, groups=1, bias=True):
        super().__init__()
        self.convtr = Inner(convtr=nn.ConvTranspose1d(c_in, c_out, kernel, stride, groups=groups, bias=bias))
        self.trim = kernel - stride

    def forward(self, x):
        return self.convtr.convtr(x)[..., : -self.trim]


class Residual(nn.Module):
    def __init__(self, c, kernel, compress):
        super().__init__()
        self.block = nn.Sequential(nn.ELU(), Conv(c, c // compress, kernel), nn.ELU(), Conv(c // compress, c, 1))

    def forward(self, x):
        return x + self.block(x)


class SEANet(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.model = nn.Sequential(*layers)

    def forward(self, x):
        return self.model(x)


def seanet_encoder(c):
    n, layers = c["n_filters"], [Conv(1, c["n_filters"], c["kernel_size"])]
    for r in reversed(c["ratios"]):
        layers += [Residual(n, c["residual_kernel_size"], c["compress"]), nn.ELU(), Conv(n, 2 * n, 2 * r, r)]
        n *= 2
    return SEANet([*layers, nn.ELU(), Conv(n, c["dimension"], c["last_kernel_size"])])


def seanet_decoder(c):
    n = c["n_filters"] * 2 ** len(c["ratios"])
    layers = [Conv(c["dimension"], n, c["kernel_size"])]
    for r in c["ratios"]:
        layers += [
            nn.ELU(),
            ConvTranspose(n, n // 2, 2 * r, r),
            Residual(n // 2, c["residual_kernel_size"], c["compress"]),
        ]
        n //= 2
    return SEANet([*layers, nn.ELU(), Conv(n, 1, c["last_kernel_size"])])


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        D, self.heads = c["d_model"], c["num_heads"]
        self.in_proj_weight = nn.Parameter(torch.randn(3 * D, D) * D**-0.5)
        self.out_proj = nn.Linear(D, D, bias=False)

    def forward(self, x, rotation, mask):
        B, T, D = x.shape
        q, k, v = F.linear(x, self.in_proj_weight).view(B, T, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = (rotate(y, rotation).to(v.dtype) for y in (q, k))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out_proj(y.transpose(1, 2).reshape(B, T, D))


def rotate(x, rotation):
    """RoPE on interleaved pairs. x [B, H, T, d]; rotation: cos, sin [T, d / 2]."""
    a, b = x.float().unflatten(-1, (-1, 2)).unbind(-1)
    cos, sin = rotation
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


class Scale(nn.Module):
    def __init__(self, D, value):
        super().__init__()
        self.scale = nn.Parameter(torch.full((D,), value))

    def forward(self, x):
        return self.scale * x


class Block(nn.Module):
    def __init__(self, c):
        super().__init__()
        D = c["d_model"]
        self.self_attn, self.norm1, self.norm2 = Attention(c), nn.LayerNorm(D), nn.LayerNorm(D)
        self.linear1 = nn.Linear(D, c["dim_feedforward"], bias=False)
        self.linear2 = nn.Linear(c["dim_feedforward"], D, bias=False)
        self.layer_scale_1, self.layer_scale_2 = Scale(D, c["layer_scale"]), Scale(D, c["layer_scale"])

    def forward(self, x, rotation, mask):
        x = x + self.layer_scale_1(self.self_attn(self.norm1(x), rotation, mask))
        return x + self.layer_scale_2(self.linear2(F.gelu(self.linear1(self.norm2(x)))))


class Transformer(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.config = c
        self.transformer = Inner(layers=nn.ModuleList(Block(c) for _ in range(c["num_layers"])))

    def forward(self, x):  # [B, D, T]
        c, T = self.config, x.shape[2]
        t = torch.arange(T, device=x.device)
        half = c["d_model"] // c["num_heads"] // 2
        angle = t[:, None] * c["max_period"] ** (-torch.arange(half, device=x.device) / half)
        delta = t[:, None] - t
        mask = (delta >= 0) & (delta < c["context"])
        x = x.transpose(1, 2)
        for layer in self.transformer.layers:
            x = layer(x, (angle.cos(), angle.sin()), mask)
        return x.transpose(1, 2)


class Codebook(nn.Module):
    """Centroids as running sums: embedding = embedding_sum / cluster_usage."""

    def __init__(self, bins, Q):
        super().__init__()
        self.register_buffer("_initialized", torch.zeros(1))
        self.started = False
        self.register_buffer("cluster_usage", torch.ones(bins))
        self.register_buffer("embedding_sum", torch.randn(bins, Q) * 0.1)

    def embedding(self):
        return self.embedding_sum / self.cluster_usage.clamp(min=1e-5)[:, None]

    def nearest(self, x):  # [N, Q] -> [N]
        e = self.embedding()
        return (e.square().sum(1) - 2 * x @ e.T).argmin(1)

    @torch.no_grad()
    def learn(self, x, codes):
        """Move the centroids toward the x [N, Q] they stand for; give unused ones a random x."""
        bins, share = len(self.cluster_usage), len(x) / len(self.cluster_usage)
        count = torch.zeros(bins, device=x.device).index_add_(0, codes, torch.ones(len(x), device=x.device))
        total = torch.zeros_like(self.embedding_sum).index_add_(0, codes, x)
        self.cluster_usage.lerp_(count, 1 - EMA)
        self.embedding_sum.lerp_(total, 1 - EMA)
        self.move(self.cluster_usage < DEAD * share, x, 0.2 * share)

    @torch.no_grad()
    def move(self, where, x, usage):
        """Put the centroids in where [bins] on random rows of x, with the given usage."""
        rows = x[torch.randint(len(x), (len(where),), device=x.device)] * usage
        self.embedding_sum.copy_(torch.where(where[:, None], rows, self.embedding_sum))
        self.cluster_usage.masked_fill_(where, usage)


class ResidualQuantizer(nn.Module):
    def __init__(self, c, n_q):
        super().__init__()
        D, Q = c["input_dimension"], c["dimension"]
        self.input_proj, self.output_proj = nn.Conv1d(D, Q, 1, bias=False), nn.Conv1d(Q, D, 1, bias=False)
        self.vq = Inner(layers=nn.ModuleList(Inner(_codebook=Codebook(c["bins"], Q)) for _ in range(n_q)))

    def codebooks(self):
        return [layer._codebook for layer in self.vq.layers]

    def forward(self, z, learn=False):
        """z [B, D, T] -> codes [B, n, T], quantised [B, Q, T] (straight through), commitment loss."""
        x = self.input_proj(z).transpose(1, 2)  # [B, T, Q]
        flat = x.reshape(-1, x.shape[-1])
        rest, total, loss, codes = flat.detach(), 0.0, 0.0, []
        for book in self.codebooks():
            if learn and not book.started:
                book.move(torch.ones_like(book.cluster_usage, dtype=torch.bool), rest, 1.0)
                book._initialized.fill_(1)
                book.started = True
            code = book.nearest(rest)
            value = F.embedding(code, book.embedding())
            if learn:
                book.learn(rest, code)
            loss = loss + F.mse_loss(flat - total, value)
            rest, total = rest - value, total + value
            codes.append(code.view(x.shape[:2]))
        y = (flat + (total - flat).detach()).view_as(x).transpose(1, 2)
        return torch.stack(codes, 1), y, loss / len(codes)

    def decode(self, codes):
        total = sum(F.embedding(codes[:, k], book.embedding()) for k, book in enumerate(self.codebooks()))
        return self.output_proj(total.transpose(1, 2))


class Quantizer(nn.Module):
    """Codebook 0 (rvq_first) and codebooks 1.. (rvq_rest) look at the same latent."""

    def __init__(self, c):
        super().__init__()
        self.rvq_first, self.rvq_rest = ResidualQuantizer(c, 1), ResidualQuantizer(c, c["n_q"] - 1)

    def forward(self, z, learn=False):
        """z [B, D, T] -> codes [B, K, T], latent for the decoder [B, D, T], commitment loss, codebook 0's [B, Q, T]."""
        first, rest = self.rvq_first(z, learn), self.rvq_rest(z, learn)
        y = self.rvq_first.output_proj(first[1]) + self.rvq_rest.output_proj(rest[1])
        return torch.cat([first[0], rest[0]], 1), y, first[2] + rest[2], first[1]

    def unquantised(self, z):
        """The same latents without the codebooks, for the first steps of training."""
        a, b = self.rvq_first.input_proj(z), self.rvq_rest.input_proj(z)
        return self.rvq_first.output_proj(a) + self.rvq_rest.output_proj(b), a

    def decode(self, codes):
        return self.rvq_first.decode(codes[:, :1]) + self.rvq_rest.decode(codes[:, 1:])

    def codebooks(self):
        return self.rvq_first.codebooks() + self.rvq_rest.codebooks()


class Mimi(nn.Module):
    def __init__(self, config=CONFIG):
        super().__init__()
        D = config["seanet"]["dimension"]
        self.config = config
        self.encoder, self.decoder = seanet_encoder(config["seanet"]), seanet_decoder(config["seanet"])
        self.encoder_transformer = Transformer(config["transformer"])
        self.decoder_transformer = Transformer(config["transformer"])
        self.downsample = Inner(conv=Conv(D, D, 4, 2, bias=False, pad="replicate"))
        self.upsample = Inner(convtr=ConvTranspose(D, D, 4, 2, groups=D, bias=False))
        self.quantizer = Quantizer(config["quantizer"])

    def latent(self, wav):  # [B, 1, T*1920] -> [B, D, T]
        return self.downsample.conv(self.encoder_transformer(self.encoder(wav)))

    def render(self, latent):  # [B, D, T] -> [B, 1, T*1920]
        return self.decoder(self.decoder_transformer(self.upsample.convtr(latent)))

    def encode(self, wav):
        return self.quantizer(self.latent(wav).float())[0]

    def decode(self, codes):
        return self.render(self.quantizer.decode(codes))
