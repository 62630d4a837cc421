"""misod doctor: each check in its good and its bad state, the probe that dies, and what the verb prints."""

import errno
import fcntl
import json
import os
import pty
import resource
import signal
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import psutil
import pytest

from misod import doctor
from misod.doctor import finding, machine, models, place, probe, sound
from misod.doctor.finding import FAIL, OK, WARN, Finding, Site
from misod.engine import ModelError, find_model
from misod.weights import budget, manifest, sources
from protocol import errors
from protocol.paths import find_paths

GB = 10**9
SPEECH_BYTES_PER_S = budget.frame_bytes(budget.MISO_8B, "q8") / 0.08  # at which q8 is about as fast as speech
METAL = probe.Probe("0.32.4", "metal", "Apple M3 Max", 50 * GB, 380e9)
CPU = probe.Probe("0.32.4", "cpu", "AMD EPYC", 0, 10e9)


@pytest.fixture
def home(tmp_path):
    return tmp_path / "home"


@pytest.fixture
def site(home):
    """A Linux machine with an empty home; Site.probe is set by those who need it."""
    return at(home)


def at(home, platform="linux", machine="x86_64", **environ) -> Site:
    environ = {"MISO_HOME": str(home)} | environ
    return Site(find_paths(environ), environ, platform, machine)


@pytest.fixture
def mac(home):
    return at(home, "darwin", "arm64")


@pytest.fixture
def commands(tmp_path, monkeypatch):
    """Programs that print what they are told, alone on PATH: `commands(sysctl="...")` writes a shell script."""
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setenv("PATH", str(directory))

    def write(**scripts: str) -> None:
        for name, script in scripts.items():
            (directory / name).write_text(f"#!/bin/sh\n{script}\n")
            (directory / name).chmod(0o755)

    return write


@pytest.fixture
def probed(monkeypatch):
    """probed(METAL), or probed("why it failed")."""

    def put(result: probe.Probe | str) -> None:
        def run_probe():
            if isinstance(result, str):
                raise probe.ProbeFailed(result)
            return result

        monkeypatch.setattr(finding, "run_probe", run_probe)

    return put


@pytest.fixture
def memory(monkeypatch):
    def put(total: float, available: float | None = None) -> None:
        now = namedtuple("Memory", "total available")(int(total), int(total if available is None else available))
        monkeypatch.setattr(psutil, "virtual_memory", lambda: now)

    return put


def state(found: Finding, *words: str) -> str:
    """Its state, once each of `words` was seen in it, and a cure where one is due."""
    assert bool(found.cure) == (found.state != OK), found
    for word in words:
        assert word in f"{found.detail} -> {found.cure}", found
    return found.state


# ---- the machine


def test_chip_of_a_mac(mac, commands):
    brand = 'case "$2" in machdep*) echo "Apple M3 Max";; *) exit 1;; esac'
    commands(sysctl=brand)
    assert state(machine.chip(mac), "Apple M3 Max") == OK
    commands(sysctl='case "$2" in machdep*) echo "Apple M3 Max";; *) echo 1;; esac')
    assert state(machine.chip(mac), "Rosetta", "arm64 Python") == FAIL
    commands(sysctl='case "$2" in machdep*) echo "Intel(R) Core(TM) i9";; *) exit 1;; esac')
    assert state(machine.chip(mac), "Intel", "Apple silicon") == FAIL


def test_chip_of_a_linux_machine(home, site, tmp_path, monkeypatch):
    monkeypatch.setattr(machine, "CPUINFO", tmp_path / "cpuinfo")
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nmodel name\t: AMD EPYC\nmodel name\t: AMD EPYC\n")
    assert state(machine.chip(site), "AMD EPYC, ", " cores") == OK
    (tmp_path / "cpuinfo").write_text("processor\t: 0\nCPU part\t: 0xd0c\n")
    assert state(machine.chip(at(home, machine="aarch64")), "aarch64") == OK
    assert state(machine.chip(at(home, machine="riscv64")), "no MLX for riscv64") == FAIL


def test_system_of_a_mac(mac, commands):
    commands(sw_vers='[ "$1" = -productVersion ] && echo 15.3.1')
    assert state(machine.system(mac), "macOS 15.3.1") == OK
    commands(sw_vers="echo 13.6")
    assert state(machine.system(mac), "macOS 13.6", "14", "update macOS") == FAIL
    commands(sw_vers="exit 1")
    assert state(machine.system(mac), "sw_vers") == WARN


