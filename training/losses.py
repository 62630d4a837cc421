"""What the codec is trained against: spectra, a small phoneme listener, discriminators. Audio: [B, 1, L], 24 kHz."""

import math

import torch
import torch.nn.functional as F
from torch import nn

from training.store import RATE

SCALES = [(2048, 160), (1024, 100), (512, 64), (256, 32)]  # STFT size in samples, mel bands; the hop is a quarter
SYMBOLS = 178  # Kokoro's, 0 is silence
FLOOR = 2e-5  # times the STFT size: a mel magnitude 63 dB below the loudest counts as silence


def mel_bank(size, bands):
    """Triangular filters [bands, size / 2 + 1] over 0..12 kHz."""
    mel = lambda hz: 2595 * math.log10(1 + hz / 700)
    edges = 700 * (10 ** (torch.linspace(0, mel(RATE / 2), bands + 2) / 2595) - 1)
    hz = torch.linspace(0, RATE / 2, size // 2 + 1)
    up = (hz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    down = (edges[2:, None] - hz) / (edges[2:] - edges[1:-1])[:, None]
    return torch.minimum(up, down).clamp(min=0)


class Spectrum(nn.Module):
    """Magnitudes [B, size / 2 + 1, frames] and log mel [B, bands, frames]."""

    def __init__(self, size, bands, hop):
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        self.register_buffer("bank", mel_bank(size, bands), persistent=False)

    def forward(self, x):
        z = torch.stft(x[:, 0].float(), self.size, self.hop, window=self.window, return_complex=True)
        magnitude = torch.sqrt(z.real.square() + z.imag.square() + 1e-8)
        return magnitude, (self.bank @ magnitude + FLOOR * self.size).log()


class SpectralLoss(nn.Module):
    """Mean over SCALES of the log-mel L1 and half the spectral convergence."""

    def __init__(self):
        super().__init__()
        self.spectra = nn.ModuleList(Spectrum(size, bands, size // 4) for size, bands in SCALES)

    def forward(self, y, x):
        total = 0.0
        for spectrum in self.spectra:
            (a, log_a), (b, log_b) = spectrum(y), spectrum(x)
            convergence = (a - b).norm(dim=(1, 2)) / (b.norm(dim=(1, 2)) + 1e-2)
            total = total + F.l1_loss(log_a, log_b) + 0.5 * convergence.mean()
        return total / len(self.spectra)


class Listener(nn.Module):
    """Phonemes from sound, 50 a second: trained on the teacher's alignment, then used to judge the codec's output."""

    def __init__(self, width=160):
        super().__init__()
        self.spectrum = Spectrum(1024, 80, 240)
        conv = lambda a, stride=1, dilation=1: nn.Conv1d(a, width, 5, stride, dilation=dilation, padding=2 * dilation)
        self.layers = nn.ModuleList([conv(80), conv(width, 2), conv(width), conv(width, 1, 2), conv(width, 1, 4)])
        self.head = nn.Conv1d(width, SYMBOLS, 1)

    def forward(self, x):
        """-> logits [B, T * LABELS, SYMBOLS] and the layers' activations."""
        h, seen = self.spectrum(x)[1][..., :-1] / 4 + 1, []
        for layer in self.layers:
            h = F.gelu(layer(h))
            seen.append(h)
        return self.head(h).transpose(1, 2), seen

    def learn(self, x, labels):
        """Cross-entropy on true speech. labels [B, T, LABELS]."""
        return F.cross_entropy(self(x)[0].flatten(0, 1).float(), labels.flatten())

    def judge(self, y, x, labels):
        """Cross-entropy of y plus the distance of the activations of y and x; parameters get no gradient."""
        with torch.no_grad():
            target = self(x)[1]
        self.requires_grad_(False)
        logits, seen = self(y)
        self.requires_grad_(True)
        return F.cross_entropy(logits.flatten(0, 1).float(), labels.flatten()) + distance(seen, target)


def distance(seen, target):
    """Mean relative L1 distance of two lists of activations."""
    return sum(
        (a.float() - b.float()).abs().mean() / (b.float().abs().mean() + 1e-4) for a, b in zip(seen, target)
    ) / len(seen)


class Discriminator(nn.Module):
    """2-D convolutions over a complex STFT (as in EnCodec). forward -> verdict, activations."""

    def __init__(self, size, width=32):
        super().__init__()
        self.size = size
        self.register_buffer("window", torch.hann_window(size), persistent=False)
        conv = lambda a, stride, dilation: nn.utils.parametrizations.weight_norm(
            nn.Conv2d(a, width, (3, 9), stride, dilation=dilation, padding=(dilation[0], 4))
        )
        self.layers = nn.ModuleList(
            [
                conv(2, (1, 1), (1, 1)),
                conv(width, (1, 2), (1, 1)),
                conv(width, (1, 2), (2, 1)),
                conv(width, (1, 2), (4, 1)),
            ]
        )
        self.head = nn.utils.parametrizations.weight_norm(nn.Conv2d(width, 1, 3, padding=1))

    def forward(self, x):
        z = torch.stft(
            x[:, 0].float(), self.size, self.size // 4, window=self.window, return_complex=True, normalized=True
        )
        h, seen = torch.stack([z.real, z.imag], 1).transpose(2, 3), []
        for layer in self.layers:
            h = F.leaky_relu(layer(h), 0.2)
            seen.append(h)
        return self.head(h).float(), seen


class Adversary(nn.Module):
    """Four discriminators and their two hinge losses."""

    def __init__(self):
        super().__init__()
        self.parts = nn.ModuleList(Discriminator(size) for size, _ in SCALES)

    def learn(self, y, x):
        return sum(F.relu(1 - d(x)[0]).mean() + F.relu(1 + d(y.detach())[0]).mean() for d in self.parts)

    def judge(self, y, x):
        """(adversarial loss, feature distance) for the generator; parameters get no gradient."""
        self.requires_grad_(False)
        fool = match = 0.0
        for d in self.parts:
            with torch.no_grad():
                target = d(x)[1]
            verdict, seen = d(y)
            fool, match = fool - verdict.mean(), match + distance(seen, target)
        self.requires_grad_(True)
        return fool / len(self.parts), match / len(self.parts)
