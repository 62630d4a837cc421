"""The I/O thread: owns every socket, blocks on nothing but its poll, knows no model.

A literal table from message to handler; the worker's events come through a deque and one byte on a socketpair.
"""

import faulthandler
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable

import zmq

import misod
from misod import engine, runtime, worker
from misod.config import Settings
from misod.session import Session
from protocol import codec, errors
from protocol import messages as m
from protocol.paths import Paths

log = logging.getLogger(__name__)

WATCH_S = 1.0  # while a step runs, or memory may grow: how often to look


class Server:
    """Bind, answer `status` at once, then run until drained. `open_engine` is called on the worker thread."""

    def __init__(self, settings: Settings, paths: Paths, open_engine: Callable[[], engine.Engine]):
        self.settings, self.paths = settings, paths
        self.sessions: dict[tuple[bytes, int], Session] = {}
        self.state, self.detail = "loading", ""
        self.ready: worker.Ready | None = None
        self.started_s = time.monotonic()
        self.requests = self.frames = 0
        self.drain_deadline_s: float | None = None
        self.exit_code: int | None = None
        self.memory_ceiling_bytes = runtime.memory_ceiling_bytes(settings.memory_gb)
        self.context = zmq.Context()
        self.router = self._bind()
        self.wake_in, self.wake_out = socket.socketpair()
        self.wake_in.setblocking(False)
        self.wake_out.setblocking(False)
        self.worker = worker.Worker(open_engine, settings.max_rows, settings.keep_alive_s, self._wake)

    def _bind(self) -> zmq.Socket:
        """Each option is tied to a measurement; see protocol/README.md."""
        router = self.context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        router.setsockopt(zmq.ROUTER_HANDOVER, 0)
        router.setsockopt(zmq.MAXMSGSIZE, m.MAX_MESSAGE_BYTES)
        router.setsockopt(zmq.SNDHWM, 64)
        router.setsockopt(zmq.RCVHWM, 16)
        router.setsockopt(zmq.HANDSHAKE_IVL, 1000)
        router.setsockopt(zmq.HEARTBEAT_IVL, 1000)
        router.setsockopt(zmq.HEARTBEAT_TIMEOUT, 3000)
        router.setsockopt(zmq.LINGER, 0)
        router.bind(f"ipc://{self.paths.socket}")
        return router

    def run(self) -> int:
        """Returns the exit code."""
        signal.set_wakeup_fd(self.wake_in.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.worker.start()
        poller = zmq.Poller()
        poller.register(self.router, zmq.POLLIN)
        poller.register(self.wake_out, zmq.POLLIN)
        log.info("listening on %s, pid %d", self.paths.socket, os.getpid())
        while self.exit_code is None:
            ready = dict(poller.poll(self._poll_timeout_ms()))
            if self.wake_out.fileno() in ready:
                self._drain_wakes()
            self._take_events()
            if self.router in ready:
                self._take_messages()
            self._watch()
        self._close()
        return self.exit_code

    # ---- from clients

    def _take_messages(self) -> None:
        """As many as are there, but never so many that the worker's frames wait."""
        for _ in range(64):
            try:
                parts = self.router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take_message(parts)

    def _take_message(self, parts: list[bytes]) -> None:
        peer = parts[0]
        try:
            if len(parts) != 2:
                raise errors.ProtocolError("bad_message", "a message is exactly one frame")
            message = codec.unpack(parts[1], m.FROM_CLIENT)
            HANDLERS[type(message)](self, peer, message)
        except errors.ProtocolError as error:
            self._send(peer, m.Error(id=error.id, code=error.code, message=error.message))

    def _on_hello(self, peer: bytes, hello: m.Hello) -> None:
        ours = f"{m.VERSION[0]}.{m.VERSION[1]}"
        if hello.major != m.VERSION[0]:
            text = f"misoctl speaks protocol {hello.major}.{hello.minor}, misod (pid {os.getpid()}) {ours}"
            raise errors.ProtocolError("version", text, hello.id)
        major, minor = m.VERSION
        self._send(peer, m.Welcome(id=hello.id, major=major, minor=minor, version=misod.__version__, pid=os.getpid()))

    def _on_say(self, peer: bytes, say: m.Say) -> None:
        if (peer, say.id) in self.sessions:
            raise errors.ProtocolError("duplicate", "this id is still in use", say.id)
        if self.drain_deadline_s is not None:
            raise errors.ProtocolError("draining", "misod is shutting down", say.id)
        if len(self.sessions) >= self.settings.max_requests:
            raise errors.ProtocolError("busy", f"{len(self.sessions)} requests wait or speak already", say.id)
        if not m.speakable(say.text):
            raise errors.ProtocolError("unspeakable", "there is nothing to say in this text", say.id)
        seed = secrets.randbits(32) if say.seed is None else say.seed
        session = Session(peer, say.id, seed, say.speaker, said_s=time.monotonic())
        self.sessions[session.key] = session
        self.requests += 1
        log.info("say: %d bytes, %d sessions", len(say.text.encode()), len(self.sessions))
        self._send(peer, m.Accepted(id=say.id, seed=seed))
        if self.state == "loading":
            self._send(peer, m.Progress(id=say.id, state="loading"))
        wanted = engine.Say(
            text=say.text,
            seed=seed,
            speaker=say.speaker,
            temperature=say.temperature,
            top_k=say.top_k,
            max_seconds=say.max_seconds,
        )
        self.worker.inbox.put(worker.Submit(session.key, wanted))

    def _on_cancel(self, peer: bytes, cancel: m.Cancel) -> None:
        if session := self.sessions.get((peer, cancel.id)):
            session.closing = True
            self.worker.inbox.put(worker.Cancel(session.key, "cancelled"))

    def _on_ack(self, peer: bytes, ack: m.Ack) -> None:
        if session := self.sessions.get((peer, ack.id)):  # acks may cross `done`
            if frames := session.ack(ack.seq):
                self.worker.inbox.put(worker.Credit(session.key, frames))

    def _on_status(self, peer: bytes, status: m.StatusRequest) -> None:
        self._send(peer, self._status(status.id))

    def _on_drain(self, peer: bytes, drain: m.Drain) -> None:
        self._send(peer, self._status(drain.id, state="draining"))
        self._begin_drain()

    def _status(self, request: int, state: str | None = None) -> m.Status:
        ready, memory = self.ready, self.worker.memory
        queued, speaking, parked = self.worker.counts
        return m.Status(
            id=request,
            state=state or ("draining" if self.drain_deadline_s is not None else self.state),
            detail=self.detail[:1024],
            version=misod.__version__,
            pid=os.getpid(),
            uptime_s=time.monotonic() - self.started_s,
            engine=ready.info.engine if ready else "",
            model=ready.info.model if ready else self.settings.model,
            digest=ready.info.digest if ready else "",
            backend=ready.info.backend if ready else "",
            sample_rate=ready.sample_rate if ready else 0,
            load_s=ready.load_s if ready else 0.0,
            keep_alive_s=self.settings.keep_alive_s,
            queued=queued,
            speaking=speaking,
            parked=parked,
            max_rows=self.settings.max_rows,
            requests=self.requests,
            frames=self.frames,
            active_bytes=memory.active_bytes,
            cache_bytes=memory.cache_bytes,
            peak_bytes=memory.peak_bytes,
            rss_bytes=runtime.resident_bytes(),
            socket=str(self.paths.socket),
            log=str(self.paths.log),
        )

    # ---- from the worker

    def _wake(self) -> None:
        try:
            self.wake_in.send(b"\0")
        except BlockingIOError:  # full: the poll is awake already
            pass

    def _drain_wakes(self) -> None:
        try:
            while self.wake_out.recv(4096):
                pass
        except BlockingIOError:
            pass

    def _take_events(self) -> None:
        while self.worker.outbox:
            event = self.worker.outbox.popleft()
            EVENTS[type(event)](self, event)

    def _on_loading(self, _: worker.Loading) -> None:
        self.state, self.detail = "loading", ""
        for session in self.sessions.values():
            self._send(session.peer, m.Progress(id=session.id, state="loading"))

    def _on_ready(self, event: worker.Ready) -> None:
        self.state, self.ready = "ready", event

    def _on_unloaded(self, event: worker.Unloaded) -> None:
        self.state, self.detail = ("failed", event.why) if event.why else ("idle", "")

    def _on_frame(self, event: worker.Frame) -> None:
        session = self.sessions.get(event.key)
        if session is None or session.closing:
            return
        seq = session.frame_sent(time.monotonic())
        self.frames += 1
        self._send(session.peer, m.Pcm(id=session.id, seq=seq, rate=self.ready.sample_rate, data=event.pcm))

    def _on_finished(self, event: worker.Finished) -> None:
        if session := self.sessions.pop(event.key, None):
            self._send(session.peer, self._receipt(session, event.job, event.end))

    def _on_failed(self, event: worker.Failed) -> None:
        if session := self.sessions.pop(event.key, None):
            log.warning("request failed: %s", event.code)
            self._send(session.peer, m.Error(id=session.id, code=event.code, message=event.message[:1024]))

    def _on_crashed(self, event: worker.Crashed) -> None:
        for session in self.sessions.values():
            self._send(session.peer, m.Error(id=session.id, code="engine", message="misod failed and is stopping"))
        self._exit(errors.SOFTWARE, f"the worker died: {event.message}")

    def _receipt(self, session: Session, job: worker.Job, end: str) -> m.Done:
        rate, info, samples = self.ready.sample_rate, self.ready.info, job.samples
        seconds = samples.total / rate
        first_s = session.first_pcm_s
        spoken = " ".join(job.row.spoken) if job.row else ""
        return m.Done(
            id=session.id,
            end=end,
            frames=job.frames,
            samples=samples.total,
            seconds=seconds,
            rate=rate,
            seed=session.seed,
            speaker=session.speaker,
            temperature=job.row.temperature if job.row else None,
            top_k=job.row.top_k if job.row else None,
            engine=info.engine,
            model=info.model,
            digest=info.digest,
            ttfa_ms=None if first_s is None else (first_s - session.said_s) * 1000,
            rtf=job.busy_s / seconds if seconds else None,
            spoken=spoken.encode()[: m.MAX_SPOKEN_BYTES].decode(errors="ignore"),
            clipped=samples.clipped,
            nonfinite=samples.nonfinite,
        )

    def _send(self, peer: bytes, message: m.Message) -> None:
        """Never blocks. A peer that is gone, or whose pipe is full beyond its window, loses its sessions."""
        try:
            self.router.send_multipart([peer, codec.pack(message)], zmq.NOBLOCK)
        except (zmq.Again, zmq.ZMQError):
            self._forget(peer)

    def _forget(self, peer: bytes) -> None:
        for key in [key for key in self.sessions if key[0] == peer]:
            del self.sessions[key]
            self.worker.inbox.put(worker.Cancel(key, "cancelled"))

    # ---- time

    def _poll_timeout_ms(self) -> int | None:
        """None on a quiet daemon: it wakes for messages, events and signals only."""
        now_s = time.monotonic()
        deadlines = [s for session in self.sessions.values() if (s := session.next_deadline_s()) is not None]
        if self.sessions or self.worker.step_began_s is not None:
            deadlines.append(now_s + WATCH_S)
        if self.drain_deadline_s is not None:
            deadlines.append(min(self.drain_deadline_s, now_s + WATCH_S))
        return max(0, round((min(deadlines) - now_s) * 1000)) if deadlines else None

    def _watch(self) -> None:
        now_s = time.monotonic()
        for session in list(self.sessions.values()):
            if session.is_slow(now_s):
                self._evict(session)
            elif session.wants_probe(now_s):
                session.probed_s = now_s
                self._send(session.peer, m.Progress(id=session.id, state="parked"))
        self._watch_worker(now_s)
        if self.drain_deadline_s is not None and not self.sessions:
            self._exit(errors.OK, "drained")
        elif self.drain_deadline_s is not None and now_s >= self.drain_deadline_s:
            self._cut_off()

    def _evict(self, session: Session) -> None:
        del self.sessions[session.key]
        self.worker.inbox.put(worker.Cancel(session.key, "cancelled"))
        self._send(
            session.peer, m.Error(id=session.id, code="slow", message="no speech was taken for 10 s, so it was stopped")
        )

    def _watch_worker(self, now_s: float) -> None:
        """Python cannot interrupt Metal: a step that hangs, or memory that grows without end, ends the process."""
        began_s = self.worker.step_began_s
        if began_s is not None and now_s - began_s > self.settings.step_timeout_s:
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            self._die(f"a step took over {self.settings.step_timeout_s:g} s")
        if self.sessions and runtime.resident_bytes() > self.memory_ceiling_bytes:
            self._die(f"resident memory passed {self.memory_ceiling_bytes / 1e9:.1f} GB")

    def _begin_drain(self) -> None:
        """Finish what speaks, start nothing new."""
        if self.drain_deadline_s is None:
            log.info("draining %d sessions", len(self.sessions))
            self.drain_deadline_s = time.monotonic() + self.settings.drain_s

    def _cut_off(self) -> None:
        """The drain's time is over: every client still gets its `done`."""
        for session in self.sessions.values():
            if not session.closing:
                session.closing = True
                self.worker.inbox.put(worker.Cancel(session.key, "drained"))
        self.drain_deadline_s = time.monotonic() + self.settings.step_timeout_s

    def _on_signal(self, number: int, _frame) -> None:
        if self.drain_deadline_s is not None:
            os._exit(errors.OK)  # the second one: now
        self._begin_drain()

    def _exit(self, code: int, why: str) -> None:
        log.log(logging.ERROR if code else logging.INFO, "stopping: %s", why)
        self.exit_code = code

    def _die(self, why: str) -> None:
        log.error("stopping now: %s", why)
        logging.shutdown()
        os._exit(errors.SOFTWARE)

    def _close(self) -> None:
        """Give what was sent a moment to leave: LINGER 0 would drop a last `done`."""
        self.worker.inbox.put(worker.Stop())
        self.router.unbind(f"ipc://{self.paths.socket}")
        self.router.close(linger=500)
        self.context.term()
        self.worker.join(timeout=5)


HANDLERS = {
    m.Hello: Server._on_hello,
    m.Say: Server._on_say,
    m.Cancel: Server._on_cancel,
    m.Ack: Server._on_ack,
    m.StatusRequest: Server._on_status,
    m.Drain: Server._on_drain,
}

EVENTS = {
    worker.Loading: Server._on_loading,
    worker.Ready: Server._on_ready,
    worker.Unloaded: Server._on_unloaded,
    worker.Frame: Server._on_frame,
    worker.Finished: Server._on_finished,
    worker.Failed: Server._on_failed,
    worker.Crashed: Server._on_crashed,
}
