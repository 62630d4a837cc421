"""The home and the daemon in it: permissions, socket, lock, settings, the login agent."""

import errno
import os
import re
import shutil
import socket as sockets
import stat
import time
from pathlib import Path

import psutil

from misod.config import ConfigError, load_settings, meant, unknown_variables
from misod.doctor.finding import Finding, Site, fail, ok, run, warn
from protocol.errors import MOVE_HOME, UnsafePath
from protocol.paths import AGENT_LABEL, SUN_PATH_BYTES, check_private, lock_holder


def home(site: Site) -> Finding:
    return _directory("home", site.paths.home)


def logs(site: Site) -> Finding:
    return _directory("logs", site.paths.logs)


def _directory(name: str, path: Path) -> Finding:
    """Ours to write, and nobody else's; or can be made."""
    try:
        info = path.stat()
    except FileNotFoundError:
        if path.is_symlink():
            return fail(name, f"{path} is a link to nothing", f"remove it, or {MOVE_HOME}")
        parent = next(filter(os.path.exists, path.parents))
        if not os.access(parent, os.W_OK | os.X_OK):
            return fail(name, f"{path} cannot be made: {parent} is not yours to write", MOVE_HOME)
        return ok(name, f"{path}, made at the first start")
    except OSError as error:
        return fail(name, f"{path}: {error.strerror}", MOVE_HOME)
    if not stat.S_ISDIR(info.st_mode):
        return fail(name, f"{path} is not a directory", f"move it away, or {MOVE_HOME}")
    if not os.access(path, os.R_OK | os.W_OK | os.X_OK):
        return fail(name, f"{path} is not yours to read and write", f"`chmod u+rwx` it, or {MOVE_HOME}")
    if info.st_mode & 0o022:
        return warn(name, f"{path} can be written by others", f"`chmod go-w {path}`")
    return ok(name, f"{path}")


def run_directory(site: Site) -> Finding:
    """Only one's own user may enter: the rule that misod and misoctl keep."""
    path = site.paths.run
    if not os.path.lexists(path):
        return ok("run directory", f"{path}, made at the first start")
    try:
        check_private(path)
    except UnsafePath as error:
        return fail("run directory", error.message, error.next_step)
    return ok("run directory", f"{path}, yours alone")


def socket(site: Site) -> Finding:
    path = site.paths.socket
    detail = f"{path}, {len(os.fsencode(path))} of {SUN_PATH_BYTES} bytes"
    if path.parent.parent != site.paths.home:
        detail += "; the home's path is too long for a socket"
    try:
        info = os.lstat(path)
    except OSError:
        return ok("socket", f"{detail}; none now")
    if not stat.S_ISSOCK(info.st_mode) or info.st_uid != os.getuid():
        return fail("socket", f"{path} is not a socket of yours", "move it away")
    return ok("socket", detail)


def daemon(site: Site) -> Finding:
    """From the lock, its pid and a plain connection: no message, so no common version is needed."""
    paths, pid, listening = site.paths, lock_holder(site.paths.lock), _listens(site.paths.socket)
    if pid is None and listening:
        return fail("daemon", f"something that is not misod listens on {paths.socket}", "stop it, or set MISO_HOME")
    if pid is None:
        return ok("daemon", "not running; misoctl starts it when it is needed")
    who = _describe(pid)
    if not listening:
        cure = f"wait a moment; else `misoctl stop`, and see {paths.log}"
        return warn("daemon", f"{who} holds the lock, but nothing listens: it starts, stops or is stuck", cure)
    return ok("daemon", f"running, {who}")


def _listens(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX) as plain:
        plain.setblocking(False)
        return plain.connect_ex(os.fsencode(path)) in (0, errno.EAGAIN)  # EAGAIN: its backlog is full


def _describe(pid: int) -> str:
    try:
        process = psutil.Process(pid or -1)  # no process has that one
        up_s, resident_bytes = time.time() - process.create_time(), process.memory_info().rss
    except (ValueError, psutil.Error):
        return "a misod of unknown pid"
    return f"pid {pid}, up {up_s:.0f} s, {resident_bytes / 1e6:.0f} MB resident"


def config(site: Site) -> Finding:
    path = site.paths.config
    try:
        load_settings(path, {}, {})
    except ConfigError as error:
        return fail("config", str(error), "mend it with `misoctl config edit`")
    return ok("config", f"{path}" if os.path.exists(path) else f"defaults; {path} is not there")


def variables(site: Site) -> Finding:
    """A misspelt setting would be ignored without a word."""
    try:
        load_settings(Path(os.devnull), {}, site.environ)
    except ConfigError as error:
        return fail("variables", str(error), "correct it or unset it; `misoctl config` lists the settings")
    if unknown := list(unknown_variables(site.environ)):
        return warn("variables", f"{', '.join(unknown)} means nothing to miso", meant(unknown[0]))
    here = sorted(name for name in site.environ if name.startswith("MISO_"))
    return ok("variables", ", ".join(here) or "no MISO_* variable is set")


def login_agent(_site: Site) -> Finding:
    """launchd's own word; only on macOS."""
    if not shutil.which("launchctl"):
        return warn("login agent", "launchctl is not on PATH", "add /bin to PATH")
    said = run("launchctl", "print", f"gui/{os.getuid()}/{AGENT_LABEL}")
    if said is None:
        return ok("login agent", "no agent installed; misoctl starts misod when it is needed")
    state, spawned, ended = (_field(said, name) for name in ("state", "spawn type", "last exit code"))
    detail = f"{state or 'of unknown state'}, last exit code {ended or 'unknown'}"
    if spawned and not spawned.startswith("interactive"):
        cure = "set ProcessType to Interactive in its plist, log out and in"
        return warn("login agent", f"{detail}; launchd slows a {spawned} job down, Metal up to 8 times", cure)
    if state != "running" and ended and ended[0].isdigit() and not re.match(r"0\b", ended):
        return warn("login agent", f"installed, {detail}", "`misod serve` in a terminal says why")
    return ok("login agent", f"installed, {detail}")


def _field(said: str, name: str) -> str | None:
    """The first `name = value` of launchctl print: the job's own lines come before those of its parts."""
    found = re.search(rf"^\s*{name} = (.+?)\s*$", said, re.MULTILINE)
    return found[1] if found else None
