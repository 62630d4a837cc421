"""What goes wrong, as OpenAI's clients read it: a status and {"error": {message, type, param, code}}."""

from starlette.responses import JSONResponse

from protocol import errors
from protocol.errors import Failure

RETRY_S = 1

# error on the wire -> status, and the field that it is about. The rest are failures of ours, or of misod's.
STATUSES = {
    "bad_value": (400, "voice"),  # a speaker that the model has not: the rest was looked at here
    "unspeakable": (400, "input"),
    "too_long": (400, "input"),
    "bad_voice": (400, "voice"),
    "no_voice": (400, "voice"),
    "no_model": (404, "model"),
    "busy": (503, None),
    "draining": (503, None),
}
UNREACHED = (errors.UNAVAILABLE, errors.TRY_AGAIN)  # misod, not its answer


class Refusal(Exception):
    def __init__(self, status: int, message: str, param: str | None = None, code: str | None = None):
        super().__init__(message)
        self.status, self.message, self.param, self.code = status, message, param, code

    @classmethod
    def of(cls, failure: Failure) -> "Refusal":
        reached = 500 if failure.code or failure.exit_code not in UNREACHED else 503
        status, param = STATUSES.get(failure.code, (reached, None))
        message = (
            failure.message if failure.code == "bad_value" else str(failure)
        )  # that one's cure is an option of say
        return cls(status, message, param, failure.code or None)

    @property
    def error(self) -> dict:
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    def response(self) -> JSONResponse:
        headers = {401: {"www-authenticate": "Bearer"}, 503: {"retry-after": str(RETRY_S)}}
        return JSONResponse(self.error, self.status, headers.get(self.status))