def test_system_of_a_linux_machine(site, monkeypatch):
    for libc, expected in ((("glibc", "2.35"), OK), (("glibc", "2.31"), WARN), (("", ""), WARN)):
        monkeypatch.setattr(machine.platform, "libc_ver", lambda libc=libc: libc)
        assert state(machine.system(site), "kernel") == expected
    monkeypatch.setattr(machine.platform, "libc_ver", lambda: ("glibc", "2.31"))
    assert state(machine.system(site), "glibc 2.31", "glibc 2.35") == WARN


def test_memory(site, memory):
    memory(16 * 2**30, 9e9)
    assert state(machine.memory(site), "17.2 GB (16 GiB)", "9.0 GB of it free") == OK
    memory(16 * 2**30, 0.4e9)
    assert state(machine.memory(site), "400 MB of it free") == WARN


def test_wired_limit(home, commands, memory, probed):
    memory(64 * 2**30)
    probed(METAL)
    commands(sysctl='[ "$2" = iogpu.wired_limit_mb ] && echo 0')
    assert state(machine.wired_limit(at(home, "darwin")), "as macOS chose: 50.0 GB") == OK
    commands(sysctl="echo 49152")
    assert state(machine.wired_limit(at(home, "darwin")), "51.5 GB, set by hand") == OK
    commands(sysctl="echo 62000")
    assert state(machine.wired_limit(at(home, "darwin")), "too little", "iogpu.wired_limit_mb=0") == WARN
    commands(sysctl="echo unknown oid >&2; exit 1")
    assert state(machine.wired_limit(at(home, "darwin")), "cannot be read") == WARN


def test_mlx_and_bandwidth(home, probed):
    probed(CPU)
    assert state(machine.mlx(at(home)), "0.32.4 on cpu (AMD EPYC)") == OK
    assert state(machine.bandwidth(at(home)), "10 GB/s", "measured") == OK
    probed(METAL)
    assert state(machine.mlx(at(home, "darwin")), "on metal") == OK
    assert state(machine.bandwidth(at(home, "darwin")), "380 GB/s") == OK
    probed("MLX ends the process with SIGABRT")
    assert state(machine.mlx(at(home)), "SIGABRT", "install miso again") == FAIL
    assert state(machine.mlx(at(home, "darwin")), "SIGABRT", "Metal device") == FAIL
    assert state(machine.bandwidth(at(home)), "not measured") == WARN


def test_a_mac_that_is_slower_than_any_mac_is_noted(home, probed):
    probed(CPU)
    assert state(machine.mlx(at(home, "darwin")), "not on Metal", "virtual machine") == WARN
    probed(probe.Probe("0.32.4", "metal", "Apple M1", 11 * GB, 20e9))
    assert state(machine.bandwidth(at(home, "darwin")), "20 GB/s", "Low Power Mode") == WARN


def test_fit(home, memory, probed):
    memory(36e9)
    probed(probe.Probe("0", "metal", "M", 27 * GB, 2.0 * SPEECH_BYTES_PER_S))
    assert state(machine.fit(at(home), "q8"), "10.1 GB of 21.6 GB (pull's choice)", "factor 0.5") == OK
    assert "pull" not in machine.fit(at(home), "mixed").detail
    probed(probe.Probe("0", "metal", "M", 27 * GB, 0.5 * SPEECH_BYTES_PER_S))
    assert state(machine.fit(at(home), "q8"), "slower than speech", "-o") == WARN
    probed(probe.Probe("0", "metal", "M", 8 * GB, 2.0 * SPEECH_BYTES_PER_S))
    assert state(machine.fit(at(home), "q8"), "does not fit", "8.0 GB may be taken", "nano") == WARN
    probed("it died")
    assert state(machine.fit(at(home), "q8"), "speed unknown") == WARN


def test_fit_on_a_discrete_gpu_counts_its_own_memory(home, memory, probed):
    memory(16e9)
    probed(probe.Probe("0", "cuda", "H200", 140 * GB, 4e12))
    assert state(machine.fit(at(home), "bf16"), "140.0 GB") == OK


def test_an_installed_precision_that_does_not_fit_must_be_mended(home, memory, probed):
    memory(8e9)
    probed(METAL)
    write_model(home, "miso", "q8")
    assert state(machine.fit(at(home), "q8"), "it is installed", "misoctl pull miso") == FAIL
    assert state(machine.fit(at(home), "mixed")) == WARN


