"""Where miso keeps things, and the rules a private directory must pass. The same on both sides."""

import fcntl
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from protocol import errors
from protocol.errors import UnsafePath

SUN_PATH_BYTES = 103 if sys.platform == "darwin" else 107  # sockaddr_un, less the final zero
SOCKET_NAME = "misod.sock"
AGENT_LABEL = "miso.misod"  # what launchd calls the login agent


@dataclass(frozen=True)
class Paths:
    home: Path
    run: Path
    logs: Path

    @property
    def socket(self) -> Path:
        return self.run / SOCKET_NAME

    @property
    def lock(self) -> Path:
        return self.run / "misod.lock"

    @property
    def config(self) -> Path:
        return self.home / "config.toml"

    @property
    def models(self) -> Path:
        return self.home / "models"

    @property
    def voices(self) -> Path:
        return self.home / "voices"

    @property
    def prefixes(self) -> Path:
        """What models have made of voices: may be deleted at any time."""
        return self.home / "prefixes"

    @property
    def http_token(self) -> Path:
        """What a request over HTTP must carry."""
        return self.home / "http-token"

    @property
    def downloads(self) -> Path:
        """What `pull` has fetched and not yet converted."""
        return self.home / "downloads"

    @property
    def log(self) -> Path:
        return self.logs / "misod.log"

    @property
    def stderr(self) -> Path:
        """Where a daemon that misoctl started writes what libzmq, faulthandler or Python say when they die."""
        return self.logs / "misod.stderr"


def find_paths(environ=os.environ) -> Paths:
    """MISO_HOME overrides everything; else the platform's own places for data and logs. Raises UnsafePath."""
    if environ.get("MISO_HOME"):
        home = _named_home(environ["MISO_HOME"])
        logs = home / "logs"
    else:
        import platformdirs  # 4 ms, not needed where MISO_HOME is set

        try:
            home = platformdirs.user_data_path("miso")
            logs = platformdirs.user_log_path("miso")
        except RuntimeError:  # no HOME, and no entry in the user database
            raise UnsafePath("this user has no home directory") from None
    return Paths(home=home, run=_run_dir(home), logs=logs)


def _named_home(name: str) -> Path:
    try:
        name.encode()  # an ipc:// address and `status` are UTF-8
        return Path(name).expanduser().absolute()
    except (UnicodeEncodeError, RuntimeError):  # ~nobody-of-that-name
        raise UnsafePath(f"MISO_HOME={name!r} names no directory", "set it to a directory you own") from None


def _run_dir(home: Path) -> Path:
    """`home`/run, or a short private directory where a socket in it would not fit into sockaddr_un."""
    run = home / "run"
    if len(os.fsencode(run / SOCKET_NAME)) <= SUN_PATH_BYTES:
        return run
    import hashlib  # 3 ms

    name = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    return Path("/tmp") / f"miso-{os.getuid()}-{name}"


def lock_holder(lock: Path) -> int | None:
    """The pid of the process that holds `lock`, 0 where the file does not name it yet; None where nobody does.

    Needs no word from it, so no common version. Tried with a shared lock for an instant: misod's start allows for that.
    """
    try:
        with lock.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        digits = lock.read_bytes().strip()
        return int(digits) if digits.isdigit() else 0
    except OSError:  # none there, or not ours to read
        return None
    return None


def make_directories(directory: Path) -> None:
    """Make `directory`, and what is missing above it, with mode 0700 under any umask.

    Raises UnsafePath, or OSError where the disk is full.
    """
    try:
        for each in (*reversed(directory.parents), directory):  # mkdir(parents=True) would leave parents at 0777
            if not each.exists():
                each.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        if error.errno in errors.DISK_FULL:
            raise
        raise UnsafePath(f"cannot make {directory}: {error.strerror}") from None


def make_private(directory: Path) -> None:
    """make_directories, then check_private."""
    if not os.path.lexists(directory):
        make_directories(directory)
    check_private(directory)


def check_private(directory: Path) -> None:
    """Raise UnsafePath unless `directory` is a real directory of ours that nobody else can enter."""
    try:
        info = os.lstat(directory)
    except OSError as error:
        raise UnsafePath(f"{directory}: {error.strerror}") from None
    if stat.S_ISLNK(info.st_mode) or not stat.S_ISDIR(info.st_mode):
        raise UnsafePath(f"{directory} must be a directory and not a link", "remove it, miso makes its own")
    if info.st_uid != os.getuid():
        raise UnsafePath(f"{directory} belongs to user {info.st_uid}, not to you")
    if info.st_mode & 0o077:
        raise UnsafePath(f"{directory} can be entered by others", f"run `chmod 700 {directory}`")
