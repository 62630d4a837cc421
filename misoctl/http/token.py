"""The token that a request must carry: from MISO_HTTP_TOKEN, a file, or one that is made once under the home."""

import os
import secrets
import stat
import tempfile
from pathlib import Path

from protocol import errors
from protocol.errors import Failure, UnsafePath
from protocol.paths import Paths, make_directories

VARIABLE = "MISO_HTTP_TOKEN"
FEWEST = 16  # characters
MAX_BYTES = 4096


def find(paths: Paths, file: str | None, environ=os.environ) -> tuple[str, str]:
    """The token, and where it is from. Raises Failure."""
    if file is None and environ.get(VARIABLE):
        return _checked(environ[VARIABLE], VARIABLE), VARIABLE
    path = Path(file) if file else paths.http_token
    if not file and not os.path.lexists(path):
        _make(path)
    return _checked(_read(path), str(path)), str(path)


def _make(path: Path) -> None:
    """Of two that start at once, one makes it and both read it."""
    try:
        make_directories(path.parent)
        handle, partial = tempfile.mkstemp(prefix=".http-token-", dir=path.parent)  # 0600
        with os.fdopen(handle, "w") as file:
            file.write(secrets.token_urlsafe(32) + "\n")
        try:
            os.link(partial, path)  # whole, or not at all
        except FileExistsError:
            pass  # the other's, which is as good
        finally:
            os.unlink(partial)
    except OSError as error:
        raise errors.of_file(error, path) from None


def _read(path: Path) -> str:
    try:
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:  # a pipe must not block
            info = os.fstat(file.fileno())
            data = file.read(MAX_BYTES) if stat.S_ISREG(info.st_mode) else b""
    except OSError as error:
        raise Failure(errors.NO_INPUT, f"cannot read {path}: {error.strerror}") from None
    if not stat.S_ISREG(info.st_mode):
        raise Failure(errors.NO_INPUT, f"cannot read {path}: it is no file")
    if info.st_mode & 0o077:
        raise UnsafePath(f"{path} can be read by others", f"run `chmod 600 {path}`")
    return data.decode("utf-8", "replace").strip()


def _checked(token: str, origin: str) -> str:
    if len(token) < FEWEST or not all("!" <= c <= "~" for c in token):
        cure = "python3 -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
        message = f"{origin}: a token is at least {FEWEST} visible ASCII characters, without spaces"
        raise Failure(errors.BAD_CONFIG, message, cure)
    return token
