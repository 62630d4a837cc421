"""Real daemons in processes of their own, the real misoctl, and a raw client that may misbehave."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest
import zmq

from protocol import codec
from protocol import messages as m

HERE = Path(__file__).parent
HANG_S = 15.0  # no promise: only what keeps a broken test from waiting for ever
MISOCTL = str(Path(sys.executable).parent / "misoctl")


def until(holds, what: str, hang_s: float = HANG_S):
    """Wait for what comes from another process; returns what `holds` returned, once it is true."""
    deadline_s = time.monotonic() + hang_s
    while not (value := holds()):
        assert time.monotonic() < deadline_s, f"waited {hang_s:g} s for {what}"
        time.sleep(0.005)
    return value


def lives(pid: int) -> bool:
    """A container's init may leave zombies lying."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Home:
    """A MISO_HOME with a short path, and what runs in it."""

    def __init__(self):
        self.path = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))
        self.run, self.socket = self.path / "run", self.path / "run" / "misod.sock"
        self.trace, self.log = self.path / "trace", self.path / "logs" / "misod.log"
        self.stderr = self.path / "stderr"
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(("MISO_", "FAKE_"))}
        self.env |= {"MISO_HOME": str(self.path), "FAKE_TRACE": str(self.trace)}
        self.may_trace_back = False  # set by a test that makes the daemon log one
        self.processes: list[subprocess.Popen] = []

    def spawn(self, command: list[str], env: dict, **more) -> subprocess.Popen:
        """Its stderr is kept; it is reaped as soon as it ends, as init would."""
        with self.stderr.open("ab") as stderr:
            process = subprocess.Popen(command, env=self.env | env, stdin=subprocess.DEVNULL, stderr=stderr, **more)
        self.processes.append(process)
        threading.Thread(target=process.wait, daemon=True).start()
        return process

    def fake(self, env: dict | None = None, ready: bool = True, **flags) -> subprocess.Popen:
        """The daemon with the fake engine; `ready`: return once it can speak."""
        arguments = json.dumps({name: str(value) for name, value in flags.items()})
        process = self.spawn([sys.executable, str(HERE / "fake_misod.py"), arguments], env or {})
        if ready:
            self.wait_for("ready", process)
        return process

    def nano(self, **env) -> subprocess.Popen:
        process = self.spawn([sys.executable, "-m", "misod", "serve"], env)
        self.wait_for("ready", process)
        return process

    def wait_for(self, state: str, process: subprocess.Popen | None = None) -> m.Status:
        def reached():
            assert process is None or process.poll() is None, f"misod exited {process.returncode}: {self.said()}"
            if not listens(self.socket):
                return None
            with Raw(self) as raw:
                status = raw.ping()
            return status if status.state == state else None

        return until(reached, f"misod to be {state}")

    def misoctl(self, *arguments: str, **more) -> subprocess.CompletedProcess:
        """Run to its end. Text is decoded, unless text=False is given."""
        more = {"stdin": subprocess.DEVNULL} | more if "input" not in more else more
        options = {"env": self.env, "capture_output": True, "text": True, "timeout": 60, "check": False} | more
        return subprocess.run([MISOCTL, *arguments], **options)  # noqa: PLW1510

    def misoctl_process(self, *arguments: str, **more) -> subprocess.Popen:
        options = {"env": self.env, "stdin": subprocess.DEVNULL, "stderr": subprocess.PIPE} | more
        process = subprocess.Popen([MISOCTL, *arguments], **options)
        self.processes.append(process)
        return process

    def said(self) -> str:
        """All that daemons in this home wrote: log and stderr, also of one that misoctl started."""
        files = [*self.path.glob("logs/*"), self.stderr]
        return "".join(file.read_text(errors="replace") for file in files if file.exists())

    def traced(self, start: str) -> int:
        """How many things that begin with `start` the fake engine did."""
        return sum(line.startswith(start) for line in self.trace.read_text().splitlines())

    def lock_pid(self) -> int | None:
        lock = self.run / "misod.lock"
        return int(lock.read_text() or 0) if lock.exists() else None

    def close(self) -> None:
        started = self.lock_pid()  # by misoctl, so no child of ours
        for process in self.processes:
            process.kill()
            process.wait()
            for pipe in filter(None, (process.stdout, process.stderr)):
                pipe.close()
        if started and lives(started) and "misod" in " ".join(psutil.Process(started).cmdline()):
            os.kill(started, signal.SIGKILL)
        said = self.said()
        shutil.rmtree(self.path)
        assert self.may_trace_back or "Traceback" not in said, said
        assert "Fatal Python error" not in said or self.may_trace_back, said


