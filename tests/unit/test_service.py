"""The login agent: what is written for launchd and systemd, and each known refusal of launchctl, played back."""

import json
import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from misoctl import cli, client, launchd, service
from misoctl.launchd import Launchd
from misoctl.systemd import Systemd
from protocol import errors
from protocol.errors import Failure
from protocol.paths import Paths

FAKE = Path(__file__).with_name("fake_launchctl.py")
ROOT_ADVICE = "\nTry re-running the command as root for richer errors."
BUSY = [5, "Bootstrap failed: 5: Input/output error" + ROOT_ADVICE, ""]
ODD = '/tmp/It\'s 50% "of" <us> & them $HOME é'


def paths_in(home: Path) -> Paths:
    return Paths(home=home, run=home / "run", logs=home / "logs")


def stand_in(directory: Path, name: str, script: str, monkeypatch) -> None:
    file = directory / name
    file.write_text(script)
    file.chmod(0o755)
    monkeypatch.setenv("PATH", str(directory), prepend=":")


@pytest.fixture
def mac(tmp_path, monkeypatch) -> Launchd:
    """An agent that is written, and a launchd that has never heard of it."""
    bin_directory, fake = tmp_path / "bin", tmp_path / "launchd"
    bin_directory.mkdir()
    fake.mkdir()
    stand_in(bin_directory, "launchctl", f'#!/bin/sh\nexec "{sys.executable}" -I -S "{FAKE}" "$@"\n', monkeypatch)
    monkeypatch.setenv("FAKE_LAUNCHD", str(fake))
    monkeypatch.setattr(launchd, "AGAIN_S", 0.01)
    monkeypatch.setattr(launchd, "BOOTSTRAP_S", 1.0)
    monkeypatch.setattr(launchd, "GONE_S", 1.0)
    agent = Launchd(paths_in(tmp_path / "home"), tmp_path, sys.executable, {})
    service._write(agent.file, agent.render())
    return agent


@pytest.fixture
def fake(mac, tmp_path) -> Path:
    return tmp_path / "launchd"


def calls(fake: Path) -> list[str]:
    """The verbs, less the looking."""
    lines = [line.split() for line in (fake / "calls").read_text().splitlines()]
    return [" ".join(words[: 1 + ("-k" in words)]) for words in lines if words[0] != "print"]


def plan(fake: Path, **answers: list) -> None:
    (fake / "plan.json").write_text(json.dumps(answers))


def refusal(agent: Launchd) -> str:
    with pytest.raises(Failure) as caught:
        agent.load()
    line = str(caught.value)
    assert caught.value.exit_code == errors.OS_LIMIT and "\n" not in line and "as root" not in line
    return line


# ---- launchd, as it answers


def test_a_first_install(mac, fake):
    mac.load()
    assert calls(fake) == ["bootout", "enable", "bootstrap", "kickstart"]
    assert mac.state() == launchd.State(True, "running", 4242, "(never exited)")


def test_an_old_one_is_waited_for_while_it_drains(mac, fake):
    """bootout returns at once; until `print` no longer knows the label bootstrap says 5 (tuist/tuist#10143)."""
    mac.load()
    (fake / "lingers").write_text("3")
    mac.load()
    assert calls(fake)[4:] == ["bootout", "enable", "bootstrap", "kickstart"]


@pytest.mark.parametrize(
    "answer",
    [
        [3, "Boot-out failed: 3: No such process", ""],
        [5, "Boot-out failed: 5: Input/output error" + ROOT_ADVICE, ""],
        [36, "Boot-out failed: 36: Operation now in progress", ""],  # osquery#5698
        [113, "Could not find service", ""],
        [125, "Boot-out failed: 125: Domain does not support specified action", ""],
    ],
    ids=lambda answer: str(answer[0]),
)
def test_whatever_bootout_says_print_decides(mac, fake, answer):
    plan(fake, bootout=[answer])
    mac.load()
    assert mac.state().pid


@pytest.mark.parametrize(
    "answers",
    [
        [BUSY] * 3,  # tomcounsell/ai#2013, headroomlabs-ai/headroom#1289: for some 5 s after a bootout
        [[37, "Bootstrap failed: 37: Operation already in progress", ""]] * 2,  # ancwrd1/snx-rs#241
    ],
)
def test_a_label_that_is_not_free_yet_is_tried_again(mac, fake, answers):
    plan(fake, bootstrap=answers)
    mac.load()
    assert calls(fake) == ["bootout", "enable", *["bootstrap"] * (len(answers) + 1), "kickstart"]


