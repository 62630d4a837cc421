"""One table: error code -> exit code of misoctl -> what to do next."""

import errno
from collections.abc import Iterable
from dataclasses import dataclass

OK = 0
FAILED = 1
USAGE = 2
BAD_DATA = 65
NO_INPUT = 66
NO_TOKEN = 67
NO_HOST = 68
UNAVAILABLE = 69
SOFTWARE = 70
OS_LIMIT = 71
NO_PROGRAM = 72
CANT_CREATE = 73
IO_ERROR = 74
TRY_AGAIN = 75
VERSION_SKEW = 76
NO_PERMISSION = 77
BAD_CONFIG = 78
SIGNALLED = 128  # and the signal's number, as a shell counts
HUNG_UP = 129
INTERRUPTED = 130
BROKEN_PIPE = 141
TERMINATED = 143

MOVE_HOME = "set MISO_HOME to a directory you own"
DISK_FULL = (errno.ENOSPC, errno.EDQUOT)

EXIT_CODES = {
    OK: "spoken to the end, or done as asked",
    FAILED: "the speech ended early (its end reason is in the line), or `doctor` found something to mend",
    USAGE: "the command line is wrong",
    BAD_DATA: "the text cannot be spoken (not UTF-8, too long, no letters the voice reads), a recording cannot be "
    "used, or a model's or voice's file is damaged",
    NO_INPUT: "the input file cannot be read, or there is no such model, voice, session, repository or file",
    NO_TOKEN: "the model hub wants a Hugging Face token, or does not accept the one there is",
    NO_HOST: "the model hub cannot be reached (offline)",
    UNAVAILABLE: "no daemon runs, or it went away; or this version has no engine for the model",
    SOFTWARE: "the daemon or its model failed; its log says more",
    OS_LIMIT: "the system refused something misod needs (open files, memory, a service at login)",
    NO_PROGRAM: "no audio player was found, or another program that the verb needs",
    CANT_CREATE: "the output file cannot be made, or a voice of that name is there already",
    IO_ERROR: "writing failed (disk full, or too little room for a model; device gone)",
    TRY_AGAIN: "busy, shutting down, already running or pulling, or the model hub is slow or failing: try again later",
    VERSION_SKEW: "misoctl and misod speak different protocol versions",
    NO_PERMISSION: "a directory or socket is not safely ours, or a gated repository gives your account no access",
    BAD_CONFIG: "a setting is wrong",
    HUNG_UP: "stopped because its terminal went away",
    INTERRUPTED: "stopped by Ctrl-C",
    BROKEN_PIPE: "the reader of our standard output went away",
    TERMINATED: "stopped by SIGTERM",
}


@dataclass(frozen=True)
class Entry:
    exit_code: int
    next_step: str = ""


ERRORS = {
    "bad_message": Entry(SOFTWARE, "misoctl and misod may be of different versions: `misoctl stop`, then try again"),
    "unknown_type": Entry(SOFTWARE, "misoctl and misod may be of different versions: `misoctl stop`, then try again"),
    "bad_value": Entry(USAGE, "`misoctl say --help` shows the ranges"),
    "version": Entry(VERSION_SKEW, "restart the daemon: `misoctl stop`, then `misoctl start`"),
    "unspeakable": Entry(BAD_DATA, "give it words in letters the voice reads"),
    "too_long": Entry(BAD_DATA, "split the text"),
    "duplicate": Entry(SOFTWARE, "use a new id for each request"),
    "busy": Entry(TRY_AGAIN, "try again when fewer requests wait"),
    "draining": Entry(TRY_AGAIN, "the daemon is stopping: try again in a moment"),
    "slow": Entry(IO_ERROR, "the reader of the speech did not take it for 10 s"),
    "no_model": Entry(NO_INPUT, "`misoctl list` shows the models that are here"),
    "model": Entry(SOFTWARE, "`misoctl status` says which file; mend or remove it"),
    "no_room": Entry(OS_LIMIT, "close other programs, or raise the setting memory_gb"),
    "no_extra": Entry(UNAVAILABLE, "run it in the environment that miso is installed in, then say it again"),
    "no_voice": Entry(NO_INPUT, "`misoctl voices` shows those that are here"),
    "voice_exists": Entry(CANT_CREATE, "choose another name, or --replace it"),
    "bad_voice": Entry(BAD_DATA, "learn it again, from 1 to 30 s and with the model that is to speak it"),
    "no_session": Entry(NO_INPUT, "`misoctl sessions` shows those there are"),
    "storage": Entry(IO_ERROR, "free some space there, or let misod read and write there"),
    "degenerate": Entry(SOFTWARE, "try another --seed, or --preset stable"),
    "engine": Entry(SOFTWARE, "try another --seed; the daemon's log says more"),
    "lost": Entry(UNAVAILABLE, "try again: the next request starts a new daemon"),
}


class ProtocolError(Exception):
    """A message outside the wire spec. `id` is the request it named, where that could be read."""

    def __init__(self, code: str, message: str, request: int | None = None):
        super().__init__(message)
        self.code, self.message, self.id = code, message, request


class Failure(Exception):
    """What was asked for cannot be done. `message` is one line: what, where; `next_step`: what to do.

    `code`: of the wire, where it came from there.
    """

    def __init__(self, exit_code: int, message: str, next_step: str = "", code: str = ""):
        super().__init__(message)
        self.exit_code, self.message, self.next_step, self.code = exit_code, message, next_step, code

    @classmethod
    def of_code(cls, code: str, message: str) -> "Failure":
        """From an error on the wire; a code newer than this client is a failure of the daemon."""
        entry = ERRORS.get(code, Entry(SOFTWARE))
        return cls(entry.exit_code, message, entry.next_step, code)

    def __str__(self) -> str:
        return f"{self.message}; {self.next_step}" if self.next_step else self.message


class UnsafePath(Failure):
    """A directory, lock or socket that is not safely ours, or cannot be used. One line, names the path."""

    def __init__(self, message: str, next_step: str = MOVE_HOME):
        super().__init__(NO_PERMISSION, message, next_step)


def near(name: str, known: Iterable[str]) -> str:
    """Of a name that none has: "did you mean nano?", or what there is."""
    known = list(known)
    return did_you_mean(name, known) or f"there is {', '.join(known)}"


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """As a question, the nearest of them; "" where none is alike. `cutoff`: how much it must be, 0 to 1."""
    import difflib  # 5 ms

    close = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {close[0]}?" if close else ""


def of_file(error: OSError, place: object) -> Failure:
    """A file under miso's home could not be made; `place` where the error names none."""
    line = f"{error.filename or place}: {error.strerror}"
    if error.errno in DISK_FULL:
        return Failure(IO_ERROR, line, "free some space")
    return Failure(CANT_CREATE, line, MOVE_HOME)