def test_disk(home, site, memory, monkeypatch):
    memory(64e9)
    usage = namedtuple("Usage", "free")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage(100 * GB))
    assert state(machine.disk(site), "100.0 GB free in", str(home.parent)) == OK
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage(5 * GB))
    assert state(machine.disk(site), "takes 46.", "free 41.", "before `misoctl pull miso`") == WARN
    write_model(home, "miso", "q8")
    assert state(machine.disk(site), "5.0 GB") == OK
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda _: usage(GB // 20))
    assert state(machine.disk(site), "log") == FAIL


def test_open_files(site, monkeypatch):
    for limits, expected in (((256, 1024), OK), ((256, resource.RLIM_INFINITY), OK), ((256, 1023), FAIL)):
        monkeypatch.setattr(resource, "getrlimit", lambda _, limits=limits: limits)
        assert state(machine.open_files(site)) == expected
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    assert state(machine.open_files(site), "256 now, at most no limit") == OK
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1023, 1023))
    assert state(machine.open_files(site), "at most 1023", "1024", "ulimit") == FAIL


# ---- the home and the daemon


@pytest.mark.parametrize(("check", "name"), [(place.home, "."), (place.logs, "logs")])
def test_home_and_logs(home, site, check, name):
    assert state(check(site), "made at the first start") == OK
    directory = home / name
    directory.mkdir(mode=0o700, parents=True)
    assert state(check(site)) == OK
    for mode in (0o770, 0o702):
        directory.chmod(mode)
        assert state(check(site), "written by others", "chmod go-w") == WARN
    directory.chmod(0o700)
    directory.rmdir()
    directory.write_text("")
    assert state(check(site), "not a directory") == FAIL
    directory.unlink()
    directory.symlink_to(home.parent / "nothing")
    assert state(check(site), "link to nothing") == FAIL


def test_a_home_that_is_not_ours_to_write(home, site, monkeypatch):
    """root may write anywhere, so the answer is given to it."""
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert state(place.home(site), "cannot be made", "set MISO_HOME") == FAIL
    home.mkdir()
    assert state(place.home(site), "not yours", "set MISO_HOME") == FAIL


def test_a_home_below_a_file(tmp_path):
    (tmp_path / "file").write_text("")
    assert state(place.home(at(tmp_path / "file" / "home")), "Not a directory") == FAIL


def test_run_directory(home, site):
    assert state(place.run_directory(site), "made at the first start") == OK
    (home / "run").mkdir(mode=0o700, parents=True)
    assert state(place.run_directory(site), "yours alone") == OK
    (home / "run").chmod(0o755)
    assert state(place.run_directory(site), "others", f"chmod 700 {home / 'run'}") == FAIL
    (home / "run").rmdir()
    (home / "run").symlink_to(home)
    assert state(place.run_directory(site), "not a link", "remove it") == FAIL


def test_socket_and_its_length(tmp_path, home, site):
    assert state(place.socket(site), f"{len(os.fsencode(site.paths.socket))} of 10", "none now") == OK
    assert state(place.socket(at(tmp_path / ("long" * 30))), "/tmp/miso-", "too long for a socket") == OK
    (home / "run").mkdir(mode=0o700, parents=True)
    site.paths.socket.write_text("")
    assert state(place.socket(site), "not a socket", "move it away") == FAIL


@pytest.fixture
def short():
    """A home whose socket path fits, private."""
    import shutil
    import tempfile

    path = Path(tempfile.mkdtemp(prefix="m", dir="/tmp"))
    (path / "run").mkdir(mode=0o700)
    yield path
    shutil.rmtree(path)


def test_daemon(short):
    site = at(short)
    assert state(place.daemon(site), "not running") == OK
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(site.paths.socket))
        assert state(place.daemon(site), "not running") == OK  # a killed one's: the next start clears it
        assert state(place.socket(site)) == OK
        left.listen(1)
        assert state(place.daemon(site), "not misod", "MISO_HOME") == FAIL
        with site.paths.lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            lock.write(f"{os.getpid()}\n")
            lock.flush()
            assert state(place.daemon(site), f"running, pid {os.getpid()}", "MB resident") == OK
            site.paths.socket.unlink()
            assert state(place.daemon(site), f"pid {os.getpid()}", "nothing listens", "misoctl stop") == WARN
            lock.truncate(0)
            assert state(place.daemon(site), "unknown pid") == WARN
    assert state(place.daemon(site), "not running") == OK