def test_one_that_was_disabled_is_enabled_first(mac, fake):
    """launchctl's `disable` outlives the plist (DeterminateSystems/nix-installer#530)."""
    (fake / "disabled").touch()
    mac.load()
    assert mac.state().pid


def test_one_that_cannot_be_enabled_is_named_with_the_cure(mac, fake):
    plan(fake, bootstrap=[[119, "Bootstrap failed: 119: Service is disabled", ""]])
    assert "launchctl enable gui/" in refusal(mac)
    assert calls(fake).count("bootstrap") == 1


def test_a_loaded_job_is_kicked_where_bootstrap_goes_on_refusing(mac, fake, monkeypatch):
    monkeypatch.setattr(launchd, "BOOTSTRAP_S", 0.0)
    plan(fake, bootstrap=[[*BUSY[:2], "load"]])
    mac.load()
    assert calls(fake)[-1] == "kickstart -k" and mac.state().pid


def test_a_job_that_does_not_go_is_kicked_and_that_is_told(mac, fake, monkeypatch, capsys):
    monkeypatch.setattr(launchd, "GONE_S", 0.1)
    mac.load()
    (fake / "lingers").write_text("1000000")
    mac.load()
    assert calls(fake)[4:] == ["bootout", "kickstart -k"]
    assert "next login" in capsys.readouterr().err


@pytest.mark.parametrize(("code", "ends_well"), [(0, True), (37, True), (113, False)])
def test_a_job_is_kicked_after_its_bootstrap(mac, fake, code, ends_well):
    """It may be loaded and never start (openbase-community/openbase#15); 37: it starts already."""
    plan(fake, kickstart=[[code, "Could not find service", ""]])
    if ends_well:
        mac.load()
    else:
        assert "Could not find service" in refusal(mac)


def test_without_a_graphical_login_it_waits_for_one(mac, fake):
    """By ssh to a Mac where nobody sits (rjwalters/loom#4130)."""
    plan(fake, bootstrap=[[125, "Bootstrap failed: 125: Domain does not support specified action", ""]])
    assert "when you log in at the screen" in refusal(mac)
    assert mac.file.exists()


def test_for_ever_refused_is_one_line_that_names_the_file(mac, fake, monkeypatch):
    monkeypatch.setattr(launchd, "BOOTSTRAP_S", 0.2)
    plan(fake, bootstrap=[BUSY] * 1000)
    line = refusal(mac)
    assert "5: Input/output error" in line and str(mac.file) in line


def test_a_plist_that_launchd_cannot_read_is_refused_at_once(mac, fake):
    plan(fake, bootstrap=[[109, "Bootstrap failed: 109: Invalid property list", ""]])
    assert "109: Invalid property list" in refusal(mac)
    assert calls(fake).count("bootstrap") == 1


def test_removing_ends_the_job_and_takes_the_file(mac, fake):
    mac.load()
    (fake / "lingers").write_text("3")
    mac.remove()
    assert not mac.state().loaded and not mac.file.exists()
    mac.remove()


def test_one_that_does_not_end_is_not_removed(mac, fake, monkeypatch):
    monkeypatch.setattr(launchd, "GONE_S", 0.1)
    mac.load()
    (fake / "lingers").write_text("1000000")
    with pytest.raises(Failure, match="pid 4242"):
        mac.remove()
    assert mac.file.exists()


