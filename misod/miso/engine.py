"""Engine one behind the daemon's interface: each step makes one 80 ms frame for every row.

Rows join and leave at any frame. A row's text is read piece by piece: each piece is a prompt of its own,
while the codec's state runs on, so that there is no click between them.
"""

import gc
import hashlib
import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path

import mlx.core as mx
import numpy as np

from misod import text
from misod.engine import Chunk, Fault, Heard, Info, Memory, ModelError, PrefixRoom, Row, RowFault, Say
from misod.guard import SILENCE, Watch
from misod.miso.cache import KVCache
from misod.miso.compiled import Compiled, Plain
from misod.miso.context import read_piece, remember
from misod.miso.depth import check_depth, deepest, segment_codes, there
from misod.miso.load import Speech, check_codec, load_model, read_config
from misod.miso.mimi import Mimi, load_mimi
from misod.miso.model import Model
from misod.miso.prefix import Prefixes
from misod.miso.prompt import Prompt
from misod.miso.recordings import check_speaker, hear, past_of, segment_of
from misod.miso.sampling import Settings
from misod.miso.streams import Stream, Streams
from misod.mlx_device import backend, compiles
from misod.style import chosen
from misod.voices import Segment
from misod.weights.budget import POOL_BYTES
from misod.weights.manifest import Manifest, check

TAIL_FRAMES = 1  # after the last: the codec still holds some of it
HEARD_AT_ONCE = 1  # frame of silence before speech, as good speech has; those after it wait for a sound
MAX_TRIES = 3  # of one piece, drawn anew where it went wrong


@dataclass
class MisoRow(Row):
    reader: text.Script | None = None
    reading: Generator[None, None, None] | None = None  # of what stands before its next frame
    turn: text.Turn | None = None  # whose the piece being spoken is
    mark: tuple[int, int] = (0, 0)  # its turn, and which sentence of that it is of
    voices: list[int] = field(default_factory=list)  # the speaker of each piece in `spoken`
    key: mx.array | None = None  # split once a frame
    cache: KVCache | None = None
    shadow: KVCache | None = None  # with guidance: of the same codes, and no text
    frame: tuple[mx.array, mx.array] | None = None  # the next: codes (1, K), finite (1,); in flight
    codec: Stream | None = None
    voice: Segment | None = None  # before all context, and never dropped
    frames: int = 0
    max_frames: int | None = None  # of the whole utterance
    context: list[Segment] = field(default_factory=list)  # what was spoken before this piece, oldest first
    codes: list[np.ndarray] = field(default_factory=list)  # (K,) each, of this piece
    prompt_h: mx.array | None = None  # of its prompt's end: where its first frame is drawn from
    starts: tuple[int, ...] = ()  # positions of its first frame in cache and shadow
    piece_floor: int = 0  # the frame before which this piece does not end
    piece_end: int = 0  # the frame at which it is cut
    watch: Watch | None = None
    held: list[np.ndarray] = field(default_factory=list)  # pcm of quiet frames that nobody was given yet
    heard: tuple[Stream | None, int] = (None, 0)  # codec and frames as of the last frame that was given away
    tries: int = 0  # how often this piece was drawn anew
    flaw: str = ""  # cap, silence: how a piece ended that did not end of itself

    @property
    def past(self) -> list[Segment]:
        """All that stands before the piece."""
        return [self.voice, *self.context] if self.voice else self.context


