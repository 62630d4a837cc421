"""How a verb of misod ends when it cannot do what was asked."""


class Failure(Exception):
    """`message` is one line: what, where, what to do. `exit_code` is of protocol.errors."""

    def __init__(self, exit_code: int, message: str):
        super().__init__(message)
        self.exit_code = exit_code
