"""`misoctl service` around the real daemon: a launchctl and a systemctl that are ours run what they are given."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from harness import lives, until

from protocol import errors

FAKES = Path(__file__).parents[1] / "unit"
DARWIN = """
import os, pathlib, sys
from misoctl import cli, launchd, service
from protocol.paths import find_paths
user, environ = pathlib.Path(os.environ["HOME"]), {"MISO_HOME": os.environ["MISO_HOME"]} | EXTRA
service.agent = lambda: launchd.Launchd(find_paths(), user, sys.executable, environ)
launchd.AGAIN_S = 0.02
cli.main()
"""


class Login:
    """A user's home and PATH, with the stand-in of one of the two."""

    def __init__(self, home, system: str):
        self.home, self.system = home, system
        self.fake, self.file = home.path / "fake", home.path / "Library/LaunchAgents/miso.misod.plist"
        if system == "systemctl":
            self.file = home.path / ".config/systemd/user/misod.service"
        (self.fake / "bin").mkdir(parents=True)
        stand_in = self.fake / "bin" / system
        stand_in.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKES / f"fake_{system}.py"}" "$@"\n')
        stand_in.chmod(0o755)
        (self.fake / "spawn").touch()
        kept = {k: v for k, v in home.env.items() if not k.startswith("SUDO_")}
        places = {"FAKE_LAUNCHD": self.fake, "FAKE_SYSTEMD": self.fake, "HOME": home.path}
        places["XDG_CONFIG_HOME"] = home.path / ".config"
        self.env = kept | {name: str(path) for name, path in places.items()}
        self.env["PATH"] = f"{self.fake / 'bin'}:{os.environ['PATH']}"

    def misoctl(self, *arguments: str, **env) -> subprocess.CompletedProcess:
        extra = {"PYTHONPATH": self.env["PYTHONPATH"]} if "PYTHONPATH" in self.env else {}
        program = ["-m", "misoctl"] if self.system == "systemctl" else ["-c", DARWIN.replace("EXTRA", repr(extra))]
        command = [sys.executable, *program, *arguments]
        return subprocess.run(command, env=self.env | env, capture_output=True, text=True, timeout=120, check=False)

    def status(self) -> dict:
        return json.loads(self.misoctl("service", "status", "--json").stdout)


@pytest.fixture(params=["launchctl", "systemctl"])
def login(request, home):
    return Login(home, request.param)


def test_a_service_from_install_to_uninstall(login, home):
    assert login.misoctl("service", "status").returncode == errors.UNAVAILABLE
    before = home.nano()  # it would hold the lock: the service takes its place
    installed = login.misoctl("service", "install")
    assert installed.returncode == 0, installed.stderr + home.said()
    until(lambda: not lives(before.pid), "the one that ran before to end")
    first = login.status()
    assert first["installed"] and first["current"] and first["pid"] == home.lock_pid()
    assert login.misoctl("say", "--no-start", "-o", str(home.path / "a.wav"), "Hello.").returncode == 0

    again = login.misoctl("service", "install")
    assert again.returncode == 0 and "installed and runs" in again.stderr
    assert login.status() == first

    assert login.misoctl("service", "restart").returncode == 0
    second = login.status()
    assert second["pid"] == home.lock_pid() != first["pid"]
    assert "listening on" in login.misoctl("service", "logs", "-n", "20").stdout

    assert login.misoctl("service", "uninstall").returncode == 0
    until(lambda: not lives(second["pid"]), "misod to end")
    assert not login.file.exists() and not login.status()["installed"]
    assert login.misoctl("service", "uninstall").returncode == 0
    assert login.misoctl("service", "restart").returncode == errors.UNAVAILABLE


def test_a_misod_that_refuses_to_start_is_quoted(login, home):
    (home.path / "config.toml").write_text("max_rows = 'many'")
    done = login.misoctl("service", "install")
    assert done.returncode == errors.UNAVAILABLE and "max_rows in" in done.stderr and done.stderr.count("\n") == 1
    assert login.misoctl("service", "status").returncode == errors.UNAVAILABLE
    assert "max_rows in" in login.misoctl("service", "logs").stdout
    (home.path / "config.toml").unlink()
    assert login.misoctl("service", "install").returncode == 0
    login.misoctl("service", "uninstall")


def test_an_older_file_is_told_and_renewed(login):
    login.file.parent.mkdir(parents=True)
    login.file.write_text("of an older miso")
    told = login.misoctl("service", "status").stdout
    assert "`misoctl service install` renews it" in told
    assert login.misoctl("service", "install").returncode == 0
    assert login.status()["current"]
    login.misoctl("service", "uninstall")


