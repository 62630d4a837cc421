"""What is around the language model: kittenml's normaliser, S3 codec and vocoder, which are torch.

Imported on the worker's thread when the engine is opened, and nowhere else. kittenml would fetch the codec's weights
when it first needs them; here nothing but `pull` uses the network, so they must be in the hub's cache already.
"""

import hashlib
import importlib.util
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from misod import published
from misod.engine import ModelError
from misod.weights.check import naming
from misod.weights.manifest import sha256_of

SAMPLE_RATE = 24_000
TOKEN_HZ = 25
INSTALL = "pip install 'miso-speech[kitten]'"
CODEC_REPO, CODEC_FILE = "ResembleAI/chatterbox-turbo", "s3gen_meanflow.safetensors"
CODEC = f"codec/{CODEC_FILE}"  # in the directory of a model that `pull` made
DEFAULT_DECODER = "default"
CONDITIONED = 8  # voices whose recording the decoder has heard, and need not hear again


@dataclass(frozen=True)
class Voice:
    """One to speak as. `speech`: its recording as the codec's tokens."""

    name: str
    digest: str
    embedding: np.ndarray  # (speaker_dim,) float32
    speech: list[int]
    transcript: str  # "": not known
    recording: Path | np.ndarray  # a file, or pcm (n,) float32 at SAMPLE_RATE


class Around(Protocol):
    """All that the engine asks of kittenml. What makes or hears sound is called on one thread of the engine's."""

    digest: str  # of what hears: a voice is of one such

    def normalise(self, text: str) -> str:
        """As it is spoken; expression tags stay as they are."""

    def tagged(self, text: str) -> bool:
        """Whether there are expression tags in it."""

    def hear(self, pcm: np.ndarray) -> tuple[np.ndarray, list[int]]:
        """pcm (n,) float32 at SAMPLE_RATE -> the speaker's embedding, and the codec's tokens."""

    def sound(self, voice: Voice, tokens: list[int], seed: int, decoder: str) -> np.ndarray:
        """pcm (n,) float32 at SAMPLE_RATE."""

    def forget(self, digest: str) -> None:
        """What is kept of the voice, on the same thread."""


class KittenML:
    """The package, for the repository in `directory`. Raises ModelError, one line, where it or the codec is missing."""

    def __init__(self, directory: Path, config: dict, on_mac_gpu: bool):
        if importlib.util.find_spec("kittenml") is None:
            raise ModelError(f"the kitten engine needs the package kittenml: {INSTALL}", "no_extra")
        os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported, which this does
        import torch
        from huggingface_hub.errors import LocalEntryNotFoundError
        from kittenml.kittentts2 import text, vocoder
        from kittenml.kittentts2.speaker import SpeakerEncoder

        device = "mps" if on_mac_gpu else "cpu"
        if (pulled := directory / CODEC).exists():
            vocoder.hf_hub_download = lambda **_: str(pulled)  # it has no argument for a file of one's own
        self._text, self._torch, self._load_student = text, torch, vocoder.load_student_flow
        self._directory, self._decoders, self._device = directory, config.get("decoders", {}), device
        encoder = directory / config.get("speaker_embedding", "speaker/model.safetensors")
        self._encode = SpeakerEncoder(encoder, device)
        self.digest = hashlib.sha256(f"{CODEC_REPO} {CODEC_FILE} {sha256_of(encoder)}".encode()).hexdigest()
        self._students = {DEFAULT_DECODER: None}
        self._conditioned: dict[tuple[str, str], dict] = {}  # by voice and decoder, the least recently used first
        try:
            self._codec = vocoder.S3Codec(device=device)
        except LocalEntryNotFoundError:
            raise ModelError(f"kitten's codec is not here: hf download {CODEC_REPO} {CODEC_FILE}", "no_extra") from None

    def normalise(self, text: str) -> str:
        return self._text.normalize_text(text)

    def tagged(self, text: str) -> bool:
        return self._text.has_expression_tag(text)

    def hear(self, pcm: np.ndarray) -> tuple[np.ndarray, list[int]]:
        with _as_file(pcm) as path:
            return self._encode(path), self._codec.encode_reference(path)

    def sound(self, voice: Voice, tokens: list[int], seed: int, decoder: str) -> np.ndarray:
        if decoder not in self._students:
            self._students[decoder] = self._load_student(self._directory / self._decoders[decoder], self._device)
        self._codec.student = self._students[decoder]
        conditioning = self._conditioning(voice, decoder)
        self._torch.manual_seed(seed)  # the flow begins with noise
        pcm = self._codec.decode(conditioning, tokens)
        return np.zeros(0, np.float32) if pcm is None else np.asarray(pcm, np.float32)

    def forget(self, digest: str) -> None:
        for key in [key for key in self._conditioned if key[0] == digest]:
            del self._conditioned[key]

    def _conditioning(self, voice: Voice, decoder: str) -> dict:
        """By digest: kittenml's own cache is by path, and takes another recording there for the one before."""
        key = voice.digest, decoder
        if (known := self._conditioned.pop(key, None)) is None:
            with _as_file(voice.recording) as path:
                known = self._codec.reference_conditioning(path)
            self._codec._ref_cache.clear()
        self._conditioned[key] = known
        while len(self._conditioned) > CONDITIONED:
            del self._conditioned[next(iter(self._conditioned))]
        return known


@contextmanager
def _as_file(recording: Path | np.ndarray) -> Iterator[str]:
    """kittenml reads recordings from files only."""
    if isinstance(recording, Path):
        yield str(recording)
        return
    import soundfile

    with tempfile.NamedTemporaryFile(suffix=".wav") as file:  # nobody else can read it
        soundfile.write(file, recording, SAMPLE_RATE, format="WAV", subtype="FLOAT")
        file.flush()
        yield file.name


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
    return Voice(name, published.digest(folder, spec), embedding, speech.tolist(), transcript, recording)
