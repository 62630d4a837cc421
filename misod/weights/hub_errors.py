"""What can go wrong with the hub, each in its own sentence: what, where, what to do; and its exit code."""

import socket
import ssl
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import constants, errors, get_token

from protocol import errors as codes
from protocol.errors import Failure

LOG_IN = "log in with `hf auth login`, or set HF_TOKEN"
GOES_ON = "the same command goes on from there"


def explain(error: Exception, what: str) -> Failure:
    """`what`: the repository, or the file in it, that was asked for."""
    if isinstance(error, errors.OfflineModeIsEnabled):
        return Failure(codes.NO_HOST, f"{what}: HF_HUB_OFFLINE is set: unset it to pull, or use --from DIRECTORY")
    if isinstance(error, errors.HfHubHTTPError):
        return _answered(error, what)
    if isinstance(error, httpx2.TimeoutException):
        waited = f"did not answer within {constants.HF_HUB_DOWNLOAD_TIMEOUT} s"
        return Failure(codes.TRY_AGAIN, f"{what}: {host()} {waited}: try again later; {GOES_ON}")
    if isinstance(error, (httpx2.UnsupportedProtocol, httpx2.InvalidURL)):
        return Failure(codes.BAD_CONFIG, f"HF_ENDPOINT={constants.ENDPOINT!r} is no address: unset it, or mend it")
    if isinstance(error, httpx2.ProxyError):
        return Failure(codes.NO_HOST, f"{what}: cannot reach {host()}: the proxy says {error}; is HTTPS_PROXY right?")
    if isinstance(error, httpx2.ConnectError):
        return Failure(codes.NO_HOST, f"{what}: cannot reach {host()}: {_unreachable(error)}")
    return Failure(codes.TRY_AGAIN, f"{what}: the connection to {host()} broke off: try again; {GOES_ON}")


def is_passing(error: Exception) -> bool:
    """Whether another try may help."""
    if isinstance(error, errors.HfHubHTTPError):
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    return isinstance(error, (httpx2.NetworkError, httpx2.TimeoutException, httpx2.RemoteProtocolError))


def bad_token() -> Failure:
    return Failure(codes.NO_TOKEN, f"the Hugging Face token in use is none (it has odd characters): {LOG_IN}")


def no_hub() -> Failure:
    why = f"what answers at {host()} is no model hub"
    return Failure(codes.NO_HOST, f"{why}: a network that wants a log-in first, or a wrong HF_ENDPOINT")


def no_file(repo: str, pattern: str, commit: str) -> Failure:
    why = f"{repo} has no {pattern} at {commit[:12]}"
    return Failure(codes.NO_INPUT, f"{why}: it was changed since this version; look for a newer miso, or use --from")


def cut_short(what: str) -> Failure:
    return Failure(codes.TRY_AGAIN, f"{what}: {host()} ends it too early each time: try again later; {GOES_ON}")


def host() -> str:
    return urlsplit(constants.ENDPOINT).netloc or constants.ENDPOINT


def _answered(error: errors.HfHubHTTPError, what: str) -> Failure:
    """The hub said no. It answers 401 of a repository that it hides, of a missing token and of a wrong one."""
    status, token = error.response.status_code, get_token()
    if isinstance(error, errors.GatedRepoError):
        page = f"{constants.ENDPOINT}/{_repo(what)}"
        if token:
            return Failure(
                codes.NO_PERMISSION, f"{what} is gated, and your account has no access: accept its terms at {page}"
            )
        return Failure(codes.NO_TOKEN, f"{what} is gated: accept its terms at {page}, then {LOG_IN}")
    if status == 401 and token:
        return Failure(codes.NO_TOKEN, f"{host()} does not accept your Hugging Face token: {LOG_IN}")
    if isinstance(error, errors.RevisionNotFoundError):
        why = f"{what}: the commit that this version takes is gone from {host()}"
        return Failure(codes.NO_INPUT, f"{why}: look for a newer miso, or use --from")
    if isinstance(error, errors.RemoteEntryNotFoundError):
        return Failure(codes.NO_INPUT, f"{what} is not on {host()}: look for a newer miso, or use --from")
    if status == 401 and not isinstance(error, errors.RepositoryNotFoundError):
        return Failure(codes.NO_TOKEN, f"{what}: {host()} wants to know who asks: {LOG_IN}")
    if isinstance(error, errors.RepositoryNotFoundError) or status == 404:
        return Failure(
            codes.NO_INPUT, f"there is no {_repo(what)} on {host()}, or it is private: {LOG_IN}, or use --from"
        )
    if status == 429:
        return Failure(codes.TRY_AGAIN, f"{what}: {host()} says that we ask too often: try again in some minutes")
    if status >= 500:
        return Failure(codes.TRY_AGAIN, f"{what}: {host()} has a fault of its own ({status}): try again; {GOES_ON}")
    return Failure(codes.NO_PERMISSION, f"{what}: {host()} refuses it ({status}); is your token allowed to read it?")


def _repo(what: str) -> str:
    return "/".join(what.split("/")[:2])


def _unreachable(error: BaseException) -> str:
    for cause in _causes(error):
        if isinstance(cause, socket.gaierror):
            return "its name cannot be resolved: are you online? (or --from DIRECTORY)"
        if isinstance(cause, ConnectionRefusedError):
            return "connection refused: is HF_ENDPOINT right, or a firewall in the way?"
        if isinstance(cause, ssl.SSLError):
            return "its certificate is not accepted: is a proxy in the way, or this machine's clock wrong?"
    return "no way there: are you online? (or --from DIRECTORY)"


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
