"""One request: from misod's frames to the bytes of a response, in a thread and with a connection of its own.

It goes on to the next frame once the client has taken the last: acks, and so misod, wait for the client.
"""

import base64
import json
from collections.abc import Callable
from contextlib import closing
from threading import Event

import anyio
from starlette.requests import Request
from starlette.responses import Response

from misoctl.encode import encoder
from misoctl.http.asked import MEDIA_TYPES, Asked
from misoctl.http.refusal import Refusal
from misoctl.start import connect
from misoctl.talk import tell
from protocol import errors
from protocol import messages as m
from protocol.errors import Failure
from protocol.paths import Paths

MOST = 32  # requests at once: a thread and about ten open files each; misod has a limit of its own, too
BUSY = f"{MOST} requests are being spoken already: try again when fewer are"


class Speech(Response):
    """Begins to speak when it is sent. What misod refuses is a Refusal, as long as nothing has gone out."""

    def __init__(self, asked: Asked, request: Request, paths: Paths, talk: Callable[[str], None], stopping: Event):
        self._asked, self._request, self._paths, self._talk, self._stopping = asked, request, paths, talk, stopping
        self._encoder = None
        self._seed = self._frames = 0
        self._started = False

    async def __call__(self, _scope, _receive, send) -> None:
        limiter = self._request.app.state.limiter
        if limiter.borrowed_tokens >= limiter.total_tokens:
            raise Refusal(503, BUSY, code="busy")
        self._asgi_send = send
        await anyio.to_thread.run_sync(self._work, limiter=limiter)

    def _work(self) -> None:
        try:
            with (
                connect(self._paths, True, self._talk) as client,
                closing(client.say(**self._asked.say)) as stream,  # left early, it cancels
            ):
                for message in stream:
                    if self._stopping.is_set() or anyio.from_thread.run(self._request.is_disconnected):
                        return  # unfinished: uvicorn closes the connection without an end to the body
                    self._take(message)
        except Failure as failure:
            if not self._started:
                raise Refusal.of(failure) from None
            self._cut(failure)

    def _take(self, message: m.Message) -> None:
        if isinstance(message, m.Accepted):
            self._seed = message.seed
        elif isinstance(message, m.Pcm):
            if self._encoder is None:
                self._encoder = encoder(self._asked.response_format, message.rate)
            self._frames += 1
            self._pass(self._encoder.feed(message.data))
        elif isinstance(message, m.Done):
            if message.end not in ("eos", "cap"):
                raise Failure(errors.FAILED, f"the speech ended early ({message.end})")
            if not message.samples:
                raise Failure(errors.FAILED, f"no sound was made of this text ({message.end})", "try another seed")
            self._pass(self._encoder.finish())
            self._end()

    def _pass(self, audio: bytes) -> None:
        if audio and self._asked.sse:
            self._write(_event("speech.audio.delta", audio=base64.b64encode(audio).decode()))
        elif audio:
            self._write(audio)

    def _end(self) -> None:
        """OpenAI's count of tokens: ours are the characters of the text, and frames of speech."""
        tokens = len(self._asked.say["text"]), self._frames
        usage = dict(zip(("input_tokens", "output_tokens", "total_tokens"), (*tokens, sum(tokens)), strict=True))
        self._write(_event("speech.audio.done", usage=usage) if self._asked.sse else b"", more=False)

    def _cut(self, failure: Failure) -> None:
        """Too late for a status: the connection is closed without an end, and where there are events, one tells why."""
        tell(f"a response was cut off: {failure}")
        if self._asked.sse:
            self._write(_event("error", **Refusal.of(failure).error))

    def _write(self, data: bytes, more: bool = True) -> None:
        """Returns once the client has taken all but 64 kB of it, or is gone."""
        anyio.from_thread.run(self._send, data, more)

    async def _send(self, data: bytes, more: bool) -> None:
        if not self._started:
            self._started = True
            await self._asgi_send({"type": "http.response.start", "status": 200, "headers": self._headers()})
        await self._asgi_send({"type": "http.response.body", "body": data, "more_body": more})

    def _headers(self) -> list[tuple[bytes, bytes]]:
        audio = MEDIA_TYPES[self._asked.response_format]
        headers = {"content-type": "text/event-stream" if self._asked.sse else audio}
        headers |= {"cache-control": "no-store", "x-miso-seed": str(self._seed)}
        if self._asked.ignored:
            headers["x-miso-ignored"] = ", ".join(self._asked.ignored)
        return [(name.encode(), value.encode()) for name, value in headers.items()]


def _event(kind: str, **fields: object) -> bytes:
    return b"data: " + json.dumps({"type": kind} | fields).encode() + b"\n\n"