def listens(path: Path) -> bool:
    import socket

    with socket.socket(socket.AF_UNIX) as plain:
        return plain.connect_ex(str(path)) == 0


class Raw:
    """A DEALER that does as it is told: no window is kept, nothing is acknowledged on its own."""

    def __init__(self, home: Home):
        self.context = zmq.Context()
        self.dealer = self.context.socket(zmq.DEALER)
        self.dealer.setsockopt(zmq.LINGER, 0)
        self.dealer.setsockopt(zmq.RCVHWM, 0)
        self.dealer.setsockopt(zmq.RECONNECT_IVL, 3_600_000)  # with -1 what came last is dropped unread at a disconnect
        self.dealer.connect(f"ipc://{home.socket}")
        self.last_id = 1_000_000

    def __enter__(self) -> "Raw":
        return self

    def __exit__(self, *_) -> None:
        self.close()

    def close(self) -> None:
        self.context.destroy(linger=0)

    def send(self, *messages: m.Message) -> None:
        for message in messages:
            self.dealer.send(codec.pack(message))

    def send_bytes(self, *frames: bytes) -> None:
        self.dealer.send_multipart(frames)

    def say(self, request: int, text: str, **options) -> None:
        self.send(m.Say(id=request, text=text, **({"speaker": 0, "seed": 7} | options)))

    def receive(self, hang_s: float = HANG_S) -> m.Message:
        assert self.dealer.poll(hang_s * 1000), "misod sent nothing"
        return codec.unpack(self.dealer.recv(), m.FROM_DAEMON)

    def until(self, kind: type[m.Message], request: int | None = None, ack: bool = False) -> list[m.Message]:
        """All messages up to the first of `kind` (of `request`), which is the last of the list."""
        got = []
        while True:
            got.append(message := self.receive())
            if ack and isinstance(message, m.Pcm):
                self.send(m.Ack(id=message.id, seq=message.seq))
            if isinstance(message, kind) and request in (None, message.id):
                return got

    def ping(self) -> m.Status:
        """Proof of life: a status asked and answered. What else came is dropped."""
        self.last_id += 1
        self.send(m.StatusRequest(id=self.last_id))
        return self.until(m.Status, self.last_id)[-1]

    def receive_end(self) -> m.Message:
        """The done or the error, whichever comes."""
        while not isinstance(message := self.receive(), m.Done | m.Error):
            pass
        return message

    def monitor(self) -> zmq.Socket:
        """Readable once the daemon has closed this connection."""
        return self.dealer.get_monitor_socket(zmq.EVENT_DISCONNECTED)


def frames_of(messages: list[m.Message], request: int | None = None) -> list[m.Pcm]:
    return [x for x in messages if isinstance(x, m.Pcm) and request in (None, x.id)]


@pytest.fixture
def home():
    home = Home()
    yield home
    home.close()


@pytest.fixture
def fake(home):
    """A home in which the daemon with the fake engine runs, at its defaults."""
    home.daemon = home.fake()
    return home


@pytest.fixture(scope="module")
def shared_fake():
    """A home in which the daemon with the fake engine runs, one for all tests of a file."""
    home = Home()
    home.daemon = home.fake()
    yield home
    home.close()


@pytest.fixture(scope="module")
def nano():
    """A home in which the real daemon with the bundled model runs, one for all tests of a file."""
    home = Home()
    home.daemon = home.nano()
    yield home
    home.close()
