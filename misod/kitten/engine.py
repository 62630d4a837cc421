"""Engine two behind the daemon's interface: rows draw tokens together; a piece of text is heard once it is whole.

The S3 codec makes sound of a whole piece only, and takes seconds where there is no GPU. So the first piece is a short
one, and sound is made on a thread of its own, which touches no mlx, while the next piece is drawn. A step draws as
many tokens as take about STEP_S: rows join and leave between steps.
"""

import gc
import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Generator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from pathlib import Path

import mlx.core as mx
import numpy as np
from tokenizers import Tokenizer

from misod.engine import Chunk, Fault, Heard, Info, Memory, ModelError, Row, RowFault, Say
from misod.kitten.around import SAMPLE_RATE, TOKEN_HZ, Around, KittenML, Voice, read_voices
from misod.kitten.decode import Batch, Past, Vocabulary, read
from misod.kitten.load import load_model, read_args
from misod.kitten.model import Model
from misod.kitten.sampling import Settings
from misod.kitten.seams import Seams
from misod.kitten.text import FIRST, pieces, without_marks
from misod.kitten.tokens import Tokens
from misod.mlx_device import backend
from misod.style import Style, chosen
from misod.weights.budget import POOL_BYTES
from misod.weights.check import naming

STEP_S, STEP_TOKENS = 0.3, 25
WAIT_S = 0.05  # for sound, where there is nothing to draw
AHEAD = 2  # pieces of a row that are drawn and not yet heard
CHARACTERS_HZ, SLACK, LEAST_TOKENS = 20.0, 1.8, 200  # a piece's speech is cut at what it could plausibly take
KEPT_VOICES = 4  # whose prompts stay read
OURS = ("temperature", "top_k", "top_p", "min_p")  # of misod.style.Style; the rest is engine one's


@dataclass(frozen=True)
class Manner:
    """What config.json says of how to speak."""

    presets: dict[str, Style]
    window: int | None  # of the repetition penalty
    emotion: str  # the control that goes before a text with expression tags; "": none
    use_recording: bool  # in a prompt, beside the speaker's embedding
    longest: int  # characters of a piece

    @classmethod
    def from_dict(cls, config: dict) -> "Manner":
        how = config.get("generation", {})
        presets = {name: Style(**preset) for name, preset in config["decode_presets"].items()}
        presets["natural"] = presets[config.get("default_preset", "stable")]
        window, emotion = how.get("repetition_window"), how.get("emotion_control") or ""
        longest = how.get("chunk_chars", 380)
        if longest < FIRST:
            raise ValueError(f"pieces of {longest} characters: {FIRST} is the least")
        return cls(presets, window, emotion, how.get("use_reference_prompt", True), longest)


