"""Only `pull` uses the network: nothing else looks up a name or connects a socket, in misoctl or in misod."""

import os
import shutil
import tempfile
import wave
from pathlib import Path

import psutil
import pytest
from pulling import FIXTURES, Home, tiny_tokenizer

WATCHED = Path(__file__).with_name("watched")


class Watched(Home):
    """Every process of it is watched, also a daemon that misoctl starts."""

    def __init__(self, path: Path, file: Path):
        super().__init__(path)
        self.file = file
        beside = os.pathsep.join(filter(None, (str(WATCHED), os.environ.get("PYTHONPATH"))))
        self.environ |= {"PYTHONPATH": beside, "WATCH_FILE": str(file)}

    def misoctl(self, *arguments: str):
        done = self.misod("-m", "misoctl", *arguments, plain=True)
        assert done.returncode == 0, done.stderr
        return done

    def seen(self, kind: str) -> list[str]:
        return [line for line in self.file.read_text().splitlines() if line.startswith(kind)]


@pytest.fixture
def home(tmp_path):
    path = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))  # short: a socket lives in it
    yield Watched(path, tmp_path / "seen")
    shutil.rmtree(path)


def test_the_watch_sees_what_it_is_for(home):
    """Both a look-up and a connection; and in a process that another one starts."""
    code = "import socket, subprocess, sys\n"
    code += "try: socket.create_connection(('127.0.0.1', 9), 1)\nexcept OSError: pass\n"
    home.misod("-c", code, plain=True)
    assert any("getaddrinfo" in line for line in home.seen("network"))
    assert any("connect" in line and "127.0.0.1" in line for line in home.seen("network"))


def test_say_serve_status_list_and_all_but_pull_ask_for_no_network(home):
    wav = home.path / "hello.wav"
    home.misoctl("say", "-o", str(wav), "Hello from nowhere.")  # starts a daemon, which loads nano
    assert wave.open(str(wav)).getnframes() > 0
    home.misoctl("status", "--json")
    home.misoctl("start")
    daemon = psutil.Process(int((home.path / "run" / "misod.lock").read_text()))
    assert daemon.net_connections("inet") == []  # nor does a library below Python hold one
    for arguments in (("list",), ("show", "nano"), ("verify", "nano"), ("--help",), ("pull", "--help"), ("--version",)):
        home.misoctl(*arguments)
    home.misoctl("stop")
    watched = home.seen("process")
    assert any("misod serve" in line for line in watched) and any("misoctl say" in line for line in watched)
    assert any("misod.handed list" in line for line in watched)
    assert home.seen("network") == []


def test_a_pull_from_a_directory_asks_for_no_network(home, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(FIXTURES / "miso_tiny" / "v99_fp32", source, ignore=shutil.ignore_patterns("*.npz"))
    shutil.copytree(FIXTURES / "mimi_tiny", source / "codec", ignore=shutil.ignore_patterns("*.npz"))
    (source / "tokenizer.json").write_bytes(tiny_tokenizer())
    home.misoctl("pull", "-q", "--precision", "q8", "--from", str(source))
    assert (home.models / "miso" / "manifest.json").exists()
    assert home.seen("network") == []


def test_pull_is_the_one_verb_that_asks(home):
    done = home.misod(
        "-m", "misoctl", "pull", "-q", plain=True, env=home.environ | {"HF_ENDPOINT": "http://hub.invalid"}
    )
    assert done.returncode != 0
    assert any("hub.invalid" in line for line in home.seen("network"))


@pytest.mark.parametrize("arguments", [("list",), ("show", "nano"), ("verify", "nano"), ("rm", "none")])
def test_the_verbs_for_models_load_neither_mlx_nor_the_hub(home, arguments):
    ending = "sys.exit = lambda code=0: (print(*sys.modules, file=sys.stderr), os._exit(0))"
    code = f"import os, sys; sys.argv[1:] = {arguments!r}; {ending}; from misod.cli import main; main()"
    loaded = set(home.misod("-c", code, plain=True).stderr.split())
    assert "misod.weights.models" in loaded
    assert not loaded & {"mlx", "mlx.core", "numpy", "huggingface_hub", "httpx2", "tokenizers", "zmq"}