class MisoEngine:
    """See misod.engine.Engine. `compiled`: whether its frames are; None: where that pays."""

    def __init__(
        self,
        model: Model,
        mimi: Mimi,
        prompt: Prompt,
        speech: Speech,
        info: Info,
        max_rows: int,
        prefixes: Prefixes,
        compiled: bool | None = None,
    ):
        self.model, self.mimi, self.prompt, self.speech, self.prefixes = model, mimi, prompt, speech, prefixes
        self.info, self.max_rows = info, max_rows
        self.sample_rate = mimi.config.sample_rate
        self.frame_samples = mimi.config.frame_samples
        self.frame_rate_hz = self.sample_rate / self.frame_samples
        self.codes = mimi.config.bins  # those that have a sound
        compiled = compiles() if compiled is None else compiled
        self.frames = Compiled(model, self.codes, max_rows) if compiled else Plain(model, self.codes)
        self.streams = Streams.of(mimi)
        self._silence = self._codes_of_silence()

    @classmethod
    def open(
        cls,
        name: str,
        directory: Path,
        max_rows: int,
        room: PrefixRoom | None = None,
        compiled: bool | None = None,
    ) -> "MisoEngine":
        """Load the model in `directory`, strictly, and warm it up. Raises ModelError naming what is wrong."""
        text.warm()  # while the weights are read
        try:
            manifest = check(directory)
            args, speech, quantization = read_config(directory / "config.json")
            model = load_model([directory / name for name in manifest.weights], args, quantization)
            mimi = load_mimi(directory / "codec")
            prompt = Prompt.open(directory / "tokenizer.json", args.audio_num_codebooks, args.text_vocab_size)
            check_codec(directory, args, mimi)
        except OSError as error:
            raise ModelError(f"{error.filename}: {error.strerror}") from error
        except ValueError as error:  # each names its file
            raise ModelError(str(error)) from error
        mx.set_cache_limit(POOL_BYTES)
        codec = manifest.files["codec/model.safetensors"].sha256
        info = Info(engine="miso", model=name, digest=manifest.digest, backend=backend(), codec=codec)
        prefixes = Prefixes(room or PrefixRoom(), _digest_of_reading(manifest), model.cache_layout, model.dtype)
        engine = cls(model, mimi, prompt, speech, info, max_rows, prefixes, compiled)
        try:
            engine._warm_up()
        except RowFault as fault:
            raise ModelError(f"{directory}: the model cannot speak: {fault}") from None
        return engine

    def hear(self, pcm: np.ndarray, words: str, speaker: int) -> Generator[None, None, Heard]:
        return hear(self, pcm, words, speaker)

    def prefill(self, say: Say) -> MisoRow:
        turns = self._turns(say)
        past, style = past_of(self, say), chosen(self.speech.presets, say.preset, say.sampling)
        check_depth(style.depth, self.model.args.audio_num_codebooks, self.info.model)
        row = MisoRow(
            say=say,
            style=style,
            usual_lufs=self.speech.loudness_lufs.get(turns[0].speaker),
            reader=text.Script(
                turns, lambda t: text.Reader(t, self.speech.limits, normalize=say.normalize, emoji=say.emoji or "drop")
            ),
            key=mx.random.key(say.seed),
            codec=self.streams.open(),
            max_frames=say.max_seconds and max(1, math.floor(say.max_seconds * self.frame_rate_hz)),
            voice=segment_of(self, say.voice) if say.voice else None,
            voice_digest=say.voice.digest if say.voice else "",
            context=past,
        )
        if (piece := self._take_piece(row)) is None:
            raise RowFault(f"{self.info.model} has no letters for any of this text")
        self._begin(row, piece)
        self._read_on(row)
        return row

    def _turns(self, say: Say) -> list[text.Turn]:
        """Raises RowFault where a script is malformed, or wants a speaker that the model has not."""
        try:
            turns = text.turns(say.text) if say.script else [text.Turn(0, say.speaker, say.text)]
        except ValueError as error:
            raise RowFault(str(error), "bad_value") from None
        check_speaker(self, max(turn.speaker for turn in turns))
        return turns

    def step(self, rows: list[MisoRow]) -> list[Chunk | Fault]:
        """A frame of every row that speaks; of those that read, one reads on: so much later comes the others' frame."""
        speaking = [row for row in rows if not row.reading]
        made = dict(zip(map(id, speaking), self._step(speaking), strict=True)) if speaking else {}
        # at once where a piece has just ended, if nobody has waited
        reading = min((row for row in rows if row.reading), key=lambda row: id(row) in made, default=None)
        if reading:
            try:
                self._read_on(reading)
            except RowFault as fault:
                made[id(reading)] = Fault(str(fault), fault.code)
        return [made.get(id(row)) or self._silent(row) for row in rows]

    def _silent(self, row: MisoRow) -> Chunk:
        return Chunk(np.zeros(0, np.float32), turn=row.turn.number, piece=len(row.spoken) - 1)

    def _step(self, rows: list[MisoRow]) -> list[Chunk | Fault]:
        """Each row's codes are already in flight; while its sound is made, so are the next frame's."""
        mx.eval([row.frame for row in rows])
        codes, finite = (np.concatenate([np.array(row.frame[part]) for row in rows]) for part in (0, 1))
        if (has := self._there(rows)) is not None:
            codes *= has
        heard = [i for i, row in enumerate(rows) if finite[i] and codes[i].any()]  # all zeros is the EOS frame
        pcm = dict(zip(heard, self._advance([rows[i] for i in heard], codes[heard]), strict=True)) if heard else {}
        return [
            self._sounded(row, pcm.get(i)) if finite[i] else Fault(f"logits were not finite at frame {row.frames}")
            for i, row in enumerate(rows)
        ]

    def release(self, row: MisoRow) -> None:
        if row.reader:
            row.reader.close()
        row.reading = row.reader = row.cache = row.shadow = row.frame = row.codec = row.key = row.prompt_h = None
        row.heard = None, row.frames

    def keep(self, digest: str) -> None:
        self.prefixes.store(digest)

    def forget(self, digest: str) -> None:
        self.prefixes.forget(digest)

    def prepare(self) -> bool:
        return self.frames.prepare()

    def memory(self) -> Memory:
        kept = self.prefixes
        counts = kept.bytes, kept.hits, kept.misses, kept.evictions
        graphs = (self.frames.graphs, self.frames.graphs_s) if self.frames else ()
        return Memory(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory(), *counts, *graphs)

    def close(self) -> None:
        text.cool()
        self.prefixes.close()
        self.model = self.mimi = self.streams = self.frames = None
        gc.collect()
        mx.clear_cache()

    def _advance(self, rows: list[MisoRow], codes: np.ndarray) -> np.ndarray:
        """Sound the frame codes (B, K) and start on the next -> pcm (B, frame_samples)."""
        has = self._there(rows)
        sound = self.streams.begin(codes[:, :, None], [row.codec for row in rows], has)  # beside the next frame
        shadows = [i for i, row in enumerate(rows) if row.shadow]
        both = [*range(len(rows)), *shadows]
        caches = [row.cache for row in rows] + [rows[i].shadow for i in shadows]
        for row, own in zip(rows, codes, strict=True):
            row.codes.append(own)
            row.frames += 1
        read = mx.array(codes[both])
        self._draw(rows, self.frames.read(read, None if has is None else mx.array(has[both]), caches))
        pcm, codecs = sound()
        for row, codec in zip(rows, codecs, strict=True):
            row.codec = codec
        return pcm

    def _there(self, rows: list[MisoRow]) -> np.ndarray | None:
        return there([row.style.depth for row in rows], self.model.args.audio_num_codebooks)

    def _draw(self, rows: list[MisoRow], last_h: mx.array) -> None:
        """Put each row's next frame in flight, from last_h (B + shadows, D)."""
        depth = deepest([row.style.depth for row in rows], self.model.args.audio_num_codebooks)
        keys, settings = [row.key for row in rows], [_settings(row) for row in rows]
        codes, finite, keys = self.frames.draw(last_h, keys, settings, depth)
        for i, row in enumerate(rows):
            row.frame, row.key = (codes[i : i + 1], finite[i : i + 1]), keys[i]
        mx.async_eval([row.frame for row in rows])

    def _sounded(self, row: MisoRow, pcm: np.ndarray | None) -> Chunk | Fault:
        """What the step made for the row. pcm None: EOS."""
        piece = len(row.spoken) - 1  # after this the row may be at its next
        chunk = self._hold(row, self._settle(row, pcm))
        return chunk if isinstance(chunk, Fault) else replace(chunk, piece=piece)

    def _settle(self, row: MisoRow, pcm: np.ndarray | None) -> Chunk | Fault:
        """What becomes of the row after this step: goes on, goes on to its next piece, or ends. pcm None: EOS."""
        ended, pcm = pcm is None, np.zeros(0, np.float32) if pcm is None else pcm
        if row.max_frames and row.frames >= row.max_frames:
            return Chunk(pcm, "cap", row.turn.number)
        if not ended and (wrong := row.watch.see(row.codes[-1], pcm)):
            if row.tries < MAX_TRIES:
                return Chunk(self._draw_anew(row, wrong, pcm), turn=row.turn.number)
            if wrong != SILENCE:
                return Fault(f"the speech went wrong ({wrong}), {MAX_TRIES} times over", "degenerate")
            ended, row.flaw = True, SILENCE
        if not ended and row.frames < row.piece_end:
            return Chunk(pcm, turn=row.turn.number)
        row.flaw = row.flaw if ended else "cap"
        if row.frames == 0:
            return Fault("the model ended before it made a sound")
        return self._go_on(row, pcm)

    def _hold(self, row: MisoRow, chunk: Chunk | Fault) -> Chunk | Fault:
        """Silence where speech should begin stays here until a sound: where none comes it is drawn anew, unheard."""
        if isinstance(chunk, Fault):
            return chunk
        seen = row.watch.frames - row.watch.first
        if chunk.end is None and not row.watch.spoke and seen > HEARD_AT_ONCE:
            row.held.append(chunk.pcm)
            return replace(chunk, pcm=np.zeros(0, np.float32))
        if row.held:
            chunk, row.held = replace(chunk, pcm=np.concatenate([*row.held, chunk.pcm])), []
        row.heard = row.codec, row.frames
        return chunk

    def _go_on(self, row: MisoRow, pcm: np.ndarray) -> Chunk | Fault:
        """A piece is over: its last pcm, what is between it and the next, and the next begun; or the end."""
        turn, pause_s, told = row.turn, row.pause_s, len(row.spans)
        piece = self._take_piece(row)
        if piece is None:
            if row.say.dialogue and not row.flaw:
                remember(self, row)
            return Chunk(np.concatenate([pcm, self._hush(row, TAIL_FRAMES)]), row.flaw or "eos", turn.number)
        if row.turn is not turn:
            pause_s = max(pause_s, row.turn.pause_s)
        pcm = np.concatenate([pcm, self._hush(row, round(pause_s * self.frame_rate_hz))])
        if row.max_frames and row.frames >= row.max_frames:
            row.spoken.pop()  # it was not
            row.voices.pop()
            row.sentences.pop()
            del row.spans[told:]
            return Chunk(pcm, "cap", turn.number)
        self._begin(row, piece)
        return Chunk(pcm, turn=turn.number)

    def _hush(self, row: MisoRow, frames: int) -> np.ndarray:
        """pcm of so much silence, through the codec: what it still holds of the last sound comes out first."""
        if row.max_frames:
            frames = min(frames, row.max_frames - row.frames)
        if frames <= 0:
            return np.zeros(0, np.float32)
        codes = np.repeat(self._silence[None, :, None], frames, axis=2)
        pcm, (row.codec,) = self.streams.step(codes, [row.codec])
        row.frames += frames
        return np.array(pcm[0])

    def _draw_anew(self, row: MisoRow, wrong: str, pcm: np.ndarray) -> np.ndarray:
        """From the last good frame on, with new noise. What was heard was heard, there the codec's state runs on:
        the last frame's pcm, or none where it is taken back with those held."""
        good, made = row.watch.began, row.frames
        row.mended.append(f"{wrong} at frame {row.frames}")
        row.tries += 1
        if not row.watch.spoke:
            row.codec, row.frames = row.heard
            row.held, pcm = [], pcm[:0]
        wasted = len(row.codes) - good - (made - row.frames)  # heard in vain
        row.piece_floor, row.piece_end = row.piece_floor + wasted, row.piece_end + wasted
        row.codes, row.watch = row.codes[:good], Watch(self.frame_rate_hz, good)
        caches = [cache for cache in (row.cache, row.shadow) if cache]
        for cache, start in zip(caches, row.starts, strict=True):
            cache.rewind(start + max(0, good - 1))
        last_h = row.prompt_h
        if good > 0:
            last = mx.array(np.repeat(row.codes[-1][None], len(caches), axis=0))
            last_h = self.frames.read(last, _optional(self._there([row] * len(caches))), caches)
        self._draw([row], last_h)
        return pcm

    def _take_piece(self, row: MisoRow) -> str | None:
        """The next of the row's text, told to the receipt; None after the last."""
        following = row.reader.next()
        row.unread = row.reader.unread
        if following is None:
            return None
        row.turn, read = following
        shift = sum(len(piece) + 1 for piece in row.spoken)
        row.spans += [(start + shift, end + shift, *source) for start, end, *source in read.spans]
        row.spoken.append(read.text)
        before, row.mark = row.mark, (row.turn.number, read.sentence)
        row.sentences.append(row.sentences[-1] + (row.mark != before) if row.sentences else 0)
        row.voices.append(row.turn.speaker)
        row.pause_s = read.pause_s
        return read.text

    def _begin(self, row: MisoRow, piece: str) -> None:
        """The piece is to be read, and then spoken."""
        follows = bool(row.codes)
        if follows:
            row.context.append(Segment(row.voices[-2], row.spoken[-2], segment_codes(row.codes, row.style.depth)))
            if row.say.dialogue:
                row.said.append(row.context[-1])
        row.codes, row.tries, row.watch = [], 0, Watch(self.frame_rate_hz)
        row.reading = self._reading(row, piece, follows)

    def _read_on(self, row: MisoRow) -> None:
        """A step of what stands before the next frame; after the last that frame is in flight. Raises RowFault."""
        if next(row.reading, row) is row:
            row.reading = None

    def _reading(self, row: MisoRow, piece: str, follows: bool) -> Generator[None, None, None]:
        """Prefill the piece in steps, and draw. `follows`: the cache holds what was spoken just now."""
        words, pace = len(piece.split()), self.speech.pace
        cap_frames = math.ceil(pace.cap_s(words) * self.frame_rate_hz)
        last_h, room = yield from read_piece(self, row, piece, cap_frames, follows)
        row.prompt_h, row.starts = last_h, tuple(cache.offset for cache in (row.cache, row.shadow) if cache)
        row.piece_floor = row.frames + max(1, math.floor(pace.floor_s(words) * self.frame_rate_hz))
        row.piece_end = row.frames + min(room, cap_frames)
        self._draw([row], last_h)

    def read_rows(self, tokens: np.ndarray, mask: np.ndarray, cache: KVCache) -> mx.array:
        parts = [tokens, mask]
        if tokens.min() < 0:  # frames of fewer codebooks
            parts = [np.maximum(tokens, 0), mask, tokens[:, :-1] >= 0]
        return self.model.read(self.model.embed_prompt(*map(mx.array, parts)), cache)

    def _codes_of_silence(self) -> np.ndarray:
        """(K,), once the codec has forgotten that there was ever anything else."""
        codes = self.mimi.encode(mx.zeros((1, self.frame_samples * 12)))
        return np.array(codes)[0, : self.model.args.audio_num_codebooks, -1].astype(np.int32)

    def _warm_up(self) -> None:
        """Throwaway frames, so that the first request finds kernels built and grammars read."""
        row = self.prefill(Say(text="Warm-up, one 2 three.", seed=0))
        for _ in range(3):
            self.step([row])
        mx.clear_cache()
        mx.reset_peak_memory()


def _optional(array: np.ndarray | None) -> mx.array | None:
    return None if array is None else mx.array(array)


def _settings(row: MisoRow) -> Settings:
    """For the frame that is drawn next."""
    style = row.style
    return Settings(
        temperature=style.temperature_at(row.frames),
        top_k=style.top_k,
        top_p=style.top_p,
        min_p=style.min_p,
        guidance=style.guidance,
        may_end=row.frames >= row.piece_floor,
    )


def _digest_of_reading(manifest: Manifest) -> str:
    """Of all that decides what the model makes of a text: weights, tokenizer, config."""
    parts = manifest.digest, *(manifest.files[name].sha256 for name in ("tokenizer.json", "config.json"))
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()
