"""Where things are, and which directories are private enough: the same rules on both sides of the socket."""

import errno
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from protocol import errors
from protocol import paths as p
from protocol.errors import UnsafePath


@pytest.fixture(params=[0o000, 0o022, 0o077], ids=["umask000", "umask022", "umask077"])
def any_umask(request):
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_a_user_without_a_home_directory_is_told_to_name_one(monkeypatch):
    def unknown(_uid):
        raise KeyError("no such user")

    for name in ("HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "MISO_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("pwd.getpwuid", unknown)
    with pytest.raises(UnsafePath, match="set MISO_HOME"):
        p.find_paths()


def test_a_full_disk_is_not_taken_for_a_wrong_directory(tmp_path, monkeypatch):
    def full(*_args, **_more):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "mkdir", full)
    with pytest.raises(OSError, match="No space left") as caught:
        p.make_private(tmp_path / "a" / "run")
    failure = errors.of_file(caught.value, tmp_path)
    assert failure.exit_code == errors.IO_ERROR and "free some space" in str(failure)
    refused = OSError(errno.EACCES, "Permission denied", "/x")
    assert errors.of_file(refused, tmp_path).exit_code == errors.CANT_CREATE


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_private_directory_and_all_made_above_it_are_0700_under_any_umask(tmp_path, any_umask):
    p.make_private(tmp_path / "a" / "b" / "run")
    assert [mode(d) for d in (tmp_path / "a", tmp_path / "a" / "b", tmp_path / "a" / "b" / "run")] == [0o700] * 3


def test_a_directory_that_is_there_is_checked_and_not_changed(tmp_path, any_umask):
    (tmp_path / "run").mkdir()
    (tmp_path / "run").chmod(0o755)
    with pytest.raises(UnsafePath, match="chmod 700"):
        p.make_private(tmp_path / "run")
    assert mode(tmp_path / "run") == 0o755


@pytest.mark.parametrize("bits", [0o701, 0o710, 0o704, 0o740, 0o702, 0o720, 0o777])
def test_any_bit_for_others_is_refused(tmp_path, bits):
    tmp_path.chmod(bits)
    with pytest.raises(UnsafePath):
        p.check_private(tmp_path)
    tmp_path.chmod(0o700)
    p.check_private(tmp_path)


def test_a_link_is_refused_even_to_a_private_directory(tmp_path):
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "run").symlink_to(tmp_path / "real")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    for name in ("run", "dangling"):
        with pytest.raises(UnsafePath, match="not a link"):
            p.make_private(tmp_path / name)
    assert not (tmp_path / "none").exists()


def test_a_file_in_its_place_or_above_it_is_refused_and_kept(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(UnsafePath, match="must be a directory"):
        p.make_private(tmp_path / "run")
    with pytest.raises(UnsafePath):
        p.make_private(tmp_path / "run" / "below")
    assert (tmp_path / "run").read_text() == "mine"


def test_a_directory_of_another_user_is_refused(tmp_path, monkeypatch):
    tmp_path.chmod(0o700)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(UnsafePath, match="belongs to user"):
        p.check_private(tmp_path)


def test_a_missing_directory_is_named():
    with pytest.raises(UnsafePath, match="/nowhere/at/all"):
        p.check_private(Path("/nowhere/at/all"))


def test_miso_home_moves_everything(tmp_path):
    paths = p.find_paths({"MISO_HOME": str(tmp_path)})
    assert paths.home == tmp_path
    assert paths.socket == tmp_path / "run" / "misod.sock"
    for path in (paths.lock, paths.config, paths.log, paths.stderr):
        assert path.is_relative_to(tmp_path)


def test_miso_home_may_be_relative_or_start_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert p.find_paths({"MISO_HOME": "here"}).home == tmp_path / "here"
    assert p.find_paths({"MISO_HOME": "~/there"}).home == tmp_path / "there"


@pytest.mark.parametrize("name", ["~nobody-of-that-name/x", "/tmp/\udcff"])
def test_a_miso_home_that_names_no_directory_is_one_line(name):
    with pytest.raises(UnsafePath, match="MISO_HOME") as caught:
        p.find_paths({"MISO_HOME": name})
    str(caught.value).encode()


@pytest.mark.skipif(sys.platform == "darwin", reason="macOS has no XDG directories")
def test_without_miso_home_linux_has_the_xdg_directories(tmp_path):
    code = "from protocol.paths import find_paths as f; p = f(); print(p.home, p.logs, sep='\\n')"
    environ = {"HOME": str(tmp_path), "MISO_HOME": ""}

    def found(**more):
        run = subprocess.run(
            [sys.executable, "-c", code], env=environ | more, capture_output=True, text=True, check=True
        )
        return run.stdout.split()

    assert found() == [f"{tmp_path}/.local/share/miso", f"{tmp_path}/.local/state/miso/log"]
    assert found(XDG_DATA_HOME="/d", XDG_STATE_HOME="/s") == ["/d/miso", "/s/miso/log"]


def home_with_socket_of(length: int) -> Path:
    return Path("/" + "h" * (length - len("//run/misod.sock")))


def test_a_socket_path_is_kept_up_to_what_sockaddr_un_holds_and_short_beyond():
    """zeromq/pyzmq#203: beyond it, a bare error."""
    fits = p.find_paths({"MISO_HOME": str(home_with_socket_of(p.SUN_PATH_BYTES))})
    assert len(os.fsencode(fits.socket)) == p.SUN_PATH_BYTES
    assert fits.run == fits.home / "run"
    over = p.find_paths({"MISO_HOME": str(home_with_socket_of(p.SUN_PATH_BYTES + 1))})
    assert over.run.parent == Path("/tmp")
    assert len(os.fsencode(over.socket)) <= p.SUN_PATH_BYTES
    assert over.logs == over.home / "logs"


def test_a_socket_path_is_measured_in_bytes():
    home = "/" + "ü" * 60
    assert p.find_paths({"MISO_HOME": home}).run.parent == Path("/tmp")


def test_the_system_takes_the_longest_path_we_allow(tmp_path):
    name = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as plain:
        padding = p.SUN_PATH_BYTES - len(os.fsencode(name)) - 1
        directory = tmp_path / ("d" * (padding - 0))
        directory.mkdir()
        path = directory / "s"
        assert len(os.fsencode(path)) == p.SUN_PATH_BYTES
        plain.bind(str(path))


def test_the_short_place_is_the_same_in_every_process_and_another_for_another_home():
    code = "from protocol.paths import find_paths; print(find_paths().socket)"
    homes = [str(home_with_socket_of(200)), str(home_with_socket_of(201))]
    seen = [
        subprocess.run(
            [sys.executable, "-c", code], env={"MISO_HOME": h}, capture_output=True, text=True, check=True
        ).stdout
        for h in (homes[0], homes[0], homes[1])
    ]
    assert seen[0] == seen[1] != seen[2]
    assert f"miso-{os.getuid()}-" in seen[0]
