"""The token over HTTP: made once, private, or one's own; and a listener that is on the loopback or not at all."""

import os
import socket
import stat

import pytest

from misoctl.http import listen, token
from protocol import errors
from protocol.errors import Failure
from protocol.paths import find_paths

OWN = "mine-0123456789abcdef"


@pytest.fixture
def paths(tmp_path):
    return find_paths({"MISO_HOME": str(tmp_path / "home")})


def test_it_is_made_once_and_nobody_else_reads_it(paths):
    before = os.umask(0)
    try:
        first, origin = token.find(paths, None, {})
    finally:
        os.umask(before)
    assert token.find(paths, None, {}) == (first, origin) and len(first) >= 43
    assert stat.S_IMODE(paths.http_token.stat().st_mode) == 0o600
    assert os.listdir(paths.home) == [paths.http_token.name] and origin == str(paths.http_token)


def test_two_homes_have_two(tmp_path):
    homes = [find_paths({"MISO_HOME": str(tmp_path / name)}) for name in "ab"]
    assert len({token.find(home, None, {})[0] for home in homes}) == 2


def test_a_variable_or_a_file_goes_before_it(paths, tmp_path):
    (tmp_path / "mine").write_text(f"{OWN}-file\n")
    (tmp_path / "mine").chmod(0o400)
    environ = {"MISO_HTTP_TOKEN": OWN}
    assert token.find(paths, None, environ) == (OWN, "MISO_HTTP_TOKEN")
    assert token.find(paths, str(tmp_path / "mine"), environ)[0] == f"{OWN}-file"
    assert not paths.home.exists()


@pytest.mark.parametrize("bad", ["short", "a" * 15, "with a space 0123456789", "ümlaut-0123456789abcdef", " " * 40])
def test_a_token_that_is_none_is_not_shown(paths, bad):
    with pytest.raises(Failure) as refused:
        token.find(paths, None, {"MISO_HTTP_TOKEN": bad})
    assert refused.value.exit_code == errors.BAD_CONFIG and bad not in str(refused.value)


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_file_that_others_can_read_is_refused(paths, mode):
    token.find(paths, None, {})
    paths.http_token.chmod(mode)
    with pytest.raises(Failure) as refused:
        token.find(paths, None, {})
    assert refused.value.exit_code == errors.NO_PERMISSION and "chmod 600" in str(refused.value)


def test_what_is_no_file_is_refused_and_not_waited_for(paths, tmp_path):
    os.mkfifo(tmp_path / "pipe", 0o600)
    for name in ("pipe", "nowhere", "."):
        with pytest.raises(Failure) as refused:
            token.find(paths, str(tmp_path / name), {})
        assert refused.value.exit_code == errors.NO_INPUT


def test_both_loopbacks_have_one_port():
    sockets = listen.bind(("127.0.0.1", "::1"), 0)
    try:
        names = [each.getsockname() for each in sockets]
        assert names[0][0] == "127.0.0.1" and len({name[1] for name in names}) == 1
    finally:
        for each in sockets:
            each.close()


@pytest.mark.skipif(not socket.has_ipv6, reason="no IPv6 here")
@pytest.mark.parametrize("taken", ["127.0.0.1", "::1"])
def test_a_port_that_another_has_on_either_is_refused(taken):
    """One that holds ::1 alone would be sent the token of who asks for localhost."""
    with socket.socket(socket.AF_INET6 if ":" in taken else socket.AF_INET) as other:
        try:
            other.bind((taken, 0))
        except OSError:
            pytest.skip("no IPv6 loopback here")
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(Failure) as refused:
            listen.bind(("127.0.0.1", "::1"), port)
    assert refused.value.exit_code == errors.OS_LIMIT and f"{taken}, port {port}" in refused.value.message
