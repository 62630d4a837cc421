"""What is around the language model: kittenml's normaliser, S3 codec and vocoder, which are torch.

Imported on the worker's thread when the engine is opened, and nowhere else. kittenml would fetch the codec's weights
when it first needs them; here nothing but `pull` uses the network, so they must be in the hub's cache already.
"""

import importlib.util
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from misod.engine import ModelError
from misod.weights.check import naming

SAMPLE_RATE = 24_000
TOKEN_HZ = 25
INSTALL = "pip install 'miso-speech[kitten]'"
CODEC_REPO, CODEC_FILE = "ResembleAI/chatterbox-turbo", "s3gen_meanflow.safetensors"


@dataclass(frozen=True)
class Voice:
    """One of the model's own. `speech`: its recording as the codec's tokens."""

    name: str
    embedding: np.ndarray  # (speaker_dim,) float32
    speech: list[int]
    transcript: str
    recording: Path


class Around(Protocol):
    """All that the engine asks of kittenml."""

    def normalise(self, text: str) -> str:
        """As it is spoken; expression tags stay as they are."""

    def tagged(self, text: str) -> bool:
        """Whether there are expression tags in it."""

    def sound(self, voice: Voice, tokens: list[int], seed: int) -> np.ndarray:
        """pcm (n,) float32 at SAMPLE_RATE. Called on a thread of the engine's, one call at a time."""


class KittenML:
    """The package. Raises ModelError, one line, where it or the codec's weights are missing."""

    def __init__(self, on_mac_gpu: bool):
        if importlib.util.find_spec("kittenml") is None:
            raise ModelError(f"the kitten engine needs the package kittenml: {INSTALL}", "no_extra")
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported, which this does
        import torch
        from huggingface_hub.errors import LocalEntryNotFoundError
        from kittenml.kittentts2 import text
        from kittenml.kittentts2.vocoder import S3Codec

        self._text, self._torch = text, torch
        try:
            self._codec = S3Codec(device="mps" if on_mac_gpu else "cpu")
        except LocalEntryNotFoundError:
            cure = f"hf download {CODEC_REPO} {CODEC_FILE}"
            raise ModelError(f"kitten's codec is not here: {cure}", "no_extra") from None

    def normalise(self, text: str) -> str:
        return self._text.normalize_text(text)

    def tagged(self, text: str) -> bool:
        return self._text.has_expression_tag(text)

    def sound(self, voice: Voice, tokens: list[int], seed: int) -> np.ndarray:
        self._torch.manual_seed(seed)  # the flow begins with noise
        pcm = self._codec.decode(self._codec.reference_conditioning(voice.recording), tokens)
        return np.zeros(0, np.float32) if pcm is None else np.asarray(pcm, np.float32)


def read_voices(path: Path, default: str | None, speaker_dim: int, speech_tokens: int) -> list[Voice]:
    """The voices of voices.json, the default first. Raises ValueError naming the file that is not as it must be."""
    with naming(path, "a list of voices"):
        listed = json.loads(path.read_bytes())
        if not listed or default not in (None, *listed):
            raise ValueError(f"it has no voice {default!r}" if listed else "it is empty")
    names = sorted(listed, key=lambda name: name != default)
    return [_voice(path.parent, name, listed[name], speaker_dim, speech_tokens) for name in names]


def _voice(folder: Path, name: str, spec: dict, speaker_dim: int, speech_tokens: int) -> Voice:
    with naming(folder / "voices.json", f"a list of voices: {name}"):
        path, recording, transcript = folder / spec["artifacts"], folder / spec["reference"], spec["transcript"].strip()
    with naming(path, "a voice"), np.load(path, allow_pickle=False) as file:
        embedding, speech = file["embedding"].astype(np.float32), file["reference_tokens"].astype(np.int64)
        if embedding.shape != (speaker_dim,) or not np.isfinite(embedding).all():
            raise ValueError(f"its embedding is not {speaker_dim} finite numbers")
        if speech.ndim != 1 or not speech.size or speech.min() < 0 or speech.max() >= speech_tokens:
            raise ValueError("its recording is not a line of the codec's tokens")
    return Voice(name, embedding, speech.tolist(), transcript, recording)
