"""The teacher: batched Kokoro-82M synthesis in PyTorch (cuda or cpu).

  model = load(["kokoro_int8_1.safetensors", "kokoro_int8_2.safetensors"], "cuda")    # or the fp16 file
  wav, dur = synthesize(model, ids, voice_rows(voice, ids), amp=torch.float16)
  # wav [B, L] float32 at 24 kHz, zeros after each end; dur [B, S]: frames per symbol (40 a second), end pads included

Needs: torch, transformers, safetensors, attrs, and `pip install --no-deps kokoro==0.9.4`.
The time axis is masked before each convolution and inside each instance norm, so an item
comes out the same, up to rounding, whatever it is batched with. Sort items by length:
the cost is that of the longest. On a GPU amp=torch.float16 covers the decoder only; the
durations, F0, harmonic source, norms and STFTs stay in float32.
"""

import importlib.util
import sys
import types

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

# kokoro/__init__.py pulls in misaki and spacy: put an empty package in its place.
if "kokoro" not in sys.modules:
    spec = importlib.util.find_spec("kokoro")
    sys.modules["kokoro"] = types.ModuleType("kokoro")
    sys.modules["kokoro"].__path__ = spec.submodule_search_locations
from kokoro.istftnet import AdaIN1d, Decoder, SineGen
from kokoro.modules import CustomAlbert, ProsodyPredictor, TextEncoder
from transformers import AlbertConfig

RATE, HOP, SYMBOLS = 24000, 600, 178  # 600 samples per frame: 40 frames a second


