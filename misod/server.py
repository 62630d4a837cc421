"""The I/O thread: owns the socket, blocks on nothing but its poll, knows no model.

A literal table from message to handler; the worker's events come through a deque and a byte on `wake`.
"""

import faulthandler
import logging
import math
import os
import secrets
import signal
import sys
import time
from dataclasses import replace

import zmq

import misod
from misod import engine, orders, runtime, style, worker
from misod.config import Settings
from misod.library import ANSWERS, Library
from misod.receipt import error, piece, receipt
from misod.router import Router
from misod.scheduler import Key
from misod.session import SLOW_S, Session
from misod.status import status
from misod.usher import ASKED, Usher
from misod.voices import Voice
from misod.wake import Wake
from protocol import codec, errors
from protocol import messages as m
from protocol.paths import Paths
from protocol.words import KITTENS

log = logging.getLogger(__name__)

TELLING_S = 1.0  # of speech: over less, the prompt's share of the work is too large to tell how fast the next will be
WATCH_S = 1.0  # while a step runs, or memory may grow: how often to look


class Server:
    """Bind, answer `status` at once, then run until drained. `models` is used on the worker thread."""

    def __init__(self, settings: Settings, paths: Paths, lock: int, models: engine.Models):
        self.settings, self.paths, self.lock = settings, paths, lock
        self.sessions: dict[tuple[bytes, int], Session] = {}
        self.state, self.detail = "loading", ""
        self.ready: orders.Ready | None = None
        self.started_s = time.monotonic()
        self.requests = self.frames = 0
        self.spoken_s = 0.0
        self.rtf: float | None = None  # of the last request, with the model that is loaded
        self.signalled = self.cut_off = False
        self.drain_deadline_s: float | None = None
        self.exit_code: int | None = None
        self.memory_ceiling_bytes = runtime.memory_ceiling_bytes(settings.memory_gb)
        self.memory_due_s = 0.0
        self.library = Library(paths, lambda digest: self.worker.inbox.put(orders.Forget(digest)))
        self.router = Router(paths.socket, settings.max_rows)
        self.usher = Usher(settings.same_s, settings.max_requests, self._send)
        self.wake = Wake()
        self.worker = worker.Worker(models, settings.max_rows, settings.keep_alive_s, self.wake.ring)

    def run(self) -> int:
        """Returns the exit code."""
        signal.set_wakeup_fd(self.wake.write_end.fileno(), warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        self.worker.start()
        poller = zmq.Poller()
        poller.register(self.router.socket, zmq.POLLIN)
        poller.register(self.router.partings, zmq.POLLIN)
        poller.register(self.wake.read_end, zmq.POLLIN)
        log.info("listening on %s, pid %d", self.paths.socket, os.getpid())
        while self.exit_code is None:
            ready = dict(poller.poll(self._poll_timeout_ms()))
            self.wake.clear()
            self._take_events()
            if self.router.socket in ready:
                self._take_messages()
            if self.router.partings in ready:
                self.router.clear_partings()
                self.usher.somebody_left()
            if self.signalled:
                self._begin_drain()
            self._watch()
        self.router.close()
        return self.exit_code

    # ---- from clients

    def _take_messages(self) -> None:
        """As many as are there, but never so many that the worker's frames wait."""
        for _ in range(64):
            if (received := self.router.receive()) is None:
                return
            self._take_message(*received)

    def _take_message(self, peer: bytes, frames: list[bytes]) -> None:
        message = None
        try:
            if len(frames) != 1:
                raise errors.ProtocolError("bad_message", "a message is exactly one frame")
            message = codec.unpack(frames[0], m.FROM_CLIENT)
            HANDLERS[type(message)](self, peer, message)
        except errors.ProtocolError as refusal:
            request = refusal.id if message is None else message.id
            self._forget((peer, request))  # nothing follows an error for its id
            if request is not None:
                self.usher.gone(peer, request)
            self._send(peer, error(request, refusal.code, refusal.message))

    def _on_hello(self, peer: bytes, hello: m.Hello) -> None:
        ours = f"{m.VERSION[0]}.{m.VERSION[1]}"
        if hello.major != m.VERSION[0]:
            text = f"misoctl speaks protocol {hello.major}.{hello.minor}, misod (pid {os.getpid()}) {ours}"
            raise errors.ProtocolError("version", text, hello.id)
        major, minor = m.VERSION
        who = {"version": misod.__version__, "pid": os.getpid(), "state": self._state()}
        self._send(peer, m.Welcome(id=hello.id, major=major, minor=minor, **who))

    def _on_say(self, peer: bytes, say: m.Say) -> None:
        self._check_room(peer, say.id)
        if not m.speakable(say.text):
            raise errors.ProtocolError("unspeakable", "there is nothing to say in this text", say.id)
        if say.preset is not None and say.preset not in style.NAMES:
            raise errors.ProtocolError("bad_value", f"say.preset is one of {', '.join(style.NAMES)}", say.id)
        if say.emoji not in (None, "drop", "name"):
            raise errors.ProtocolError("bad_value", "say.emoji is drop or name", say.id)
        seed = secrets.randbits(32) if say.seed is None else say.seed
        voice, dialogue = self.library.voice_of(say), self.library.dialogue_of(say)
        self._check_own_voice(say, voice)
        speaker = say.speaker if say.speaker is not None else voice.speaker if voice else 0
        names = {"voice": say.voice or "", "dialogue": say.session or ""}
        session = Session(peer, say.id, time.monotonic(), seed, speaker, **names, pieces=bool(say.pieces))
        self.sessions[session.key] = session
        self.requests += 1
        log.info("say: %d bytes, %d sessions", len(say.text.encode()), len(self.sessions))
        wanted = engine.Say(
            text=say.text,
            seed=seed,
            speaker=session.speaker,
            preset=say.preset,
            sampling={name: value for name in style.FIELDS if (value := getattr(say, name)) is not None},
            max_seconds=say.max_seconds,
            normalize=say.normalize is not False,
            options={name: value for name in KITTENS if (value := getattr(say, name)) is not None},
            emoji=say.emoji or "",
            level=say.level is not False,
            script=bool(say.script),
            voice=voice,
            own_voice=say.voice if say.voice and not voice else "",
            dialogue=dialogue,
            quick=say.quick_start,
        )
        # before anything is sent: to a peer that is gone that fails, and its cancel must not overtake
        heard = say.model or "", say.keep_alive_s, say.clip, say.clip_text
        self.worker.inbox.put(orders.Submit(session.job, wanted, *heard))
        self._send(peer, m.Accepted(id=say.id, seed=seed, rtf=self.rtf))
        if self.state == "loading":
            self._send(peer, m.Progress(id=say.id, state="loading"))

    def _check_own_voice(self, say: m.Say, voice: Voice | None) -> None:
        """A name that nobody learned may be one of the model's own: where another is loaded now, the worker knows."""
        if voice or not say.voice or self.state != "ready" or say.model not in (None, self.ready.info.model):
            return
        if say.voice not in self.ready.info.voices:
            raise errors.ProtocolError("no_voice", f"there is no voice {say.voice}", say.id)

    def _check_room(self, peer: bytes, request: int) -> None:
        """Raises ProtocolError unless one more request may wait."""
        if (peer, request) in self.sessions:
            raise errors.ProtocolError("duplicate", "this id was in use: both requests are stopped", request)
        if self.drain_deadline_s is not None:
            raise errors.ProtocolError("draining", "misod is shutting down", request)
        if len(self.sessions) >= self.settings.max_requests:
            raise errors.ProtocolError("busy", f"{len(self.sessions)} requests wait or speak already", request)

    def _on_load(self, peer: bytes, load: m.Load) -> None:
        self._change_model(peer, load.id, load.model or "", load.keep_alive_s, quick=bool(load.quick_start))

    def _on_unload(self, peer: bytes, unload: m.Unload) -> None:
        self._change_model(peer, unload.id, None, None)

    def _change_model(
        self, peer: bytes, request: int, model: str | None, keep_alive_s: float | None, quick: bool = False
    ) -> None:
        self._check_room(peer, request)
        session = Session(peer, request, time.monotonic(), speaks=False)
        self.sessions[session.key] = session
        self.worker.inbox.put(orders.Submit(session.job, None, model, keep_alive_s, quick=quick))

    def _on_learn(self, peer: bytes, learn: m.Learn) -> None:
        self._check_room(peer, learn.id)
        self.library.check_learn(learn)
        session = Session(peer, learn.id, time.monotonic(), speaks=False, learn=replace(learn, clip=b""))
        self.sessions[session.key] = session
        log.info("learn: %d bytes, %d sessions", len(learn.clip), len(self.sessions))
        heard = learn.clip, learn.text, learn.speaker
        self.worker.inbox.put(orders.Submit(session.job, None, learn.model or "", None, *heard))
        if self.state == "loading":
            self._send(peer, m.Progress(id=learn.id, state="loading"))

    def _on_asked(self, peer: bytes, message: m.Message) -> None:
        """What needs no model."""
        self._send(peer, self.library.answer(message))

    def _on_floor(self, peer: bytes, message: m.Message) -> None:
        """What is heard, and when."""
        if isinstance(message, m.AskFloor) and self.drain_deadline_s is not None:
            raise errors.ProtocolError("draining", "misod is shutting down", message.id)
        self.usher.handle(peer, message)

    def _on_cancel(self, peer: bytes, cancel: m.Cancel) -> None:
        session = self.sessions.get((peer, cancel.id))
        if session and (session.speaks or session.learn):
            session.closing = True
            self.worker.inbox.put(orders.Cancel(session.job, "cancelled"))

    def _on_ack(self, peer: bytes, ack: m.Ack) -> None:
        if session := self.sessions.get((peer, ack.id)):  # acks may cross `done`
            if frames := session.ack(ack.seq):
                self.worker.inbox.put(orders.Credit(session.job, frames))

    def _on_status(self, peer: bytes, asked: m.StatusRequest) -> None:
        self._send(peer, status(self, asked.id, self._state(), quick=bool(asked.quick_start)))

    def _on_drain(self, peer: bytes, drain: m.Drain) -> None:
        self._send(peer, status(self, drain.id, "draining"))
        self._begin_drain()

    def _state(self) -> str:
        return "draining" if self.drain_deadline_s is not None else self.state

    # ---- from the worker

    def _take_events(self) -> None:
        while self.worker.outbox:
            event = self.worker.outbox.popleft()
            EVENTS[type(event)](self, event)

    def _on_loading(self, _: orders.Loading) -> None:
        self.state, self.detail = "loading", ""
        for session in list(self.sessions.values()):
            self._send(session.peer, m.Progress(id=session.id, state="loading"))

    def _on_ready(self, event: orders.Ready) -> None:
        self.state, self.ready, self.rtf = "ready", event, None

    def _on_unloaded(self, event: orders.Unloaded) -> None:
        self.state, self.detail = ("failed", event.why) if event.why else ("idle", "")
        if not runtime.holds(self.lock, self.paths):  # nobody can reach us, and another may listen in our place
            log.warning("%s was removed", self.paths.lock)
            self._begin_drain()

    def _session(self, job: Key) -> Session | None:
        """None: it was dropped, and the worker did not know yet."""
        session = self.sessions.get(job[:2])
        return session if session and session.job == job else None

    def _on_admitted(self, event: orders.Admitted) -> None:
        if session := self._session(event.key):
            session.admitted = True

    def _on_frame(self, event: orders.Frame) -> None:
        session = self._session(event.key)
        if session is None or session.closing:
            return
        if event.begins and session.pieces:
            self._send(session.peer, piece(session.id, event.begins))
        seq = session.frame_sent(len(event.pcm) // 2, time.monotonic())
        self.frames += 1
        self.spoken_s += len(event.pcm) / 2 / self.ready.sample_rate
        rate, turn = self.ready.sample_rate, event.turn
        self._send(session.peer, m.Pcm(id=session.id, seq=seq, rate=rate, turn=turn, data=event.pcm))

    def _on_finished(self, event: orders.Finished) -> None:
        if session := self._session(event.key):
            del self.sessions[session.key]
            end = "cancelled" if session.closing else event.end  # they may have crossed: what was asked counts
            if end == "eos" and session.dialogue:
                self.library.dialogues.add(self.ready.info, event.job.row)
            done = receipt(session, event.job, end, self.ready or orders.NOTHING)
            if done.seconds >= TELLING_S and done.quick_digest is None:
                self.rtf = done.rtf
            self._send(session.peer, done)

    def _on_changed(self, event: orders.Changed) -> None:
        if session := self._session(event.key):
            del self.sessions[session.key]
            self._send(session.peer, status(self, session.id, self._state()))

    def _on_learned(self, event: orders.Learned) -> None:
        if session := self._session(event.key):
            del self.sessions[session.key]
            try:
                answer, digest = self.library.learned(session.learn, event.heard)
                self.worker.inbox.put(orders.Keep(digest))
                self._send(session.peer, answer)
            except errors.ProtocolError as refusal:
                self._send(session.peer, error(session.id, refusal.code, refusal.message))

    def _on_failed(self, event: orders.Failed) -> None:
        if session := self._session(event.key):
            del self.sessions[session.key]
            log.warning("request failed: %s", event.code)
            self._send(session.peer, error(session.id, event.code, event.message))

    def _on_crashed(self, event: orders.Crashed) -> None:
        self._fail_all()
        self._exit(errors.SOFTWARE, f"the worker died: {event.message}")

    def _send(self, peer: bytes, message: m.Message) -> None:
        """Never blocks. A peer that is gone, or whose pipe is full beyond its windows, loses its sessions."""
        try:
            data = codec.pack(message)
        except errors.ProtocolError as fault:  # an engine's word that the wire does not take: this request's alone
            log.error("cannot send: %s", fault)
            self._forget((peer, message.id))
            data = codec.pack(error(message.id, "engine", f"misod had an answer it cannot send: {fault}"))
        if not self.router.send(peer, data):
            for key in [key for key in self.sessions if key[0] == peer]:
                self._forget(key)
            self.usher.gone(peer)

    def _forget(self, key: tuple[bytes, int | None]) -> None:
        if session := self.sessions.pop(key, None):
            self.worker.inbox.put(orders.Cancel(session.job, "cancelled"))

    def _drop(self, session: Session, code: str, message: str) -> None:
        """The request ends here, and is told why."""
        self._forget(session.key)
        self._send(session.peer, error(session.id, code, message))

    # ---- time

    def _poll_timeout_ms(self) -> int | None:
        """None on a quiet daemon: it wakes for messages, events and signals only."""
        now_s = time.monotonic()
        deadlines = [s for session in self.sessions.values() if (s := session.next_deadline_s()) is not None]
        if self.sessions or self.worker.step_began_s is not None:
            deadlines.append(now_s + WATCH_S)
        if (floor_s := self.usher.next_deadline_s()) is not None:
            deadlines.append(floor_s)
        if self.drain_deadline_s is not None:
            deadlines.append(min(self.drain_deadline_s, now_s + WATCH_S))
        return max(0, math.ceil((min(deadlines) - now_s) * 1000)) if deadlines else None

    def _watch(self) -> None:
        now_s = time.monotonic()
        for session in list(self.sessions.values()):
            if session.is_slow(now_s):
                self._drop(session, "slow", f"no speech was taken for {SLOW_S:g} s, so it was stopped")
            elif session.wants_probe(now_s):
                session.probed_s = now_s
                waits_for = "loading" if self.state == "loading" else "queued"
                self._send(session.peer, m.Progress(id=session.id, state="parked" if session.admitted else waits_for))
        self.usher.watch(now_s)
        self._watch_worker(now_s)
        if self.drain_deadline_s is not None and not self.sessions:
            self._exit(errors.OK, "drained")
        elif self.drain_deadline_s is not None and now_s >= self.drain_deadline_s:
            self._cut_off(now_s)

    def _watch_worker(self, now_s: float) -> None:
        """Python cannot interrupt Metal: a step that hangs, or memory that grows without end, ends the process."""
        began_s = self.worker.step_began_s
        if began_s is not None and now_s - began_s > self.settings.step_timeout_s:
            faulthandler.dump_traceback(file=sys.stderr, all_threads=True)
            self._die(f"a step took over {self.settings.step_timeout_s:g} s")
        if not self.sessions or now_s < self.memory_due_s:
            return
        self.memory_due_s = now_s + WATCH_S
        if runtime.resident_bytes() > self.memory_ceiling_bytes:
            self._die(f"resident memory passed {self.memory_ceiling_bytes / 1e9:.1f} GB")

    def _begin_drain(self) -> None:
        """Finish what speaks, start nothing new."""
        if self.drain_deadline_s is not None:
            return
        log.info("draining %d sessions", len(self.sessions))
        self.drain_deadline_s = time.monotonic() + self.settings.drain_s
        self.usher.drain()
        for session in list(self.sessions.values()):
            if not session.admitted:
                self._drop(session, "draining", "misod is shutting down")

    def _cut_off(self, now_s: float) -> None:
        """The drain's time is over: every client is still told."""
        if self.cut_off:
            self._die("rows did not leave after the drain")
        self.cut_off = True
        for session in list(self.sessions.values()):
            if session.speaks:
                self.worker.inbox.put(orders.Cancel(session.job, "drained"))
            else:
                self._drop(session, "draining", "misod is shutting down")
        self.drain_deadline_s = now_s + self.settings.step_timeout_s

    def _on_signal(self, _number: int, _frame) -> None:
        """It may have interrupted anything: the loop does the rest. The second one: now."""
        if self.signalled or self.drain_deadline_s is not None:
            os._exit(errors.OK)
        self.signalled = True

    def _exit(self, code: int, why: str) -> None:
        """The first reason counts."""
        if self.exit_code is not None:
            return
        log.log(logging.ERROR if code else logging.INFO, "stopping: %s", why)
        self.exit_code = code

    def _fail_all(self) -> None:
        for session in list(self.sessions.values()):
            self._drop(session, "engine", "misod failed and is stopping")

    def _die(self, why: str) -> None:
        """Without the worker, which may never come back."""
        log.error("stopping now: %s", why)
        self._fail_all()
        self.router.close()
        logging.shutdown()
        os._exit(errors.SOFTWARE)


HANDLERS = {
    m.Hello: Server._on_hello,
    m.Say: Server._on_say,
    m.Cancel: Server._on_cancel,
    m.Ack: Server._on_ack,
    m.Load: Server._on_load,
    m.Unload: Server._on_unload,
    m.Learn: Server._on_learn,
    **dict.fromkeys(ANSWERS, Server._on_asked),
    **dict.fromkeys(ASKED, Server._on_floor),
    m.StatusRequest: Server._on_status,
    m.Drain: Server._on_drain,
}

EVENTS = {
    orders.Loading: Server._on_loading,
    orders.Ready: Server._on_ready,
    orders.Unloaded: Server._on_unloaded,
    orders.Admitted: Server._on_admitted,
    orders.Frame: Server._on_frame,
    orders.Finished: Server._on_finished,
    orders.Changed: Server._on_changed,
    orders.Learned: Server._on_learned,
    orders.Failed: Server._on_failed,
    orders.Crashed: Server._on_crashed,
}