def test_without_launchctl_it_is_one_line(mac, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(Failure, match="there is no launchctl here"):
        mac.state()


class Answering:
    """A misod that is there, pid 1."""

    def __init__(self, _paths):
        self.welcome = SimpleNamespace(pid=self.pid)

    __enter__, __exit__, pid = lambda self: self, lambda *_: None, 1


def test_one_that_another_started_meanwhile_is_not_called_the_agent(mac, monkeypatch):
    """`misoctl say` between the stop and the start: that one has the lock, and the agent's ends."""
    monkeypatch.setattr(client, "Client", Answering)
    with pytest.raises(Failure, match="pid 1, was there first") as caught:
        service._start(mac, print)
    assert caught.value.exit_code == errors.TRY_AGAIN
    monkeypatch.setattr(Answering, "pid", 4242)
    service._start(mac, print)


# ---- what is written


def test_the_plist_keeps_every_character_and_says_what_launchd_must_know():
    home = Path(ODD)
    agent = Launchd(paths_in(home), home, f"{ODD}/bin/python", {"MISO_HOME": ODD})
    told = plistlib.loads(agent.render())
    assert told["ProgramArguments"] == [f"{ODD}/bin/python", "-P", "-m", "misod", "serve", "--agent"]
    assert told["EnvironmentVariables"]["MISO_HOME"] == ODD
    assert told["StandardErrorPath"] == f"{ODD}/logs/misod.stderr"
    assert told["ProcessType"] == "Interactive"
    assert told["KeepAlive"] == {"SuccessfulExit": False} and told["RunAtLoad"] is True
    assert told["Umask"] == 0o077 and told["SoftResourceLimits"] == {"NumberOfFiles": 16384}
    assert told["ThrottleInterval"] == 10 and told["ExitTimeOut"] == 20
    assert agent.file.name == f"{told['Label']}.plist" and agent.file.parent.name == "LaunchAgents"


def test_what_is_written_is_whole_and_others_cannot_write_it(tmp_path):
    file = tmp_path / "Library" / "LaunchAgents" / "x.plist"
    service._write(file, b"one")
    service._write(file, b"two")
    assert file.read_bytes() == b"two" and file.stat().st_mode & 0o777 == 0o644
    assert list(file.parent.iterdir()) == [file]


def test_a_folder_that_is_not_ours_is_named(tmp_path):
    (tmp_path / "LaunchAgents").write_text("no folder")
    with pytest.raises(Failure, match="LaunchAgents") as caught:
        service._write(tmp_path / "LaunchAgents" / "x.plist", b"one")
    assert caught.value.exit_code == errors.CANT_CREATE


def unit(tmp_path: Path, home: str) -> Systemd:
    return Systemd(paths_in(Path(home)), tmp_path, sys.executable, {"MISO_HOME": home})


def test_the_unit_quotes_what_systemd_would_read_otherwise(tmp_path):
    text = unit(tmp_path, ODD).render().decode()
    assert 'Environment="MISO_HOME=/tmp/It\'s 50%% \\"of\\" <us> & them $HOME é"\n' in text
    assert f"StandardError=append:{ODD.replace('%', '%%')}/logs/misod.stderr\n" in text
    assert "Restart=on-failure\n" in text and "RestartPreventExitStatus=71 73 74 75 77 78\n" in text


@pytest.mark.skipif(not shutil.which("systemd-analyze"), reason="no systemd here")
@pytest.mark.parametrize("home", ["/tmp/plain", ODD])
def test_systemd_finds_no_fault_in_the_unit(tmp_path, home):
    agent = unit(tmp_path, home)
    service._write(agent.file, agent.render())
    command = ["systemd-analyze", "verify", "--user", "--man=no", str(agent.file)]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)}
    said = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=60, check=False)
    faults = [line for line in said.stderr.splitlines() if agent.file.name in line]
    assert said.returncode == 0 and not faults, said.stderr


@pytest.mark.parametrize(
    ("says", "code", "words"),
    [
        ("Failed to connect to bus: No medium found", 1, "XDG_RUNTIME_DIR=/run/user/"),
        ("Failed to connect to user scope bus via local transport: No such file or directory", 1, "not by su or sudo"),
        ("Failed to restart misod.service: Unit misod.service not found.", 5, "systemctl --user status misod.service"),
    ],
)
def test_each_refusal_of_systemctl_is_one_line_with_the_cure(tmp_path, monkeypatch, says, code, words):
    stand_in(tmp_path, "systemctl", f'#!/bin/sh\necho "{says}" >&2\nexit {code}\n', monkeypatch)
    with pytest.raises(Failure) as caught:
        unit(tmp_path, "/tmp/plain").load()
    assert says.split(":")[-1] in str(caught.value) and words in str(caught.value)
    assert caught.value.exit_code == errors.OS_LIMIT


# ---- who may


@pytest.mark.parametrize("verb", service.service.commands)
def test_root_is_refused(monkeypatch, capsys, verb):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", "501")
    with pytest.raises(SystemExit) as ended:
        cli.cli.main(["service", verb])
    assert ended.value.code == errors.NO_PERMISSION and "leave sudo out" in capsys.readouterr().err


def test_the_help_of_each_verb_needs_no_permission(monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_UID", "501")
    with pytest.raises(SystemExit) as ended:
        cli.cli.main(["service", "--help"])
    assert ended.value.code == 0
