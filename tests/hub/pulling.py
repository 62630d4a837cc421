"""Shared by the tests of pull: a home, a hub that has a small model, and misod run in the one against the other."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from double import Hub, Repo
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from misod.weights import sources
from misod.weights.tensors import Writer

FIXTURES = Path(__file__).parents[1] / "model" / "fixtures"
PULLER = Path(__file__).with_name("puller.py")
KEPT = ("PATH", "PYTHONPATH", "LANG", "TMPDIR", "VIRTUAL_ENV")  # of the environment: no proxies, no tokens, no HF_*


def tiny_tokenizer() -> bytes:
    """Bytes and Llama's two special tokens, with Llama's template left away."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|end_of_text|>"])
    return tokenizer.to_str().encode()


@pytest.fixture(scope="session")
def files() -> dict[str, dict[str, bytes]]:
    """repository -> its files: a small random checkpoint under the true names, a small Mimi, a small tokenizer."""
    miso, mimi = FIXTURES / "miso_tiny" / "v99_fp32", FIXTURES / "mimi_tiny"
    weights = {name: (miso / name).read_bytes() for name in ("model.safetensors", "config.json")}
    beside = {"LICENSE": b"Modified MIT, as a test has it.\n", "README.md": b"# not wanted\n"}
    codec = {sources.CODEC_FILE: (mimi / "model.safetensors").read_bytes()}
    codec |= {"config.json": (mimi / "config.json").read_bytes(), "model.safetensors": b"another model" * 10_000}
    return {
        sources.WEIGHTS[0].repo: weights | beside,
        sources.CODEC.repo: codec,
        sources.TOKENIZER.repo: {"tokenizer.json": tiny_tokenizer()},
    }


KITTEN_FILES = {
    "lm/config.json": b"{}", "lm/tokenizer.json": b"{}", "voices/voices.json": b"{}", "voices/bruno.npz": b"bruno",
    "speaker/model.safetensors": b"who", "LICENSE.md": b"as they say", "lm/model.safetensors": b"full" * 9000,
    "config.json": b'{"type": "KITTEN2", "lm_packed": "lm/model-ternary.safetensors"}',
}  # fmt: skip


def kitten_files(folder: Path) -> dict[str, bytes]:
    """A small kitten's repository; `folder` is written to."""
    path = folder / "model-ternary.safetensors"
    writer = Writer(path, {"model.norm.weight": ("F32", (3000,))})
    writer.write(np.ones(3000, "<f4"))
    writer.finish()
    return KITTEN_FILES | {"lm/model-ternary.safetensors": path.read_bytes()}


def hub_of(files: dict[str, dict[str, bytes]]) -> Hub:
    """With all that `pull miso` needs, at the commits that are pinned."""
    commits = {source.repo: source.revision for source in (*sources.WEIGHTS, sources.CODEC, sources.TOKENIZER)}
    return Hub({repo: Repo(dict(of), commits[repo]) for repo, of in files.items()})


@pytest.fixture
def hub(files):
    hub = hub_of(files)
    yield hub
    hub.close()


class Home:
    """A MISO_HOME, and misod run in it to its end or as a process to kill."""

    def __init__(self, path: Path, hub: Hub | None = None):
        self.path, self.models, self.downloads = path, path / "models", path / "downloads"
        self.environ = {name: os.environ[name] for name in KEPT if name in os.environ}
        self.environ |= {"MISO_HOME": str(path), "HOME": str(path), "HF_HOME": str(path / "hf")}
        if hub:
            self.environ["HF_ENDPOINT"] = hub.url

    def misod(self, *arguments: str, plain: bool = False, **more) -> subprocess.CompletedProcess:
        """`plain`: the arguments are python's."""
        command = [sys.executable, *arguments] if plain else self._command(arguments)
        done = subprocess.run(command, timeout=120, check=False, **self._options(more))
        assert "Traceback" not in (done.stderr or ""), done.stderr
        return done

    def start(self, *arguments: str, **more) -> subprocess.Popen:
        return subprocess.Popen(self._command(arguments), **self._options(more))

    def pull(self, *arguments: str, **environ: str) -> subprocess.CompletedProcess:
        return self.misod("pull", "--precision", "q8", *arguments, env=self.environ | environ)

    def refused(self, code: int, *arguments: str, **environ: str) -> str:
        """The one line of a pull that fails; nothing that loads is left."""
        done = self.pull("-q", *arguments, **environ)
        assert done.returncode == code, done.stderr
        assert done.stderr.startswith("misod: ") and done.stderr.count("\n") == 1, done.stderr
        assert not done.stdout and not (self.models / "miso").exists()
        return done.stderr

    def partial(self) -> int | None:
        """How much of the model's file an unfinished download holds."""
        paths = list(self.downloads.rglob("model.safetensors.partial"))
        return paths[0].stat().st_size if paths else None

    def contents(self, name: str = "miso") -> dict[str, bytes]:
        root = self.models / name
        kept = (p for p in sorted(root.rglob("*")) if p.is_file() and p.name != "verified.json")  # it holds times
        return {str(p.relative_to(root)): p.read_bytes() for p in kept}

    def _command(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, str(PULLER), *arguments]

    def _options(self, more: dict) -> dict:
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        return pipes | {"env": self.environ} | more


@pytest.fixture
def home(tmp_path, hub):
    return Home(tmp_path / "home", hub)
