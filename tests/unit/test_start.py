"""What misoctl says where the daemon it needs cannot be had."""

import fcntl
import signal
import socket

import pytest

from misoctl import client, start
from protocol import errors
from protocol.errors import Failure
from protocol.paths import Paths, make_private


@pytest.fixture
def paths(tmp_path) -> Paths:
    paths = Paths(home=tmp_path, run=tmp_path / "run", logs=tmp_path / "logs")
    make_private(paths.run)
    paths.logs.mkdir()
    return paths


def test_one_that_holds_the_lock_and_does_not_listen_is_named(paths, monkeypatch):
    monkeypatch.setattr(start, "START_S", 0.3)
    with paths.lock.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        lock.write("4242\n")
        lock.flush()
        with pytest.raises(Failure, match="pid 4242") as caught:
            start.connect(paths, True, lambda _line: None)
    assert caught.value.exit_code == errors.TRY_AGAIN and "misoctl stop" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "said", "wanted", "line"),
    [
        (errors.BAD_CONFIG, "misod: max_rows in x: many", errors.BAD_CONFIG, "max_rows in x: many"),
        (1, "Traceback ...\nMemoryError", errors.SOFTWARE, "MemoryError"),
        (-signal.SIGKILL, "", errors.SOFTWARE, "signal 9"),
        (errors.OS_LIMIT, "", errors.OS_LIMIT, "exited with 71"),
    ],
)
def test_one_that_dies_at_once_is_quoted(paths, code, said, wanted, line):
    paths.stderr.write_text("of an earlier one\n" + said)
    failure = start._died(paths, code, len("of an earlier one\n"))
    assert failure.exit_code == wanted and line in str(failure) and "earlier" not in str(failure)
    assert (str(paths.stderr) in str(failure)) == (wanted == errors.SOFTWARE)


def test_the_file_of_last_words_does_not_grow_for_ever(paths, monkeypatch):
    monkeypatch.setattr(start, "MAX_STDERR_BYTES", 10)
    for size, left in ((10, True), (11, False)):
        paths.stderr.write_bytes(b"x" * size)
        start._rotate(paths.stderr)
        assert paths.stderr.exists() == left
    assert paths.stderr.with_suffix(".stderr.1").stat().st_size == 11


def test_one_that_listens_and_never_answers_is_given_up(paths, monkeypatch):
    """zeromq/pyzmq#102, #153: the client waits for ever. A daemon that is stopped looks like this."""
    monkeypatch.setattr(client, "ANSWER_S", 0.3)
    with socket.socket(socket.AF_UNIX) as dumb:
        dumb.bind(str(paths.socket))
        dumb.listen()
        with pytest.raises(Failure, match="did not answer") as caught:
            start.connect(paths, True, lambda _line: None)
    assert caught.value.exit_code == errors.UNAVAILABLE and caught.value.next_step
