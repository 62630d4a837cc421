"""The arrows of the design, each in a fresh interpreter: who may import whom, and what stays unloaded."""

import subprocess
import sys

import pytest

HEAVY = {"mlx", "numpy", "soundfile", "huggingface_hub", "sounddevice", "torch", "tokenizers", "psutil"}

# (what is run, what must not be loaded after it)
ARROWS = {
    "misoctl.cli loads nothing heavy, nor the daemon": (
        "import misoctl.cli",
        HEAVY | {"misod", "zmq", "msgpack", "platformdirs", "subprocess"},
    ),
    "misoctl http --help needs not what it serves with": (
        "import misoctl.cli as c\ntry: c.cli(['http', '--help'])\nexcept SystemExit: pass",
        HEAVY | {"misod", "zmq", "msgpack", "platformdirs", "subprocess", "starlette", "uvicorn", "asyncio"},
    ),
    "misoctl --help needs neither zmq nor msgpack": (
        "import sys, misoctl.cli as c; sys.argv[1:] = ['--help']\ntry: c.main()\nexcept SystemExit: pass",
        HEAVY | {"misod", "zmq", "msgpack", "platformdirs"},
    ),
    "all of misoctl loads nothing heavy, nor the daemon": (
        "import misoctl.cli, misoctl.client, misoctl.handed, misoctl.player, misoctl.sink, misoctl.speech, zmq\n"
        "import misoctl.start, misoctl.learning, misoctl.transcriber, misoctl.voicefile, misoctl.voices\n"
        "import misoctl.completion, misoctl.service, misoctl.launchd, misoctl.systemd, misoctl.bench\n"
        "import misoctl.saying, misoctl.formats, misoctl.parts, misoctl.detached",
        HEAVY | {"misod"},
    ),
    "WAV needs not what the other formats need": (
        "from misoctl.formats import format_of, open_output; open_output('/dev/null', format_of('a.wav'))",
        HEAVY | {"misoctl.encode", "tempfile"},
    ),
    "the listener over HTTP loads nothing heavy, nor the daemon": (
        "import misoctl.http.app, misoctl.http.listen, misoctl.encode",
        HEAVY | {"misod"},
    ),
    "protocol imports neither side": (
        "import protocol.codec, protocol.errors, protocol.messages, protocol.paths",
        HEAVY | {"misod", "misoctl", "zmq", "click", "platformdirs"},
    ),
    "the ways out need click alone": (
        "import protocol.exits",
        HEAVY | {"misod", "misoctl", "zmq", "msgpack", "platformdirs"},
    ),
    "the I/O thread's side of misod loads no mlx": (
        "import misod.__main__, misod.cli, misod.server, misod.session, misod.scheduler, misod.worker, misod.text",
        {"mlx", "misoctl", "soundfile", "huggingface_hub", "torch", "misod.miso"},
    ),
    "misod doctor tries mlx in a child, not here": (
        "import misod.cli\ntry: misod.cli.main(['doctor', '--json'])\nexcept SystemExit: pass",
        HEAVY - {"psutil", "numpy"} | {"misoctl", "misod.miso", "zmq"},
    ),
    "misod normalize needs the grammars only": (
        "import io, sys, misod.cli\nsys.stdin = io.TextIOWrapper(io.BytesIO(b'It is 5.'))\n"
        "try: misod.cli.main(['normalize'])\nexcept SystemExit: pass",
        HEAVY - {"psutil"} | {"misoctl", "misod.miso", "zmq"},
    ),
    "the text child needs the grammars only": (
        "import sys, misod.text.child as c; c.answer('5')",
        HEAVY | {"misoctl", "misod.miso", "zmq", "msgpack"},
    ),
    "misoctl normalize --help loads nothing heavy, nor the daemon": (
        "import misoctl.cli as c\ntry: c.cli(['normalize', '--help'])\nexcept SystemExit: pass",
        HEAVY | {"misod", "zmq", "msgpack", "platformdirs", "subprocess"},
    ),
    "misoctl doctor --help loads nothing heavy, nor the daemon": (
        "import misoctl.cli as c\ntry: c.cli(['doctor', '--help'])\nexcept SystemExit: pass",
        HEAVY | {"misod", "zmq", "msgpack", "platformdirs", "subprocess"},
    ),
    "what list, show and verify need of the weights loads no mlx and no numpy": (
        "import misod.weights.budget, misod.weights.check, misod.weights.manifest, misod.weights.plan\n"
        "import misod.weights.predict",
        HEAVY | {"misoctl", "zmq", "misod.miso", "misod.engine"},
    ),
    "a conversion's own code loads no mlx": (
        "import misod.weights.convert, misod.weights.layout, misod.weights.quantize",
        {"mlx", "misoctl", "zmq", "huggingface_hub", "torch"},
    ),
    "the scheduler and the model load no zmq": (
        "import misod.scheduler, misod.miso.engine",
        {"zmq", "misoctl", "soundfile", "huggingface_hub", "torch", "transformers"},
    ),
    "kitten's model needs neither torch nor the other engine": (
        "import misod.kitten.engine",
        {"zmq", "misoctl", "misod.miso", "kittenml", "huggingface_hub", "torch", "transformers"},
    ),
}


@pytest.mark.parametrize(("code", "forbidden"), ARROWS.values(), ids=ARROWS.keys())
def test_arrow(code, forbidden):
    ending = "\nimport sys; print(*sys.modules, file=sys.stderr)"
    command = [sys.executable, "-c", code + ending]
    child = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert child.returncode == 0, child.stderr
    loaded = set(child.stderr.split())
    assert "encodings" in loaded  # the list came through
    assert not loaded & forbidden


def test_protocol_needs_only_the_standard_library_msgpack_and_platformdirs():
    code = "import sys; before = set(sys.modules); import protocol.codec, protocol.paths\n"
    code += "protocol.paths.find_paths({}); print(*(set(sys.modules) - before))"
    child = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    tops = {name.split(".")[0] for name in child.stdout.split()} - sys.stdlib_module_names
    assert tops <= {"protocol", "msgpack", "platformdirs"} | cython(tops)


def cython(names: set[str]) -> set[str]:
    """What msgpack's compiled half registers beside itself."""
    return {name for name in names if name.startswith(("cython_runtime", "_cython"))}
