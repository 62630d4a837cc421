"""Engine two behind the daemon's interface: rows draw tokens together; a piece of text is heard once it is whole.

The S3 codec makes sound of a whole piece only, and takes seconds where there is no GPU. So the first piece is a short
one, and sound is made on a thread of its own, which touches no mlx, while the next piece is drawn. A step reads
prompts, a layer at a time, and draws as many tokens as take about STEP_S: rows join and leave between steps.
"""

import gc
import logging
import math
import time
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import replace
from pathlib import Path

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from misod.engine import (
    Chunk,
    Fault,
    Heard,
    Info,
    Memory,
    ModelError,
    RowFault,
    Say,
    check_codec,
    no_sound,
    returned,
)
from misod.guard import QUIET_DBFS, SILENCE, level
from misod.kitten.around import SAMPLE_RATE, TOKEN_HZ, Around, KittenML, Voice, read_voices
from misod.kitten.decode import Batch, Past, Vocabulary, read, reading
from misod.kitten.load import load_model, read_args, read_config
from misod.kitten.manner import Manner
from misod.kitten.model import Model
from misod.kitten.row import KittenRow, Piece, Sounding
from misod.kitten.sampling import Settings
from misod.kitten.seams import Seams
from misod.kitten.spans import spans
from misod.kitten.text import pieces, without_marks
from misod.kitten.tokens import Tokens
from misod.mlx_device import backend
from misod.tokenizer_file import read_tokenizer
from misod.voices import MAX_RECORDING
from misod.voices import Voice as Learned
from misod.weights.budget import POOL_BYTES
from misod.weights.check import naming
from misod.weights.manifest import MANIFEST, check, sha256_of

log = logging.getLogger(__name__)

STEP_S, STEP_TOKENS = 0.3, 25
WAIT_S = 0.05  # for sound, where there is nothing to draw
AHEAD = 2  # pieces of a row that are drawn and not yet heard
CHARACTERS_HZ, SLACK, LEAST_TOKENS = 20.0, 1.8, 200  # a piece's speech is cut at what it could plausibly take
KEPT_VOICES = 4  # whose prompts stay read
MAX_TRIES = 3  # of one piece, drawn anew where no sound came of it
LOOK = SAMPLE_RATE // 50  # samples whose level says whether there is sound