@pytest.mark.parametrize("login", ["systemctl"], indirect=True)  # said by both from one place
def test_variables_of_the_shell_are_told_to_stay_behind(login):
    """ollama/ollama#1501: a daemon never sees them."""
    said = login.misoctl("service", "install", MISO_MAX_ROWS="3").stderr
    assert "MISO_MAX_ROWS of this shell does not reach the service: `misoctl config set max_rows 3`" in said
    login.misoctl("service", "uninstall")


@pytest.mark.parametrize("agent", [True, False])
def test_an_agent_that_a_restart_would_not_mend_ends_well(home, agent):
    """KeepAlive restarts what fails: a wrong setting would be tried every ten seconds for ever."""
    (home.path / "config.toml").write_text("max_rows = 'many'")
    child = home.spawn([sys.executable, "-m", "misod", "serve", *["--agent"] * agent], {})
    assert child.wait(30) == (0 if agent else errors.BAD_CONFIG)
    assert "max_rows" in home.said()


def test_an_agent_beside_a_running_misod_ends_well(fake):
    child = fake.spawn([sys.executable, "-m", "misod", "serve", "--agent"], {})
    assert child.wait(30) == 0
    assert "already running" in fake.said()


@pytest.mark.skipif(not shutil.which("tail"), reason="no tail here")
def test_logs_before_there_is_one(home):
    done = home.misoctl("service", "logs")
    assert done.returncode == errors.NO_INPUT and "not there yet" in done.stderr


def test_a_misspelt_variable_is_told_to_who_starts_the_daemon(home):
    home.env["MISO_MAX_ROW"] = "3"
    assert "MISO_MAX_ROW means nothing to miso; did you mean MISO_MAX_ROWS?" in home.misoctl("start").stderr
    assert "MISO_MAX_ROW" not in home.misoctl("start").stderr  # it runs already


def test_a_setting_that_is_written_says_when_it_holds(fake):
    assert "at its next start" in fake.misoctl("config", "set", "max_rows", "3").stderr
    assert fake.misoctl("config", "set", "max_rows", "3", "-q").stderr == ""


# ---- the first `say` after boot


@pytest.fixture
def booting(home):
    """The service's misod, early: it holds its lock, and neither its socket nor its model is there."""
    for name in ("FAKE_BIND_GATE", "FAKE_LOAD_GATE"):
        home.env[name] = str(home.path / name)
        os.mkfifo(home.env[name])
    home.env["FAKE_LOAD_ERROR"] = str(home.path / "error")  # not there, but in one test
    home.service = home.fake(ready=False)
    until(home.lock_pid, "the service to take its lock")
    return home


def first_say(home) -> subprocess.Popen:
    say = home.misoctl_process("say", "-o", str(home.path / "a.wav"), "two words", text=True)
    assert say.stderr.readline() == "misoctl: starting misod\n"
    return say


def go_on(home, gate: str) -> None:
    (home.path / gate).write_bytes(b"")


def test_a_say_while_the_service_starts_waits_for_its_socket_and_its_model(booting):
    say = first_say(booting)
    go_on(booting, "FAKE_BIND_GATE")
    assert say.stderr.readline() == "misoctl: loading the model\n"
    go_on(booting, "FAKE_LOAD_GATE")
    assert say.wait(30) == errors.OK and say.stderr.read() == ""
    assert booting.lock_pid() == booting.service.pid and booting.traced("prefill two words") == 1


def test_a_model_that_the_service_cannot_load_is_the_reason_that_is_told(booting):
    say = first_say(booting)
    go_on(booting, "FAKE_BIND_GATE")
    assert say.stderr.readline() == "misoctl: loading the model\n"
    (booting.path / "error").write_text("x.safetensors: 3 tensors are missing")
    go_on(booting, "FAKE_LOAD_GATE")
    assert say.wait(30) == errors.SOFTWARE
    said = say.stderr.read()
    assert "x.safetensors: 3 tensors are missing" in said and said.count("\n") == 1
    assert not list(booting.path.glob("*.wav*"))


def test_a_say_whose_service_dies_before_it_answers_starts_a_misod_of_its_own(booting):
    say = first_say(booting)
    booting.service.kill()
    assert say.wait(30) == errors.OK, say.stderr.read()
    assert booting.lock_pid() != booting.service.pid


def test_a_say_where_no_misod_can_start_tells_why_in_one_line(home):
    (home.path / "config.toml").write_text("max_rows = 'many'")
    say = first_say(home)
    assert say.wait(30) == errors.BAD_CONFIG
    said = say.stderr.read()
    assert "cannot start misod: max_rows in" in said and said.count("\n") == 1 and not (home.path / "a.wav").exists()
