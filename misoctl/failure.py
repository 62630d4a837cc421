"""How a verb ends when it cannot do what was asked: one line and an exit code."""

from protocol.errors import ERRORS, SIGNALLED, SOFTWARE, Entry


class Stopped(BaseException):
    """A signal asks us to end; raised wherever we are, so that every sink and request is closed on the way out."""

    def __init__(self, number: int):
        super().__init__(number)
        self.exit_code = SIGNALLED + number


class Failure(Exception):
    """`message` is one line: what, where; `next_step`: what to do; `code`: of the wire, where it came from there."""

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