@dataclass
class KittenRow(Row):
    unspoken: list[str] = field(default_factory=list)  # pieces after the one that is spoken
    own: Voice | None = None
    emotion: list[int] = field(default_factory=list)
    batch: Batch | None = None  # of this row alone; None: all is drawn
    ids: list[int] = field(default_factory=list)  # drawn for this piece
    most: int = 0  # ids of this piece
    drawn: int = 0  # ids of the pieces before it
    sounds: deque[tuple[Future, bool]] = field(
        default_factory=deque
    )  # pieces in the making, and whether it is the last
    seams: Seams | None = None
    heard: int = 0  # pieces
    flaw: str = ""  # cap: a piece that did not end of itself
    fault: str = ""  # the row cannot go on


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
        self._read: dict[str, Past] = {}  # by voice, the least recently used first
        self._sounder = ThreadPoolExecutor(1, "sound")
        self._step_tokens = 1

    @classmethod
    def open(cls, name: str, directory: Path, max_rows: int, around: Around | None = None) -> "KittenEngine":
        """Load the repository in `directory`, strictly, and warm up. Raises ModelError naming what is wrong."""
        around = around or KittenML(mx.metal.is_available())  # first: where it is missing, nothing need be read
        try:
            args, ids, path = read_args(directory)
            with naming(directory / "config.json", "the config of a KittenTTS 2"):
                config = json.loads((directory / "config.json").read_bytes())
                manner, listed = Manner.from_dict(config), config.get("voices", "voices/voices.json")
            voices = read_voices(
                directory / listed, config.get("default_voice"), args.speaker_dim, ids.num_audio_tokens
            )
            tokenizer = _read_tokenizer(directory / config.get("lm_dir", "lm") / "tokenizer.json", args.vocab_size)
            model = load_model(path, args)
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ModelError(f"{error.filename}: {error.strerror}") from error
        except ValueError as error:  # each names its file
            raise ModelError(str(error)) from error
        mx.set_cache_limit(POOL_BYTES)
        info = Info(engine="kitten", model=name, digest=digest, backend=backend())
        engine = cls(model, ids, tokenizer, manner, voices, around, info, max_rows)
        engine._warm_up()
        return engine

    def hear(self, pcm: np.ndarray, words: str, speaker: int) -> Generator[None, None, Heard]:
        raise RowFault(f"{self.info.model} does not learn voices in this version", "bad_voice")
        yield

    def prefill(self, say: Say) -> KittenRow:
        self._refuse(say)
        text = without_marks(say.text) if say.normalize else say.text
        unspoken = pieces(self.around.normalise(text) if say.normalize else text, self.manner.longest)
        if not unspoken:
            raise RowFault(f"{self.info.model} has nothing to say in this text")
        tagged = self.manner.emotion and self.around.tagged(say.text)
        row = KittenRow(
            say=say,
            style=chosen(self.manner.presets, say.preset, say.sampling),
            unspoken=unspoken,
            own=self.voices[say.speaker],
            emotion=self._encode(self.manner.emotion) if tagged else [],
            seams=Seams(SAMPLE_RATE, self.frame_samples, single=len(unspoken) == 1),
        )
        self._begin(row)
        return row

    def step(self, rows: list[KittenRow]) -> list[Chunk | Fault]:
        drawing = [row for row in rows if row.batch and len(row.sounds) < AHEAD]
        if drawing:
            self._draw(drawing)
        else:
            wait([row.sounds[0][0] for row in rows], WAIT_S, FIRST_COMPLETED)
        return [self._heard(row) for row in rows]

    def release(self, row: KittenRow) -> None:
        for sound, _ in row.sounds:
            sound.cancel()
        row.batch = None

    def keep(self, digest: str) -> None:
        """As `forget`."""

    def forget(self, digest: str) -> None:
        """Nothing is kept of voices that are learned: there are none."""

    def memory(self) -> Memory:
        return Memory(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory())

    def close(self) -> None:
        self._sounder.shutdown(cancel_futures=True)
        self._read.clear()
        self.model = self.words = self.around = None
        gc.collect()
        mx.clear_cache()

    def _refuse(self, say: Say) -> None:
        """Raises RowFault where the request has what only engine one does."""
        name = self.info.model
        if say.voice:
            raise RowFault(f"{name} cannot speak as a voice that another model learned", "bad_voice")
        for option, given in (("script", say.script), ("session", say.dialogue is not None)):
            if given:
                raise RowFault(f"{option} is no option of {name}", "bad_value")
        for option, value in say.sampling.items():
            if value is not None and option not in OURS:
                raise RowFault(f"{option} is no option of {name}: it has {', '.join(OURS)}", "bad_value")
        if say.speaker >= len(self.voices):
            listed = ", ".join(f"{i} {voice.name}" for i, voice in enumerate(self.voices))
            raise RowFault(f"the speakers of {name} are {listed}, not {say.speaker}", "bad_value")

    def _begin(self, row: KittenRow) -> None:
        """Read the prompt of the next piece."""
        piece, single = row.unspoken.pop(0), not row.unspoken and not row.spoken
        ids, past = self.ids.text(self._encode(piece), row.emotion), None
        if self.manner.use_recording:
            past = self._voice_past(row.own)
        else:
            ids = [self.ids.start_id, *ids]
        past = read(self.model, ids, None if past else self._speaker_row(row.own), past)
        style = row.style
        settings = Settings(
            style.temperature, style.top_k, style.top_p, style.min_p, repetition_window=self.manner.window
        )
        row.batch = Batch.start(self.words, past, settings, _seed(row))
        row.most = 1000 if single else max(LEAST_TOKENS, int(len(piece) / CHARACTERS_HZ * TOKEN_HZ * SLACK))
        if row.say.max_seconds:
            row.most = min(row.most, math.ceil(row.say.max_seconds * TOKEN_HZ) - row.drawn)
        row.ids = []
        row.spoken.append(piece)

    def _draw(self, rows: list[KittenRow]) -> None:
        """Some tokens for each; a piece that is whole goes to be sounded, and the next is begun."""
        batch = Batch.of([row.batch for row in rows])
        drawn, finite = batch.run(self._step_tokens)
        for row, own, tokens, good in zip(rows, batch.split(), drawn.tolist(), finite, strict=True):
            row.batch = own
            row.fault = "" if good else "logits were not finite"
            ended = -1 in tokens
            row.ids += tokens[: tokens.index(-1)] if ended else tokens
            if not row.fault and (ended or len(row.ids) >= row.most):
                row.flaw = row.flaw if ended and len(row.ids) <= row.most else "cap"
                self._sound(row, self.ids.speech(row.ids[: row.most]))

    def _sound(self, row: KittenRow, tokens: list[int]) -> None:
        row.drawn += min(len(row.ids), row.most)
        if not tokens:
            row.fault = "the model ended before it made a sound"
            return
        if row.say.max_seconds and row.unspoken and row.drawn >= row.say.max_seconds * TOKEN_HZ:
            row.unspoken, row.flaw = [], "cap"
        sound = self._sounder.submit(self.around.sound, row.own, tokens, _seed(row))
        row.sounds.append((sound, not row.unspoken))
        row.batch = None
        if row.unspoken:
            self._begin(row)

    def _heard(self, row: KittenRow) -> Chunk | Fault:
        """What there is to hear of the row since the step before."""
        if row.fault:
            return Fault(row.fault)
        parts, end = [np.zeros(0, np.float32)], None
        most = row.say.max_seconds and int(row.say.max_seconds * SAMPLE_RATE)
        if row.sounds and row.sounds[0][0].done():  # one: a chunk is of one piece
            sound, last = row.sounds.popleft()
            row.heard += 1
            parts.append(row.seams.join(sound.result(), last, most))
            if last or row.seams.samples == most:
                end = "cap" if row.seams.samples == most else row.flaw or "eos"
        return Chunk(np.concatenate(parts), end, piece=max(0, row.heard - 1))

    def _voice_past(self, voice: Voice) -> Past:
        """What every prompt of the voice begins with, read once."""
        past = self._read.pop(voice.name, None)
        if past is None:
            ids = self.ids.voice(self._encode(voice.transcript), voice.speech)
            past = read(self.model, ids, self._speaker_row(voice))
        self._read[voice.name] = past
        while len(self._read) > KEPT_VOICES:
            del self._read[next(iter(self._read))]
        return past

    def _speaker_row(self, voice: Voice) -> mx.array:
        return self.model.speaker_row(mx.array(voice.embedding))

    def _encode(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def _warm_up(self) -> None:
        """Build the kernels, read the default voice, and see how many tokens a step may draw."""
        past = read(self.model, self.ids.text(self._encode("Warm up.")), past=self._voice_past(self.voices[0]))
        batch = Batch.start(self.words, past, Settings(), 0)
        batch.run(1)
        began_s = time.monotonic()
        batch.run(2)
        self._step_tokens = max(1, min(STEP_TOKENS, int(STEP_S * 2 / (time.monotonic() - began_s))))
        mx.clear_cache()
        mx.reset_peak_memory()


def _seed(row: KittenRow) -> int:
    """Of what is drawn, or sounded, next: no two are the same."""
    return (row.say.seed + len(row.spoken)) % 2**63


def _read_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """Raises ValueError naming the file where it is none, or not the model's."""
    text = path.read_text()
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"{path}: not a tokenizer: {error}") from None
    if tokenizer.get_vocab_size() > vocabulary:
        raise ValueError(f"{path}: {tokenizer.get_vocab_size()} tokens, but the model knows {vocabulary}")
    tokenizer.encode_special_tokens = True  # a text cannot write the marks of a prompt
    return tokenizer
