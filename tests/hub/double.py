"""A model hub of our own: what huggingface_hub asks of the true one when a model is pulled, and how that may go wrong.

It answers /api/models/REPO/revision/REV and HEAD or GET of /REPO/resolve/REV/PATH with the true one's headers; what is
in large-file storage is redirected to another origin ("localhost"), which no token may follow. No xet headers.
"""

import hashlib
import json
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

LARGE_BYTES = 10_000  # and more is in large-file storage


@dataclass
class Repo:
    files: dict[str, bytes]
    commit: str = "c0" * 20
    gated: bool = False


@dataclass
class Request:
    """One that was asked for: `start` of its range, `sent` bytes of a file so far."""

    method: str
    path: str
    token: str | None
    start: int = 0
    sent: int = 0


@dataclass
class Trouble:
    """What the hub does wrong. `status`: answered to requests whose path holds `where`."""

    status: int | None = None
    error_code: str = ""
    where: str = ""
    cuts: list[int] = field(default_factory=list)  # offsets in the files whose path ends with `cut`: break off there
    cut: str = "model.safetensors"
    reset: bool = False  # break off with RST: what is on its way is lost
    slow_s: float = 0.0  # before each 64 KiB
    hold: int | None = None  # offset in the same files from which on nothing comes, until it is taken away
    silent: bool = False  # accept, never answer
    flip: str = ""  # in files whose path ends with it, a byte in the middle is sent flipped
    flip_in: str = ""  # only in those of this repository
    no_range: bool = False
    page: bytes | None = None  # an answer to everything, as hotels give


class Hub:
    """Runs until closed; `url` is for HF_ENDPOINT."""

    def __init__(self, repos: dict[str, Repo]):
        self.repos, self.trouble = repos, Trouble()
        self.accepted_token: str | None = None  # None: any, or none at all
        self.requests: list[Request] = []
        hub = self

        class Bound(Handler):
            pass

        Bound.hub = hub
        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Bound)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]
        self.url = f"http://127.0.0.1:{self.port}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.trouble.hold = None
        self.server.shutdown()
        self.server.server_close()

    def bodies(self) -> list[Request]:
        """The requests that bytes of a file were sent for."""
        return [r for r in list(self.requests) if r.sent]

    def sent(self) -> int:
        return sum(r.sent for r in list(self.requests))


