"""The MLX thread: orders in, the scheduler, engine.step, events out.

MLX's streams and random state belong to a thread, and an array made lazily on one fails on another: so
this thread imports mlx, loads, steps and frees, and only bytes and plain objects leave it.
"""

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from queue import Empty, SimpleQueue

import numpy as np

from misod import options, orders, quick
from misod.engine import Chunk, Engine, Fault, Heard, Info, Memory, ModelError, Models, RowFault, Say
from misod.loudness import TARGET_LUFS, Leveller
from misod.scheduler import Job, Key, Scheduler
from misod.voices import Voice

log = logging.getLogger(__name__)

CLIPS = 8  # of `say.clip`, that are not heard again


class Worker(threading.Thread):
    """`models` is used on this thread; `wake` is called after events were put into `outbox`.

    Nothing stops it: the process ends around it, for what it holds is not worth saving and a load takes long.
    """

    def __init__(self, models: Models, max_rows: int, keep_alive_s: float, wake: Callable[[], None]):
        super().__init__(name="mlx", daemon=True)
        self.inbox: SimpleQueue = SimpleQueue()
        self.outbox: deque = deque()
        self.step_began_s: float | None = None  # heartbeat: monotonic, None between steps
        self.counts = (0, 0, 0)
        self.memory = Memory()
        self._models, self._wake = models, wake
        self._default_keep_alive_s = self.keep_alive_s = keep_alive_s
        self._scheduler = Scheduler(max_rows)
        self._engine: Engine | None = None
        self._name = ""  # of the directory it was loaded from
        self._load_s = 0.0
        self._clips: dict[bytes, Heard] = {}  # by digest, the least recently used first

    def run(self) -> None:
        try:
            self._open_first()
            while True:
                self._take_orders()
                self._work()
        except BaseException as error:  # an MLX error outside one row: the process cannot be trusted with the next
            log.exception("the worker died")
            self._post(orders.Crashed(f"{type(error).__name__}: {error}"))

    def _take_orders(self) -> None:
        """Wait for an order where there is nothing else to do, then take all that are there. Before it waits the engine
        makes what it may need later, a graph at a time: so much at most may an order come too late."""
        wait = not self._can_work() and not (self._engine and self._engine.prepare())
        while True:
            try:
                if wait:
                    idle = self._engine is not None and self._scheduler.empty
                    order = self.inbox.get(timeout=self.keep_alive_s if idle else None)
                else:
                    order = self.inbox.get_nowait()
            except Empty:
                if wait:
                    self._unload()
                    continue
                return
            wait = False
            self._obey(order)
            self.counts = self._scheduler.counts()

    def _obey(self, order) -> None:
        match order:
            case orders.Submit(key, say, model, keep_alive_s, clip, clip_text, speaker, beside):
                self._scheduler.submit(Job(key, say, model, keep_alive_s, clip, clip_text, speaker, beside))
            case orders.Credit(key, frames):
                if job := self._scheduler.credit(key, frames):
                    self._pass_on(job)
            case orders.Cancel(key, end):
                if job := self._leave(key):
                    self._post(orders.Finished(key, job, end))
            case orders.Keep(digest):
                if self._engine:
                    self._engine.keep(digest)
            case orders.Forget(digest):
                self._forget(digest)

    def _forget(self, digest: str) -> None:
        """Who waits to speak with the voice still does; as a one-off, so that nothing of it is kept."""
        for job in self._scheduler.waiting():
            voice = job.say and job.say.voice
            if voice and voice.digest == digest:
                job.say = replace(job.say, voice=replace(voice, name=""))
        if self._engine:
            self._engine.forget(digest)

    def _work(self) -> None:
        """At most one change of model, prefill or piece of a clip, then one frame of every row that has credit."""
        head = self._scheduler.head()
        must_change = head is not None and self._must_change(head)
        if must_change and not self._scheduler.speaks:
            self._change(head)
        elif job := self._scheduler.due():
            self._around_one_row(job, lambda job: job.row.due())
        elif not must_change and (job := self._scheduler.admit()):
            self._admit(job)
        elif job := self._scheduler.hearing():
            self._around_one_row(job, self._hear_on)
        if jobs := self._scheduler.ready():
            self._step(jobs)
        self.counts = self._scheduler.counts()
        if self._engine:
            self.memory = self._engine.memory()

    def _can_work(self) -> bool:
        """Whether there is anything to change, to prefill, to hear or to step."""
        if self._scheduler.ready() or self._scheduler.hearing():
            return True
        head = self._scheduler.head()
        return head is not None and (
            not self._scheduler.speaks if self._must_change(head) else self._scheduler.has_room
        )

    def _must_change(self, job: Job) -> bool:
        """Whether the job needs another model than the one that is there: then every row leaves first."""
        if job.model is None:
            return self._engine is not None
        return self._engine is None or job.model not in ("", self._name) or self._lacks(job)

    def _lacks(self, job: Job) -> bool:
        return job.quick and not self._engine.info.quick_digest

    def _change(self, job: Job) -> None:
        """Free the model, and load the one the job needs. A name that is no model's changes nothing."""
        if job.model is None:
            self._unload()
            return
        try:
            directory = self._models.find(job.model)
        except ModelError as error:
            self._fail(job, error.code, str(error))
            return
        if self._engine is None or directory.name != self._name:
            self._unload()
            self._load(directory, job.model)
        job.model = directory.name  # it may have been asked for as the default
        if self._engine and self._lacks(job):
            self._load_beside(job)

    def _admit(self, job: Job) -> None:
        self.keep_alive_s = job.keep_alive_s or self.keep_alive_s
        if job.say is None and not job.clip:
            self._leave(job.key)
            self._post(orders.Changed(job.key))
            return
        self._post(orders.Admitted(job.key))
        self._around_one_row(job, self._begin)

    def _begin(self, job: Job) -> None:
        self._check(job.say, self._engine.info)
        if job.clip:
            self._begin_hearing(job)
        else:
            self._prefill(job)

    def _check(self, say: Say | None, info: Info) -> None:
        """Raises RowFault where the model cannot do what is asked."""
        if say is None:
            return
        options.check(say, info.engine, info.model)
        if say.own_voice and say.own_voice not in info.voices:
            raise RowFault(f"there is no voice {say.own_voice}", "no_voice")

    def _prefill(self, job: Job) -> None:
        job.row = quick.prefill(self._engine, job.say)
        self._level(job)

    def _level(self, job: Job) -> None:
        """What comes next: the utterance, or what another voice says of it."""
        if job.say.level:
            usual_lufs = TARGET_LUFS if job.row.usual_lufs is None else job.row.usual_lufs
            gain_db, before = TARGET_LUFS - usual_lufs, job.samples.leveller
            job.samples.leveller = Leveller(self._engine.sample_rate, start_gain_db=gain_db, after=before)

    def _begin_hearing(self, job: Job) -> None:
        """Of a clip to learn, or to speak like, which may have been heard before."""
        if job.say and (heard := self._clips.pop(_digest(job), None)):
            self._heard(job, heard)
            return
        pcm = np.frombuffer(job.clip, "<i2").astype(np.float32) / 32768
        job.hearing = self._engine.hear(pcm, job.clip_text, job.say.speaker if job.say else job.speaker)

    def _hear_on(self, job: Job) -> None:
        try:
            next(job.hearing)
        except StopIteration as end:
            job.hearing = None
            self._heard(job, end.value)

    def _heard(self, job: Job, heard: Heard) -> None:
        if job.say is None:
            self._leave(job.key)
            self._post(orders.Learned(job.key, heard))
            return
        self._clips[_digest(job)] = heard
        while len(self._clips) > CLIPS:
            del self._clips[next(iter(self._clips))]
        voice = Voice("", text=job.clip_text, speaker=job.say.speaker, **vars(heard))
        job.say = replace(job.say, voice=voice)
        self._prefill(job)

    def _around_one_row(self, job: Job, work: Callable[[Job], None]) -> None:
        """What goes wrong in its work is this job's alone."""
        self.step_began_s = began_s = time.monotonic()
        try:
            work(job)
        except RowFault as fault:
            self._fail(job, fault.code, str(fault))
        except Exception as error:  # the one broad except: around one row
            log.exception("a request failed")
            self._fail(job, "engine", f"{type(error).__name__}: {error}")
        finally:
            self.step_began_s = None
        job.busy_s += time.monotonic() - began_s

    def _step(self, jobs: list[Job]) -> None:
        self.step_began_s = began_s = time.monotonic()
        results = self._engine.step([job.row for job in jobs])
        self.step_began_s = None
        took_s = time.monotonic() - began_s
        for job, result in zip(jobs, results, strict=True):
            if isinstance(result, Fault):
                self._fail(job, result.code, result.message)
            else:
                self._deliver(job, result, took_s)

    def _deliver(self, job: Job, chunk: Chunk, took_s: float) -> None:
        last = chunk.seam or chunk.end is not None
        pcm = job.samples.finish(chunk.pcm, self._engine.sample_rate, last)
        if chunk.seam:
            self._level(job)
        size = 2 * self._engine.frame_samples
        frames = [pcm[i : i + size] for i in range(0, len(pcm), size)]
        job.busy_s += took_s
        job.held.extend(orders.Frame(job.key, frame, chunk.turn, self._begun(job, chunk.piece)) for frame in frames)
        job.end = chunk.end
        self._pass_on(job)

    def _begun(self, job: Job, piece: int) -> orders.Piece | None:
        """For the first frame of each."""
        if piece == job.piece:
            return None
        job.piece = piece
        row = job.row
        sentence = row.sentences[piece] if row.sentences else piece
        return orders.Piece(piece, sentence, row.spoken[piece], row.spans_of(piece))

    def _pass_on(self, job: Job) -> None:
        """Of what the job has made, as many frames as its client's credit allows: a pause may be longer than that."""
        while job.held and job.credit > 0:
            self._post(job.held.popleft())
            self._scheduler.sent(job)
        if job.end and not job.held:
            self._leave(job.key)
            self._post(orders.Finished(job.key, job, job.end))

    def _fail(self, job: Job, code: str, message: str) -> None:
        self._leave(job.key)
        self._post(orders.Failed(job.key, code, message))

    def _leave(self, key: Key) -> Job | None:
        job = self._scheduler.remove(key)
        if job and job.row:
            self._engine.release(job.row)
        if job and job.hearing:
            job.hearing.close()
        return job

    def _open_first(self) -> None:
        """The default is loaded before anybody asks."""
        try:
            self._load(self._models.find(""), "")
        except ModelError as error:  # a name in the settings that is no model's
            self._post(orders.Unloaded(str(error)))

    def _load(self, directory: Path, asked_for: str) -> None:
        """The engine, or an error for everybody who waits for this one. The next request tries again."""
        self._post(orders.Loading())
        began_s = time.monotonic()
        try:
            self._engine = self._models.open(directory)
        except ModelError as error:
            log.error("cannot open the model: %s", error)
            self._post(orders.Unloaded(str(error)))
            while not self.inbox.empty():  # who came meanwhile
                self._obey(self.inbox.get_nowait())
            for job in self._scheduler.waiting():
                if job.model in (asked_for, directory.name):
                    self._fail(job, error.code, str(error))
            return
        self._name = directory.name
        self._scheduler.max_rows = self._engine.max_rows
        self._load_s = time.monotonic() - began_s
        log.info("%s ready in %.2f s on %s", directory.name, self._load_s, self._engine.info.backend)
        self._ready()

    def _load_beside(self, job: Job) -> None:
        """What starts quickly; or an error for who asked, and the model speaks on."""
        self._post(orders.Loading())
        began_s = time.monotonic()
        try:
            self._engine = quick.beside(self._engine, self._models)
            took_s = time.monotonic() - began_s
            self._load_s += took_s
            log.info("%s ready beside it in %.2f s", quick.QUICK, took_s)
        except ModelError as error:
            log.error("nothing goes beside the model: %s", error)
            self._fail(job, error.code, str(error))
        self._ready()

    def _ready(self) -> None:
        self.memory = self._engine.memory()
        self._post(orders.Ready(self._engine.info, self._engine.sample_rate, self._engine.max_rows, self._load_s))

    def _unload(self) -> None:
        if self._engine is None:
            return
        self._engine.close()
        self._clips.clear()
        self.memory = self._engine.memory()
        self._engine, self.keep_alive_s = None, self._default_keep_alive_s
        log.info("weights freed")
        self._post(orders.Unloaded())

    def _post(self, event) -> None:
        self.outbox.append(event)
        self._wake()


def _digest(job: Job) -> bytes:
    return hashlib.sha256(job.clip_text.encode() + b"\0" + job.clip).digest()
