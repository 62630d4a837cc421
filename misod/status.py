"""What the daemon says of itself: the answer to `status`, and to what changes its model."""

import os
import time
from dataclasses import asdict
from typing import TYPE_CHECKING

import misod
from misod import runtime
from misod.receipt import fit
from protocol import messages as m

if TYPE_CHECKING:
    from misod.server import Server


def status(server: "Server", request: int, state: str, quick: bool = False) -> m.Status:
    """`quick`: tell what starts quickly, which older clients do not know of."""
    settings, worker = server.settings, server.worker
    _, speaking, parked = worker.counts
    held = asdict(worker.memory)
    graphs, graphs_s = held.pop("graphs"), held.pop("graphs_s")
    return m.Status(
        id=request,
        state=state,
        detail=fit(server.detail),
        version=misod.__version__,
        pid=os.getpid(),
        uptime_s=time.monotonic() - server.started_s,
        keep_alive_s=worker.keep_alive_s,
        queued=sum(not session.admitted for session in server.sessions.values()),
        speaking=speaking,
        parked=parked,
        requests=server.requests,
        frames=server.frames,
        spoken_s=server.spoken_s,
        drain_s=settings.drain_s,
        voices=server.library.voices,
        sessions=len(server.library.dialogues),
        socket=fit(str(server.paths.socket)),
        log=fit(str(server.paths.log), 4096),
        **_model(server, f", {graphs} graphs in {graphs_s:.1f} s" if graphs else ""),
        rss_bytes=runtime.resident_bytes(),
        prefix_limit_bytes=int(settings.prefix_gb * 1e9),
        **held,
        quick_digest=_quick_digest(server) if quick else None,
    )


def _quick_digest(server: "Server") -> str | None:
    return server.ready.info.quick_digest or None if server.state == "ready" else None


def _model(server: "Server", made: str) -> dict:
    """`made`: what the model has compiled."""
    ready, settings = server.ready, server.settings
    return {
        "engine": fit(ready.info.engine if ready else "", 64),
        "model": fit(ready.info.model if ready else settings.model, 256),
        "digest": fit(ready.info.digest if ready else "", 128),
        "backend": fit(ready.info.backend + made if ready else "", 64),
        "sample_rate": ready.sample_rate if ready else 0,
        "load_s": ready.load_s if ready else 0.0,
        "max_rows": ready.max_rows if ready else settings.max_rows,
    }