def test_config(home, site):
    assert state(place.config(site), "defaults") == OK
    home.mkdir()
    site.paths.config.write_text("max_rows = 4\n")
    assert state(place.config(site), str(site.paths.config)) == OK
    for text, words in (("max_row = 4", "unknown setting 'max_row'"), ("max_rows = 0", "1..64"), ("[", "config.toml")):
        site.paths.config.write_text(text)
        assert state(place.config(site), words, "misoctl config edit") == FAIL


def test_variables(home):
    assert state(place.variables(at(home)), "MISO_HOME") == OK
    assert state(place.variables(at(home, MISO_MAX_ROWS="4", PATH="x")), "MISO_HOME, MISO_MAX_ROWS") == OK
    assert state(place.variables(at(home, MISO_KEEPALIVE_S="4")), "did you mean MISO_KEEP_ALIVE_S?") == WARN
    assert state(place.variables(at(home, MISO_ZZZ="4")), "`unset MISO_ZZZ`") == WARN
    assert state(place.variables(at(home, MISO_MAX_ROWS="many")), "'many' is not a whole number") == FAIL


AGENT = """gui/501/miso.misod = {
\tactive count = 1
\tpath = /Users/someone/Library/LaunchAgents/miso.misod.plist
\ttype = LaunchAgent
\tstate = STATE
\tprogram = /usr/local/bin/misod
\tpid = 913
\tlast exit code = CODE
\tspawn type = SPAWN
\tresource coalition = {
\t\tstate = active
\t}
}"""


@pytest.mark.parametrize(
    ("job", "code", "spawn", "expected", "words"),
    [
        ("running", "(never exited)", "interactive (4)", OK, "installed, running"),
        ("running", "78: EX_CONFIG", "interactive (4)", OK, "installed, running"),
        ("not running", "0", "interactive (4)", OK, "not running"),
        ("not running", "78: EX_CONFIG", "interactive (4)", WARN, "last exit code 78: EX_CONFIG"),
        ("running", "(never exited)", "daemon (3)", WARN, "ProcessType"),
        ("running", "(never exited)", "background (5)", WARN, "8 times"),
    ],
)
def test_login_agent(mac, commands, job, code, spawn, expected, words):
    said = AGENT.replace("STATE", job).replace("CODE", code).replace("SPAWN", spawn)
    asked = f"gui/{os.getuid()}/{place.AGENT_LABEL}"
    commands(launchctl=f'[ "$1 $2" = "print {asked}" ] && /bin/cat <<END\n{said}\nEND')
    assert state(place.login_agent(mac), words) == expected


def test_no_login_agent(mac, commands):
    assert state(place.login_agent(mac), "launchctl is not on PATH") == WARN
    commands(launchctl='echo "Could not find service" >&2; exit 113')
    assert state(place.login_agent(mac), "no agent installed") == OK


# ---- models


def write_model(home: Path, name: str, precision: str = "q4") -> Path:
    directory = home / "models" / name
    (directory / "codec").mkdir(parents=True)
    files = dict.fromkeys(manifest.PARTS, b"{}") | {"model.safetensors": b"x" * 2000}
    for path, data in files.items():
        (directory / path).write_bytes(data)
    entries = {path: manifest.File(len(data), "0" * 64) for path, data in files.items()}
    manifest.write_manifest(directory, manifest.Manifest(name, precision, {}, "test", entries))
    return directory


def test_the_bundled_voice_is_whole(site):
    assert state(models.whole(site, "nano", models.bundled()), "21 MB in 6 files, all there") == OK


def test_a_model_is_whole_or_says_which_file_is_not(home, site):
    directory = write_model(home, "miso")
    (home / "models" / "nano").mkdir()
    assert models.here(site.paths) == {"nano": models.bundled(), "miso": directory}
    assert state(models.whole(site, "miso", directory), "q4", "in 5 files") == OK
    (directory / "model.safetensors").write_bytes(b"x" * 1999)
    said = f"{directory / 'model.safetensors'} has 1999 bytes, not 2000"
    assert state(models.whole(site, "miso", directory), said, "`misoctl rm miso`, then `misoctl pull miso`") == FAIL
    (directory / "model.safetensors").unlink()
    assert state(models.whole(site, "miso", directory), "model.safetensors is missing") == FAIL