class KittenEngine:
    """See misod.engine.Engine. The speaker of a request is the number of a voice in the model's list."""

    sample_rate = SAMPLE_RATE
    frame_samples = SAMPLE_RATE * 2 // TOKEN_HZ

    def __init__(
        self,
        model: Model,
        ids: Tokens,
        tokenizer: Tokenizer,
        manner: Manner,
        voices: list[Voice],
        around: Around,
        info: Info,
        max_rows: int,
    ):
        self.model, self.ids, self.tokenizer, self.manner, self.voices = model, ids, tokenizer, manner, voices
        self.around, self.info, self.max_rows = around, info, max_rows
        self.words = Vocabulary(model, ids, speech_only=True)
        self._read: dict[str, Past] = {}  # by a voice's digest, the least recently used first
        self._sounder = ThreadPoolExecutor(1, "sound")
        self._tokens_hz = 0.0  # how fast it draws

    @classmethod
    def open(
        cls, name: str, directory: Path, max_rows: int, around: Around | None = None, config: dict | None = None
    ) -> "KittenEngine":
        """Load the repository in `directory`, strictly, and warm up. Raises ModelError naming what is wrong."""
        try:
            config = config or read_config(directory)
            around = around or KittenML(directory, config, mx.metal.is_available())  # first: nothing is read without
            digest = check(directory).digest if (directory / MANIFEST).exists() else ""
            args, ids, path = read_args(directory, config)
            with naming(directory / "config.json", "the config of a KittenTTS 2"):
                manner, listed = Manner.from_dict(config), config.get("voices", "voices/voices.json")
            voices = read_voices(
                directory / listed, config.get("default_voice"), args.speaker_dim, ids.num_audio_tokens
            )
            tokenizer = read_tokenizer(directory / config.get("lm_dir", "lm") / "tokenizer.json", args.vocab_size)
            tokenizer.encode_special_tokens = True  # a text cannot write the marks of a prompt
            model = load_model(path, args)
            digest = digest or sha256_of(path)
        except OSError as error:
            raise ModelError(f"{error.filename}: {error.strerror}") from error
        except ValueError as error:  # each names its file
            raise ModelError(str(error)) from error
        mx.set_cache_limit(POOL_BYTES)
        own = {voice.name.lower(): number for number, voice in enumerate(voices)}
        info = Info("kitten", name, digest, backend(), codec=around.digest, voices=own)
        engine = cls(model, ids, tokenizer, manner, voices, around, info, max_rows)
        engine._warm_up()
        return engine

    def hear(self, pcm: np.ndarray, words: str, speaker: int) -> Generator[None, None, Heard]:
        """The prompt of the voice that it makes is read, too, for the next that asks for it."""
        if speaker:
            raise RowFault(f"{self.info.model} takes no speaker with a recording: that is a voice", "bad_value")
        making = self._sounder.submit(self.around.hear, pcm)
        while not making.done():
            wait([making], WAIT_S)
            yield
        embedding, speech = making.result()
        recording = np.round(pcm[:MAX_RECORDING] * 32768).astype(np.int16)
        codes, of = np.array([speech], np.int16), (self.info.codec, self.info.model)
        heard = Heard(codes, words.strip(), *of, embedding, recording)
        voice = self._learned(Learned("", text=words, speaker=speaker, **vars(heard)))
        if voice.transcript and self.manner.use_reference:
            yield from self._voice_past(voice)
        return heard

    def prefill(self, say: Say) -> KittenRow:
        """The prompt itself is read by the steps."""
        how, own = self.manner.of(say, self.info.model), self._voice(say)
        text = without_marks(say.text) if say.normalize else say.text
        parts = pieces(self.around.normalise(text) if say.normalize else text, how.longest, how.least)
        if not parts:
            raise RowFault(f"{self.info.model} has nothing to say in this text")
        emotional = self.around.tagged(say.text) if how.use_emotion is None else how.use_emotion
        row = KittenRow(
            say=say,
            style=how.style(say),
            unspoken=[Piece(part, number) for number, part in enumerate(parts)],
            pieces=len(parts),
            own=own,
            voice_digest=own.digest if say.voice or say.own_voice else "",
            how=how,
            settings=how.settings(say),
            emotion=self._encode(how.emotion) if how.emotion and emotional else [],
            seams=Seams(SAMPLE_RATE, self.frame_samples, single=len(parts) == 1, gap_s=how.gap_s),
            all_spans=spans(" ".join(parts), say.text),
        )
        self._begin(row)
        return row

    def _voice(self, say: Say) -> Voice:
        if say.own_voice:
            return self.voices[self.info.voices[say.own_voice]]
        if say.voice:
            return self._learned(say.voice)
        if say.speaker >= len(self.voices):
            listed = ", ".join(f"{i} {voice.name}" for i, voice in enumerate(self.voices))
            raise RowFault(f"the speakers of {self.info.model} are {listed}, not {say.speaker}", "bad_value")
        return self.voices[say.speaker]

    def _learned(self, voice: Learned) -> Voice:
        """Raises RowFault where it is of another model, or nothing that this one could have made."""
        check_codec(voice, self.info)
        if voice.embedding is None or voice.embedding.shape != (self.model.args.speaker_dim,):
            raise no_sound(voice, self.info)
        if len(voice.codes) != 1 or voice.codes.max() >= self.ids.num_audio_tokens:
            raise no_sound(voice, self.info)
        pcm = voice.recording.astype(np.float32) / 32768
        return Voice(voice.name, voice.digest, voice.embedding, voice.codes[0].tolist(), voice.spoken, pcm)

    def step(self, rows: list[KittenRow], at_most_s: float | None = None) -> list[Chunk | Fault]:
        """`at_most_s`: others wait, so be done in about that, and do not wait for sound."""
        step_s = STEP_S if at_most_s is None else at_most_s
        self._read_on(rows, step_s)
        drawing = [row for row in rows if row.batch and len(row.sounds) < AHEAD]
        if drawing:
            self._draw(drawing, max(1, min(STEP_TOKENS, int(step_s * self._tokens_hz))))
        elif sounds := [row.sounds[0].pcm for row in rows if row.sounds and not row.reading]:
            wait(sounds, WAIT_S if at_most_s is None else 0.0, FIRST_COMPLETED)
        return [self._heard(row) for row in rows]

    def release(self, row: KittenRow) -> None:
        for sounding in row.sounds:
            sounding.pcm.cancel()
        row.batch = row.reading = None

    def keep(self, digest: str) -> None:
        """A voice's file has all that takes long to make of a recording; its prompt is read anew."""

    def forget(self, digest: str) -> None:
        self._read.pop(digest, None)
        self._sounder.submit(self.around.forget, digest)

    def prepare(self) -> bool:
        """Nothing is compiled ahead."""
        return False

    def memory(self) -> Memory:
        return Memory(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory())

    def close(self) -> None:
        self._sounder.shutdown(cancel_futures=True)
        self._read.clear()
        self.model = self.words = self.around = None
        gc.collect()
        mx.clear_cache()

    def _begin(self, row: KittenRow) -> None:
        """The next piece: its prompt is to be read, then it is drawn."""
        row.piece, row.ids, row.batch = row.unspoken.pop(0), [], None
        row.most = 1000
        if row.pieces > 1:
            row.most = max(LEAST_TOKENS, int(len(row.piece.text) / CHARACTERS_HZ * TOKEN_HZ * SLACK))
        if row.say.max_seconds:
            row.most = min(row.most, math.ceil(row.say.max_seconds * TOKEN_HZ) - row.drawn)
        row.spoken = [*row.spoken[: row.piece.number], row.piece.text]
        said = len(" ".join(row.spoken))
        row.spans = [span for span in row.all_spans if span[1] <= said]
        row.reading = self._prompt(row)

    def _prompt(self, row: KittenRow) -> Generator[None, None, None]:
        """Read what stands before the piece, and the piece."""
        ids, voice = self.ids.text(self._encode(row.piece.text), row.emotion), row.own
        if row.how.use_reference and voice.transcript:
            past = yield from self._voice_past(voice)
            past = yield from reading(self.model, ids, past=past)
        else:
            past = yield from reading(self.model, [self.ids.start_id, *ids], self._speaker_row(voice))
        row.batch = Batch.start(self.words, past, row.settings, _seed(row, row.piece))

    def _read_on(self, rows: list[KittenRow], step_s: float) -> None:
        """The prompts of those that have just begun, for about so long."""
        began_s = time.monotonic()
        while begun := [row for row in rows if row.reading]:
            for row in begun:
                if next(row.reading, row) is row:  # it is read
                    row.reading = None
            if time.monotonic() - began_s >= step_s:
                return

    def _draw(self, rows: list[KittenRow], count: int) -> None:
        """Some tokens for each; a piece that is whole goes to be sounded, and the next is begun."""
        batch = Batch.of([row.batch for row in rows])
        drawn, finite = batch.run(count)
        for row, own, tokens, good in zip(rows, batch.split(), drawn.tolist(), finite, strict=True):
            row.batch = own
            row.fault = "" if good else "logits were not finite"
            ended = -1 in tokens
            row.ids += tokens[: tokens.index(-1)] if ended else tokens
            if not row.fault and (ended or len(row.ids) >= row.most):
                self._sound(row, "" if ended and len(row.ids) <= row.most else "cap")

    def _sound(self, row: KittenRow, flaw: str) -> None:
        tokens, before = self.ids.speech(row.ids[: row.most]), row.drawn
        row.drawn += min(len(row.ids), row.most)
        if row.say.max_seconds and row.unspoken and row.drawn >= row.say.max_seconds * TOKEN_HZ:
            row.unspoken, flaw = [], "cap"
        pcm = self._sounder.submit(self.around.sound, row.own, tokens, _seed(row, row.piece), row.how.decoder)
        row.sounds.append(Sounding(pcm, row.piece, before, flaw))
        row.batch = None
        if row.unspoken:
            self._begin(row)

    def _heard(self, row: KittenRow) -> Chunk | Fault:
        """What there is to hear of the row since the step before."""
        if row.fault:
            return Fault(row.fault)
        parts, end = [np.zeros(0, np.float32)], None
        most = row.say.max_seconds and int(row.say.max_seconds * SAMPLE_RATE)
        if row.sounds and row.sounds[0].pcm.done():  # one: a chunk is of one piece
            sounding = row.sounds.popleft()
            if error := sounding.pcm.exception():  # of torch, or of a file: this row's alone
                log.error("no sound was made of a piece", exc_info=error)
                return Fault(f"{type(error).__name__}: {error}")
            pcm = sounding.pcm.result()
            whole = most is None or row.seams.samples + len(pcm) < most
            if whole and _silent(pcm):
                if sounding.piece.tries == MAX_TRIES - 1:
                    return Fault(f"no sound was made of a piece, {MAX_TRIES} times over", "degenerate")
                self._draw_anew(row, sounding)
                return Chunk(parts[0])
            row.flaw, row.heard = row.flaw or sounding.flaw, sounding.piece.number
            last = not (row.sounds or row.reading or row.batch or row.unspoken)
            parts.append(row.seams.join(pcm, last, most))
            if last or row.seams.samples == most:
                end = "cap" if row.seams.samples == most else row.flaw or "eos"
        return Chunk(np.concatenate(parts), end, piece=row.heard)

    def _draw_anew(self, row: KittenRow, silent: Sounding) -> None:
        """From this piece on: those after it say what they would have said, for each has a seed of its own."""
        row.mended.append(f"{SILENCE} in piece {silent.piece.number + 1}")
        after = [other.piece for other in row.sounds] + ([row.piece] if row.batch or row.reading else [])
        for other in row.sounds:
            other.pcm.cancel()
        row.sounds.clear()
        row.drawn = silent.before
        row.unspoken = [replace(silent.piece, tries=silent.piece.tries + 1), *after, *row.unspoken]
        self._begin(row)

    def _voice_past(self, voice: Voice) -> Generator[None, None, Past]:
        """What every prompt of the voice begins with, read once."""
        past = self._read.pop(voice.digest, None)
        if past is None:
            ids = self.ids.voice(self._encode(voice.transcript), voice.speech)
            past = yield from reading(self.model, ids, self._speaker_row(voice))
        self._read[voice.digest] = past
        while len(self._read) > KEPT_VOICES:
            del self._read[next(iter(self._read))]
        return past

    def _speaker_row(self, voice: Voice) -> mx.array:
        return self.model.speaker_row(mx.array(voice.embedding))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _warm_up(self) -> None:
        """Build the kernels, read the default voice, and see how fast it draws."""
        voice = returned(self._voice_past(self.voices[0]))
        past = read(self.model, self.ids.text(self._encode("Warm up.")), past=voice)
        batch = Batch.start(self.words, past, Settings(), 0)
        batch.run(1)
        began_s = time.monotonic()
        batch.run(2)
        self._tokens_hz = 2 / (time.monotonic() - began_s)
        mx.clear_cache()
        mx.reset_peak_memory()


def _seed(row: KittenRow, piece: Piece) -> int:
    """Of what is drawn, or sounded, for it: no two are the same."""
    return (row.say.seed + 1 + piece.number + (piece.tries << 32)) % 2**63


def _silent(pcm: np.ndarray) -> bool:
    """Whether nothing of it can be heard."""
    looks = np.pad(pcm, (0, -len(pcm) % LOOK)).reshape(-1, LOOK)
    return all(level(look) < QUIET_DBFS for look in looks)
