"""The routes, and the two checks before them: whose name we were called by, and the token."""

import hmac
from collections.abc import Callable
from functools import partial
from threading import Event

import anyio
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from misoctl.client import Client, NoDaemon
from misoctl.http import asked
from misoctl.http.refusal import Refusal
from misoctl.http.stream import MOST, Speech
from protocol import messages as m
from protocol.errors import Failure
from protocol.paths import Paths

MAX_BODY_BYTES = 512 << 10  # the longest text takes 360 kB where each byte of it is written \u00XX
HOSTS = ("127.0.0.1", "localhost", "[::1]")
OPEN = "/health"  # needs no token
TAKES = ("ready", "idle", "stopped")  # states in which a request is spoken at once, or after a load

Talk = Callable[[str], None]


def build(paths: Paths, token: str, hosts: tuple[str, ...], talk: Talk, stopping: Event) -> "Guard":
    """The whole application. `hosts`: names that we may be called by, beside HOSTS."""
    routes = [
        Route("/v1/audio/speech", partial(_speech, paths=paths, talk=talk, stopping=stopping), methods=["POST"]),
        Route("/v1/audio/voices", _voices),
        Route("/v1/models", _models),
        Route(OPEN, partial(_health, paths=paths)),
    ]
    handlers = {Refusal: _refused, HTTPException: _no_such, ClientDisconnect: _gone}
    app = Starlette(routes=routes, exception_handlers=handlers)
    app.state.limiter = anyio.CapacityLimiter(MOST)
    return Guard(app, token, (*HOSTS, *hosts), talk)


class Guard:
    """Lets a request through, or answers it; tells each but those for /health, by its status."""

    def __init__(self, app: Starlette, token: str, hosts: tuple[str, ...], talk: Talk):
        self._app, self._token, self._hosts, self._talk = app, token.encode(), hosts, talk

    async def __call__(self, scope, receive, send) -> None:
        status = "client gone"

        async def noting(message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        refusal = self._refuses(Request(scope))
        await (refusal.response() if refusal else self._app)(scope, receive, noting)
        if scope["path"] != OPEN:
            self._talk(f"{scope['method']} {ascii(scope['path'][:80])[1:-1]}: {status}")

    def _refuses(self, request: Request) -> Refusal | None:
        """A page in a browser can have its own name lead here (DNS rebinding), but not change the Host that is sent."""
        host = request.headers.get("host", "")
        name = host if host.endswith("]") else host.rpartition(":")[0] or host
        if name.lower() not in self._hosts:
            message = f"this listener is not called {host[:80]!a}: `misoctl http --allow-host NAME` lets it be"
            return Refusal(403, message, code="bad_host")
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        right = kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), self._token)
        if request.scope["path"] != OPEN and not right:
            message = "the header `Authorization: Bearer TOKEN` is missing or wrong: `misoctl http --print-token`"
            return Refusal(401, message, code="invalid_api_key")
        return None


async def _speech(request: Request, paths: Paths, talk: Talk, stopping: Event) -> Response:
    body = await _body(request)
    return Speech(await anyio.to_thread.run_sync(asked.read, body), request, paths, talk, stopping)


async def _body(request: Request) -> bytes:
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > MAX_BODY_BYTES:
            raise Refusal(413, f"the body is over {MAX_BODY_BYTES:,} bytes", code="too_large")
    return bytes(body)


async def _voices(_: Request) -> Response:
    """With ids and names, as Open WebUI reads it."""
    names = await anyio.to_thread.run_sync(lambda: list(asked.known_voices()))
    return JSONResponse({"voices": [{"id": name, "name": name} for name in names]})


async def _models(_: Request) -> Response:
    names = await anyio.to_thread.run_sync(lambda: list(asked.known_models()))
    listing = [{"id": name, "object": "model", "created": 0, "owned_by": "miso"} for name in names]
    return JSONResponse({"object": "list", "data": listing})


async def _health(_: Request, paths: Paths) -> Response:
    state = await anyio.to_thread.run_sync(_state, paths)
    return JSONResponse({"status": state}, 200 if state in TAKES else 503)


def _state(paths: Paths) -> str:
    """misod's own word, or `stopped`: the next request starts it; or `unreachable`."""
    try:
        with Client(paths) as client:
            return client.ask(m.StatusRequest).state
    except NoDaemon:
        return "stopped"
    except Failure:
        return "unreachable"


async def _refused(_: Request, refusal: Refusal) -> Response:
    return refusal.response()


async def _no_such(request: Request, error: HTTPException) -> Response:
    known = "POST /v1/audio/speech, GET /v1/audio/voices, /v1/models and /health"
    response = Refusal(error.status_code, f"there is no {request.method} here; there is {known}").response()
    response.headers.update(error.headers or {})
    return response


async def _gone(*_) -> Response:
    """The client went away before it had said what it wanted: nobody reads this."""
    return Response(status_code=400)
