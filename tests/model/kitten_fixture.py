"""fixtures/kitten_tiny as a repository. Its golden is of 6,839 tokens; kept are the embeddings of those that its
prompts read and its greedy steps draw or nearly draw, and the golden's logits of these. The others' are zeros here,
and so are their logits: far below what is drawn.
"""

import json
import shutil
from pathlib import Path

import mlx.core as mx
import numpy as np

from misod.kitten.around import SAMPLE_RATE, Voice

TOKEN = 960  # samples
KITTEN = Path(__file__).parent / "fixtures" / "kitten_tiny"


def tensors() -> dict[str, np.ndarray]:
    """As the published file has them, bf16 as bit patterns (uint16)."""
    with np.load(KITTEN / "weights.npz") as file:
        found = {name.replace("@", "::"): file[name] for name in file.files}
    ids, rows = found.pop("embedding_ids"), found.pop("embedding_rows")
    embedding = np.zeros((6839, rows.shape[1]), np.uint16)
    embedding[ids] = rows
    return found | {"model.embed_tokens.weight": embedding}


def known_ids() -> np.ndarray:
    """Whose logits the golden has."""
    with np.load(KITTEN / "weights.npz") as file:
        return file["embedding_ids"]


def metadata() -> dict[str, str]:
    lm = json.loads((KITTEN / "lm" / "config.json").read_text())
    D, hidden = lm["hidden_size"], lm["intermediate_size"]
    queries, keys = lm["num_attention_heads"] * lm["head_dim"], lm["num_key_value_heads"] * lm["head_dim"]
    shapes = {"q": (queries, D), "k": (keys, D), "v": (keys, D), "o": (D, queries)}
    names = {f"self_attn.{name}_proj": shape for name, shape in shapes.items()}
    names |= {"mlp.gate_proj": (hidden, D), "mlp.up_proj": (hidden, D), "mlp.down_proj": (D, hidden)}
    packed = {
        f"model.layers.{i}.{name}.weight": {"shape": shape, "dtype": "bfloat16"}
        for i in range(lm["num_hidden_layers"])
        for name, shape in names.items()
    }
    return {"format": "kittenml-ternary-1.58", "group_size": "128", "packed": json.dumps(packed)}


def write_weights(path: Path, found: dict[str, np.ndarray], about: dict[str, str]) -> None:
    arrays = {name: mx.array(a) for name, a in found.items()}
    arrays = {name: a.view(mx.bfloat16) if a.dtype == mx.uint16 else a for name, a in arrays.items()}
    mx.save_safetensors(str(path), arrays, about)


def make_repository(directory: Path) -> Path:
    shutil.copytree(KITTEN, directory, ignore=shutil.ignore_patterns("*golden*", "weights.npz"))
    write_weights(directory / "lm" / "model-ternary.safetensors", tensors(), metadata())
    (directory / "voices" / "tiny.wav").write_bytes(b"a double hears nothing of it")
    return directory


class Double:
    """In kittenml's place, whose codec's weights are not here: a token is 40 ms of a tone.

    `heard`: the tokens of each piece; those numbered in `silent`, from 1, come out silent.
    """

    digest = "d" * 64

    def __init__(self):
        self.silent: set[int] = set()
        self.heard: list[list[int]] = []
        self.forgotten: list[str] = []
        self.spoke_as: Voice | None = None

    def normalise(self, text: str) -> str:
        return text.replace("$12.50", "twelve dollars fifty")

    def tagged(self, text: str) -> bool:
        return "[joyful]" in text

    def forget(self, digest: str) -> None:
        self.forgotten.append(digest)

    def hear(self, pcm: np.ndarray) -> tuple[np.ndarray, list[int]]:
        return np.full(512, pcm.std(), np.float32), [int(1000 * abs(x)) for x in pcm[::TOKEN]]

    def sound(self, voice: Voice, tokens: list[int], seed: int, decoder: str) -> np.ndarray:
        self.heard.append(tokens)
        self.spoke_as = voice
        if not tokens or len(self.heard) in self.silent:
            return np.zeros(TOKEN, np.float32)
        time = np.arange(TOKEN) / SAMPLE_RATE
        return np.concatenate([0.3 * np.sin(2 * np.pi * (100 + t) * time) for t in tokens]).astype(np.float32)