def test_models_that_nobody_may_look_at_are_a_line_and_no_end_of_misod(home, site, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    monkeypatch.setattr(Path, "is_dir", refuse)
    said = f"{home / 'models' / 'miso'}: Permission denied"
    assert state(models.spoken(site), said, "let misod read it") == FAIL
    for name in ("auto", "kitten"):
        with pytest.raises(ModelError, match=r"models.*: Permission denied"):
            find_model(name, home / "models")


def test_a_kitten_put_here_by_hand_is_told_what_it_lacks_and_how_it_is_checked(home, site):
    directory = home / "models" / "kitten"
    for pattern in sources.KITTEN.wanted:
        path = directory / pattern.replace("*", "x")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text('{"type": "KITTEN2"}')
    cure = f"`misoctl pull kitten --from {directory}`"
    assert state(models.whole(site, "kitten", directory), "put here by hand", cure) == WARN
    (directory / "voices" / "x").unlink()
    said = f"{directory} lacks voices/*"
    assert state(models.whole(site, "kitten", directory), said, "`misoctl rm kitten` and pull it") == FAIL


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"files": {"a": {}}}', '{"files": {"a": 1}, "precision": "q4"}'])
def test_a_directory_without_a_valid_manifest_is_no_model(home, site, text):
    directory = write_model(home, "miso")
    (directory / "manifest.json").write_text(text)
    assert state(models.whole(site, "miso", directory), str(directory / "manifest.json")) == FAIL
    (directory / "manifest.json").unlink()
    assert state(models.whole(site, "miso", directory), "manifest.json: missing", "misoctl pull miso") == FAIL
    (directory / "manifest.json").mkdir()
    assert state(models.whole(site, "miso", directory), "manifest.json: Is a directory") == FAIL


def test_which_model_would_speak(home):
    assert state(models.spoken(at(home)), "nano, the best that is here") == OK
    write_model(home, "miso")
    assert state(models.spoken(at(home)), "miso, the best that is here") == OK
    assert state(models.spoken(at(home, MISO_MODEL="nano")), "nano, as set") == OK
    assert state(models.spoken(at(home, MISO_MODEL="mico")), "'mico' is set", "nano, miso", "auto") == FAIL
    assert state(models.spoken(at(home, MISO_MODEL="kitten")), "misoctl pull kitten") == FAIL
    assert state(models.spoken(at(home, MISO_MAX_ROWS="x")), "unknown", "variables") == WARN


def test_an_unfinished_pull_is_noted(home, site):
    assert state(models.unfinished(site)) == OK
    (home / "models" / ".cache").mkdir(parents=True)
    (home / "models" / "odd.partial").mkdir()
    assert state(models.unfinished(site)) == OK
    (home / "models" / "odd.partial").rmdir()
    (home / "models" / ".cache").rmdir()
    (home / "models" / ".miso.partial").mkdir(parents=True)
    assert state(models.unfinished(site), ".miso.partial", "misoctl pull") == WARN
    assert list(models.here(site.paths)) == ["nano"]
    (home / "models" / ".miso.partial").rmdir()
    (home / "models").rmdir()
    (home / "models").write_text("")
    assert state(models.unfinished(site), "models: Not a directory", "set MISO_HOME") == FAIL
    assert list(models.here(site.paths)) == ["nano"]


# ---- the player


@pytest.fixture
def sounddevice(tmp_path, monkeypatch):
    """sounddevice("source of the module"), for the child too; None: it is not installed."""
    monkeypatch.setattr(sound.importlib.util, "find_spec", lambda _: None)

    def put(source: str) -> None:
        (tmp_path / "modules").mkdir(exist_ok=True)
        (tmp_path / "modules" / "sounddevice.py").write_text(source)
        monkeypatch.setattr(sound.importlib.util, "find_spec", lambda _: True)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))

    return put


def test_player_programs(home, site, commands, sounddevice):
    none = "none of ffplay, play, pw-play, paplay, aplay, afplay"
    assert state(sound.player(site), none, "apt install ffmpeg", "-o") == WARN
    assert state(sound.player(at(home, "darwin")), "brew install ffmpeg") == WARN
    commands(aplay="")
    assert state(sound.player(site), "/aplay") == OK
    commands(paplay="")
    assert state(sound.player(site), "/paplay") == OK
    commands(ffplay="")
    assert state(sound.player(site), "/ffplay") == OK