class Lengths:
    """True frame counts of the batch in flight; mask(L) is for any layer's time resolution."""

    def set(self, frames):
        self.n, self.total, self.cache = frames, int(frames.max()), {}
        self.equal = bool((frames == frames.max()).all())

    def at(self, size):  # layers run at 1, 2, 20 times the frame rate and 120 times plus one
        extra = size % self.total
        return self.n * (size // self.total) + extra

    def mask(self, size):
        if self.equal:
            return None
        if size not in self.cache:
            t = torch.arange(size, device=self.n.device)
            self.cache[size] = (t < self.at(size)[:, None])[:, None]
        return self.cache[size]


class MaskedNorm(nn.Module):
    """Instance norm over the true frames only (the released norm has no affine part)."""

    def __init__(self, lengths):
        super().__init__()
        self.lengths = lengths

    def forward(self, x):
        m = self.lengths.mask(x.shape[-1])
        if m is None:
            return F.instance_norm(x.float()).to(x.dtype)
        y = x.float() * m
        ratio = x.shape[-1] / m.sum(-1, keepdim=True)
        var, mean = torch.var_mean(y, -1, correction=0, keepdim=True)  # over the padding zeros too
        var = (var + mean * mean) * ratio
        mean = mean * ratio
        scale = torch.rsqrt((var - mean * mean).clamp(min=0) + 1e-5)
        return torch.addcmul(-mean * scale, y, scale).to(x.dtype)


class Sine(SineGen):
    """The harmonic source with an adjustable noise level (the ONNX export has none: 0)."""

    noise = 1.0

    def forward(self, f0):
        voiced = self._f02uv(f0)
        wave = self._f02sine(f0 * torch.arange(1, self.dim + 1, device=f0.device)) * self.sine_amp
        level = voiced * self.noise_std + (1 - voiced) * self.sine_amp / 3
        return wave * voiced + self.noise * level * torch.randn_like(wave), voiced, None


class PaddedSTFT(nn.Module):
    """STFT of the source and inverse STFT of the output, in float32, each item ending at its own end."""

    def __init__(self, lengths, size, hop):
        super().__init__()
        self.lengths, self.size, self.hop = lengths, size, hop
        self.register_buffer("window", torch.hann_window(size), persistent=False)

    def transform(self, x):
        end = self.lengths.at(x.shape[-1])[:, None]
        t = torch.arange(x.shape[-1], device=x.device).expand_as(x)
        x = x.float().gather(1, torch.where(t < end, t, 2 * (end - 1) - t).clamp(min=0))  # reflect
        z = torch.stft(x, self.size, self.hop, window=self.window, return_complex=True)
        return z.abs(), z.angle()

    def inverse(self, magnitude, phase):
        m = self.lengths.mask(magnitude.shape[-1])
        if m is not None:
            magnitude = magnitude * m
        z = torch.polar(magnitude.float(), phase.float())
        return torch.istft(z, self.size, self.hop, window=self.window)


class Fp32(nn.Module):
    """Runs a module outside autocast."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, x):
        with torch.autocast(x.device.type, enabled=False):
            return self.module(x.float())


class Kokoro(nn.Module):
    """The five Kokoro modules with the published sizes and weight norm folded away."""

    def __init__(self):
        super().__init__()
        self.bert = CustomAlbert(
            AlbertConfig(
                vocab_size=SYMBOLS,
                hidden_size=768,
                num_attention_heads=12,
                intermediate_size=2048,
                max_position_embeddings=512,
                num_hidden_layers=12,
            ),
            add_pooling_layer=False,
        )
        self.bert_encoder = nn.Linear(768, 512)
        self.predictor = ProsodyPredictor(style_dim=128, d_hid=512, nlayers=3, max_dur=50, dropout=0.2)
        self.text_encoder = TextEncoder(channels=512, kernel_size=5, depth=3, n_symbols=SYMBOLS)
        self.decoder = Decoder(
            dim_in=512,
            style_dim=128,
            dim_out=80,
            resblock_kernel_sizes=[3, 7, 11],
            upsample_rates=[10, 6],
            upsample_initial_channel=512,
            resblock_dilation_sizes=[[1, 3, 5]] * 3,
            upsample_kernel_sizes=[20, 12],
            gen_istft_n_fft=20,
            gen_istft_hop_size=5,
        )
        self.lengths = Lengths()
        gen = self.decoder.generator
        gen.stft = PaddedSTFT(self.lengths, 20, 5)
        gen.m_source.l_sin_gen.__class__ = Sine
        for m in self.modules():
            if hasattr(m, "weight_g"):
                nn.utils.remove_weight_norm(m)
            if isinstance(m, AdaIN1d):
                m.norm = MaskedNorm(self.lengths)
        for part in (self.decoder, self.predictor):
            for m in part.modules():
                if isinstance(m, (nn.Conv1d, nn.ConvTranspose1d)):
                    m.register_forward_pre_hook(self._zero_padding)
        self.eval()

    def _zero_padding(self, module, args):
        m = self.lengths.mask(args[0].shape[-1])
        return None if m is None else (args[0] * m,)

    def ready(self):
        """After loading: keep the phase-critical ends of the generator in float32."""
        gen = self.decoder.generator
        gen.m_source, gen.conv_post = Fp32(gen.m_source), Fp32(gen.conv_post)
        return self


def load(paths, device="cpu"):
    """paths: files written by teacher_weights.py. 8-bit tensors come with .scale and .zero."""
    from safetensors.torch import load_file

    data = {}
    for p in paths:
        data |= load_file(p)
    state = {}
    for name, x in data.items():
        if name.endswith((".scale", ".zero")):
            continue
        state[name] = x.float()
        if name + ".scale" in data:
            state[name] = (x.float() - data[name + ".zero"].float()) * data[name + ".scale"]
    model = Kokoro()
    model.load_state_dict(state, strict=True)
    return model.ready().to(device)


def voice_rows(voice, ids):
    """Style of each item: the voice table's row for its number of symbols."""
    voice = torch.as_tensor(voice, dtype=torch.float32).reshape(-1, 256)
    return torch.stack([voice[min(len(x), len(voice)) - 1] for x in ids])


def run_lstm(lstm, x, n):
    lstm.flatten_parameters()
    y, _ = lstm(pack_padded_sequence(x, n.cpu(), batch_first=True, enforce_sorted=False))
    return pad_packed_sequence(y, batch_first=True, total_length=x.shape[1])[0]


@torch.inference_mode()
def durations(model, ids, style, speed=1.0):
    """ids: symbol lists without the end pads. Returns everything the decoder needs."""
    device = style.device
    assert max(map(len, ids)) <= 510, "at most 510 symbols an item"
    n = torch.tensor([len(x) + 2 for x in ids], device=device)
    tokens = nn.utils.rnn.pad_sequence([torch.tensor([0, *x, 0]) for x in ids], batch_first=True).to(device)
    pad = torch.arange(tokens.shape[1], device=device) >= n[:, None]
    prosody = style[:, 128:]
    hidden = model.bert_encoder(model.bert(tokens, attention_mask=(~pad).int())).transpose(1, 2)
    d = model.predictor.text_encoder(hidden, prosody, n, pad)
    logits = model.predictor.duration_proj(run_lstm(model.predictor.lstm, d, n))
    dur = (torch.sigmoid(logits).sum(-1) / speed).round().clamp(min=1).long().masked_fill(pad, 0)
    text = model.text_encoder(tokens, n, pad).transpose(1, 2)
    return dur, d, text


@torch.inference_mode()
def synthesize(model, ids, style, speed=1.0, amp=None, noise=1.0):
    """ids: list of symbol lists; style: [B, 256]; amp: None, torch.float16 or torch.bfloat16
    for the decoder. Returns (waveforms [B, L], frames per symbol [B, S]) on the model's device."""
    device = next(model.parameters()).device
    style = style.to(device)
    model.decoder.generator.m_source.module.l_sin_gen.noise = noise
    dur, d, text = durations(model, ids, style, speed)

    frames = dur.sum(1)
    model.lengths.set(frames)
    t = torch.arange(model.lengths.total, device=device).expand(len(ids), -1).contiguous()
    where = torch.searchsorted(dur.cumsum(1), t, right=True).clamp(max=dur.shape[1] - 1)[..., None]
    at_frames = lambda x: x.gather(1, where.expand(-1, -1, x.shape[2]))

    x = run_lstm(model.predictor.shared, at_frames(d), frames).transpose(1, 2)
    f0, energy = x, x
    for a, b in zip(model.predictor.F0, model.predictor.N):
        f0, energy = a(f0, style[:, 128:]), b(energy, style[:, 128:])
    f0, energy = model.predictor.F0_proj(f0)[:, 0], model.predictor.N_proj(energy)[:, 0]
    m = model.lengths.mask(f0.shape[-1])
    if m is not None:
        f0 = f0 * m[:, 0]  # silence after the end, so that the source's phase stops there

    with torch.autocast(device.type, dtype=amp or torch.bfloat16, enabled=amp is not None):
        wav = model.decoder(at_frames(text).transpose(1, 2), f0, energy, style[:, :128])
    return wav.float(), dur