class Handler(BaseHTTPRequestHandler):
    hub: Hub
    protocol_version = "HTTP/1.1"

    def setup(self) -> None:
        super().setup()
        if self.hub.trouble.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 15)  # little is lost on its way

    def log_message(self, *_) -> None:
        pass

    def do_HEAD(self) -> None:
        self._route()

    def do_GET(self) -> None:
        self._route()

    def _route(self) -> None:
        trouble, path = self.hub.trouble, unquote(urlsplit(self.path).path)
        token = self.headers.get("Authorization")
        self.request_seen = Request(self.command, path, token)
        self.hub.requests.append(self.request_seen)
        while self.hub.trouble.silent:
            time.sleep(0.05)
        if trouble.page is not None:
            return self._send(200, trouble.page, {"Content-Type": "text/html"})
        if trouble.status and trouble.where in path:
            return self._refuse(trouble.status, trouble.error_code)
        if self.headers.get("Host", "").startswith("localhost"):
            return self._stored(path)
        if token and self.hub.accepted_token and token != f"Bearer {self.hub.accepted_token}":
            return self._refuse(401, "", "Invalid credentials in Authorization header")
        if path.startswith("/api/resolve-cache/models/"):
            owner, repo, _, name = path.removeprefix("/api/resolve-cache/models/").split("/", 3)
            return self._body(self.hub.repos[f"{owner}/{repo}"].files[name], {})
        if path.startswith("/api/models/"):
            repo, _, revision = path.removeprefix("/api/models/").partition("/revision/")
            return self._api(repo, revision or "main")
        repo, _, rest = path.strip("/").partition("/resolve/")
        revision, _, name = rest.partition("/")
        return self._resolve(repo, revision, name)

    def _api(self, repo: str, revision: str) -> None:
        found = self._find(repo, revision)
        if not found:
            return None
        siblings = []
        for name, data in found.files.items():
            entry = {"rfilename": name, "size": len(data), "blobId": git_sha1(data)}
            if len(data) >= LARGE_BYTES:
                entry["lfs"] = {"sha256": sha256(data), "size": len(data), "pointerSize": 134}
            siblings.append(entry)
        answer = {"_id": "0", "id": repo, "modelId": repo, "sha": found.commit, "siblings": siblings, "tags": []}
        answer |= {"private": False, "gated": "manual" if found.gated else False, "downloads": 0, "likes": 0}
        return self._send(200, json.dumps(answer).encode(), {"Content-Type": "application/json"})

    def _resolve(self, repo: str, revision: str, name: str) -> None:
        found = self._find(repo, revision)
        if not found:
            return None
        if found.gated and self.hub.accepted_token is None:
            return self._refuse(403 if self.request_seen.token else 401, "GatedRepo")
        if name not in found.files:
            return self._refuse(404, "EntryNotFound")
        data = found.files[name]
        headers = {"X-Repo-Commit": found.commit, "ETag": f'"{git_sha1(data)}"'}
        if len(data) < LARGE_BYTES:
            headers["Location"] = f"/api/resolve-cache/models/{repo}/{found.commit}/{name}"  # on the hub itself
            return self._send(307, b"", headers)
        headers |= {"X-Linked-Etag": f'"{sha256(data)}"', "X-Linked-Size": str(len(data))}
        headers["Location"] = f"http://localhost:{self.hub.port}/stored/{repo}/{name}"
        return self._send(302, b"", headers)

    def _stored(self, path: str) -> None:
        owner, name, file = path.removeprefix("/stored/").split("/", 2)
        data = self.hub.repos[f"{owner}/{name}"].files[file]
        return self._body(data, {"ETag": f'"{sha256(data)}"'})

    def _find(self, repo: str, revision: str) -> Repo | None:
        found = self.hub.repos.get(repo)
        if not found:  # the true hub hides what it does not have from those it does not know
            return self._refuse(404 if self.request_seen.token else 401, "RepoNotFound")
        if revision not in ("main", found.commit):
            return self._refuse(404, "RevisionNotFound")
        return found

    def _body(self, data: bytes, headers: dict[str, str]) -> None:
        """A file, or the asked range of it, as far as the hub's trouble lets it come."""
        trouble, total, status = self.hub.trouble, len(data), 200
        path = self.request_seen.path
        if trouble.flip and path.endswith(trouble.flip) and trouble.flip_in in path:
            data = data[: total // 2] + bytes([data[total // 2] ^ 1]) + data[total // 2 + 1 :]
        asked = self.headers.get("Range", "")
        if asked.startswith("bytes=") and not trouble.no_range:
            start = int(asked.removeprefix("bytes=").split("-")[0])
            if start >= total:
                return self._refuse(416, "")
            status, data, self.request_seen.start = 206, data[start:], start
            headers = headers | {"Content-Range": f"bytes {start}-{total - 1}/{total}"}
        self._head(status, len(data), headers)
        if self.command == "HEAD":
            return None
        end = len(data)
        if trouble.cuts and self.request_seen.path.endswith(trouble.cut):
            end = min(end, trouble.cuts.pop(0) - self.request_seen.start)
        for begin in range(0, end, 1 << 16):
            time.sleep(trouble.slow_s)
            while self._held(begin):
                time.sleep(0.005)
            piece = data[begin : min(begin + (1 << 16), end)]
            try:
                self.wfile.write(piece)
            except OSError:  # the puller is gone
                self.close_connection = True
                return None
            self.request_seen.sent += len(piece)
        if end < len(data):
            self._break_off()
        return None

    def _held(self, begin: int) -> bool:
        seen, trouble = self.request_seen, self.hub.trouble
        return trouble.hold is not None and seen.path.endswith(trouble.cut) and seen.start + begin >= trouble.hold

    def _break_off(self) -> None:
        self.close_connection = True
        if self.hub.trouble.reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        else:
            self.connection.shutdown(socket.SHUT_WR)

    def _refuse(self, status: int, code: str, message: str = "") -> None:
        headers = {"X-Error-Code": code} if code else {}
        return self._send(status, b"{}", headers | ({"X-Error-Message": message} if message else {}))

    def _send(self, status: int, body: bytes, headers: dict[str, str]) -> None:
        self._head(status, len(body), headers)
        if self.command != "HEAD":
            self.wfile.write(body)

    def _head(self, status: int, length: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(length))
        self.end_headers()


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def git_sha1(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