def test_player_sounddevice(site, commands, sounddevice):
    sounddevice("def query_devices(kind): return {'name': f'the {kind}'}")
    assert state(sound.player(site), "sounddevice, to the output") == OK
    sounddevice("raise OSError('PortAudio library not found')")
    assert state(sound.player(site), "PortAudio library not found") == WARN
    commands(aplay="")
    assert state(sound.player(site), "/aplay; not sounddevice: OSError: PortAudio library not found") == OK
    sounddevice("class PortAudioError(Exception): pass\ndef query_devices(kind): raise PortAudioError('device -1')")
    assert state(sound.player(site), "/aplay; not sounddevice: sounddevice.PortAudioError: device -1") == OK


def test_the_programs_are_those_of_misoctl_in_its_order():
    from misoctl.playing.program import COMMANDS
    from protocol.settings import PLAYERS

    assert ["sounddevice", *sound.PROGRAMS] == [COMMANDS.get(name, name) for name in PLAYERS]


# ---- MLX in a child


@pytest.fixture
def fake_mlx(tmp_path, monkeypatch):
    """fake_mlx("source of mlx.core") takes MLX's place in the child."""

    def put(source: str) -> None:
        (tmp_path / "fake" / "mlx").mkdir(parents=True)
        (tmp_path / "fake" / "mlx" / "__init__.py").write_text("")
        (tmp_path / "fake" / "mlx" / "core.py").write_text(source)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path / "fake"), *sys.path]))

    return put


def test_the_probe_measures_this_machine():
    found = probe.run_probe()
    assert found.backend in ("cpu", "metal", "cuda")
    assert 1e8 < found.bandwidth_bytes_per_s < 1e14
    assert (found.memory_bytes > 0) == (found.backend != "cpu")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("import os; os.abort()", "SIGABRT"),
        ("raise ImportError('libmlx.so is not here')", "ImportError: libmlx.so is not here"),
        ("import sys; sys.exit(3)", "exit code 3"),
    ],
)
def test_a_probe_that_dies_is_an_answer(fake_mlx, source, said):
    fake_mlx(source)
    with pytest.raises(probe.ProbeFailed, match=said):
        probe.run_probe()


def test_a_probe_that_hangs_is_an_answer(fake_mlx, monkeypatch):
    fake_mlx("import time; time.sleep(60)")
    monkeypatch.setattr(probe, "PROBE_S", 0.3)
    with pytest.raises(probe.ProbeFailed, match="did not answer"):
        probe.run_probe()


# ---- the verb


def run(home: Path, *arguments: str, program="misoctl", **more) -> subprocess.CompletedProcess:
    environ = {name: value for name, value in os.environ.items() if not name.startswith("MISO_")}
    options = {"env": environ | {"MISO_HOME": str(home)} | more.pop("env", {}), "timeout": 60, "check": False}
    options |= {"capture_output": True, "text": True} | more
    done = subprocess.run([sys.executable, "-m", program, "doctor", *arguments], **options)  # noqa: PLW1510
    assert "Traceback" not in (done.stderr or "")
    return done


def test_it_looks_and_changes_nothing(home):
    done = run(home)
    *lines, summary = done.stdout.splitlines()
    findings = [line for line in lines if not line.startswith(" ")]
    assert done.stderr == ""
    assert done.returncode == (errors.FAILED if any(line.startswith("fail") for line in findings) else errors.OK)
    assert {line.split()[0] for line in findings} <= {OK, WARN, FAIL}
    assert summary.startswith(f"{len(findings)} checks: ")
    assert "\x1b" not in done.stdout
    assert not home.exists()


def test_json_is_a_list_of_findings_and_a_failure_is_exit_1(home):
    (home / "run").mkdir(parents=True)
    (home / "run").chmod(0o755)
    done = run(home, "--json", env={"MISO_MODL": "nano"})
    found = json.loads(done.stdout)
    assert all(set(each) == {"name", "state", "detail", "cure"} for each in found)
    states = {each["name"]: each["state"] for each in found}
    assert len(states) == len(found)
    assert (states["run directory"], states["variables"], states["config"]) == (FAIL, WARN, OK)
    assert {f"8B as {precision}" for precision in budget.PRECISIONS} < states.keys()
    assert done.returncode == errors.FAILED
    assert list(home.rglob("*")) == [home / "run"]


def test_an_mlx_that_aborts_is_a_line_and_not_the_end(home, fake_mlx):
    fake_mlx("import os; os.abort()")
    done = run(home, "--json")
    found = {each["name"]: each for each in json.loads(done.stdout)}
    assert (found["mlx"]["state"], found["bandwidth"]["state"], found["8B as q4"]["state"]) == (FAIL, WARN, WARN)
    assert "SIGABRT" in found["mlx"]["detail"]
    assert (list(found)[-1], done.returncode) == ("player", errors.FAILED)


def test_nothing_to_mend_is_exit_0(site, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "examine", lambda: iter([finding.ok("a", "b"), finding.warn("c", "d", "e")]))
    assert doctor.report(as_json=False) == errors.OK
    assert capsys.readouterr().out.splitlines()[-1] == "2 checks: 1 ok, 1 warn, 0 fail"


def test_the_checks_of_a_mac_are_not_asked_elsewhere(site, mac):
    here, there = doctor.checks(site), doctor.checks(mac)
    assert machine.wired_limit not in here and place.login_agent not in here
    assert machine.wired_limit in there and place.login_agent in there
    assert len(there) == len(here) + 2


def test_a_home_of_nobody_is_one_line(home):
    done = run(home, env={"MISO_HOME": "~nobody-of-that-name"})
    assert done.returncode == errors.FAILED
    assert [line[:4] for line in done.stdout.splitlines()] == ["fail", "    ", "1 ch"]
    assert "MISO_HOME='~nobody-of-that-name'" in done.stdout and "a directory you own" in done.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux has /dev/full")
def test_a_full_disk_under_standard_output_is_one_line(home):
    with open("/dev/full", "wb") as full:
        done = run(home, "--json", capture_output=False, stdout=full, stderr=subprocess.PIPE)
    assert (done.returncode, done.stderr) == (
        errors.IO_ERROR,
        "misoctl: standard output: No space left on device\n",
    )


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_crash(home, closed):
    command = f"{sys.executable} -m misoctl doctor {closed}"
    environ = os.environ | {"MISO_HOME": str(home), "MISO_MAX_ROWS": "many"}
    done = subprocess.run(["sh", "-c", command], env=environ, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (errors.FAILED, b"")


def test_a_reader_that_goes_away_ends_it_without_a_word(home):
    command = [sys.executable, "-m", "misoctl", "doctor"]
    environ = os.environ | {"MISO_HOME": str(home)}
    child = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    child.stdout.close()
    assert child.stderr.read() == b""
    assert child.wait(timeout=60) == -signal.SIGPIPE


def test_ctrl_c_ends_it_without_a_word(home):
    command = [sys.executable, "-m", "misoctl", "doctor"]
    environ = os.environ | {"MISO_HOME": str(home)}
    child = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline()
    child.send_signal(signal.SIGINT)
    assert child.communicate(timeout=60)[1] == b""
    assert child.returncode == -signal.SIGINT  # which a shell shows as 130


def test_a_name_that_is_not_utf8_is_shown_all_the_same(home):
    os.makedirs(os.fsencode(home / "models") + b"/\xff")
    assert "model ?" in run(home).stdout


def on_a_terminal(home: Path, columns: int, **environ: str) -> str:
    ours, theirs = pty.openpty()
    environ = {"TERM": "xterm", "COLUMNS": str(columns), **environ}
    child = subprocess.Popen(
        [sys.executable, "-m", "misod", "doctor"],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={k: v for k, v in os.environ.items() if k != "NO_COLOR"} | {"MISO_HOME": str(home)} | environ,
    )
    os.close(theirs)
    said = b""
    while True:
        try:
            data = os.read(ours, 4096)
        except OSError:  # Linux: the other end is closed
            break
        if not data:
            break
        said += data
    os.close(ours)
    child.wait(timeout=60)
    return said.decode()


def test_a_terminal_gets_colours_and_lines_that_fit(home):
    said = on_a_terminal(home, 80)
    assert "\x1b[32mok" in said
    plain = said.replace("\x1b[32m", "").replace("\x1b[33m", "").replace("\x1b[31m", "").replace("\x1b[0m", "")
    long = [line for line in plain.splitlines() if len(line) > 80]
    assert all(str(home.parents[1]) in line for line in long)  # a path is not cut
    assert "\x1b" not in on_a_terminal(home, 80, NO_COLOR="1")
