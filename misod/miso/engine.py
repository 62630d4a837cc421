"""Engine one behind the daemon's interface: each step makes one 80 ms frame for every row.

Rows join and leave at any frame. A row's text is read piece by piece: each piece is a prompt of its own,
while the codec's state runs on, so that there is no click between them.
"""

import gc
import math
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx
import numpy as np

from misod import text
from misod.engine import Chunk, Fault, Info, Memory, ModelError, Row, RowFault, Say
from misod.miso.cache import KVCache, RowsCache
from misod.miso.load import Speech, check_codec, load_model, read_config
from misod.miso.mimi import Mimi, concat_states, load_mimi, take_rows
from misod.miso.model import Model
from misod.miso.prompt import Prompt
from misod.miso.sampling import Sampler, Settings, draw_noise
from misod.weights.manifest import check

# The true model was heard to speak as slowly as 1.1 words a second; a cap made for faster speech cuts it off.
SLOWEST_WORDS_PER_S = 1.1
SPARE_S = 3.0
POOL_BYTES = 512 << 20  # freed buffers that MLX may keep for the next frame


@dataclass
class MisoRow(Row):
    reader: text.Reader | None = None
    key: mx.array | None = None  # split once a frame
    cache: KVCache | None = None
    frame: tuple[mx.array, mx.array] | None = None  # the next: codes (1, K), finite (1,); in flight
    codec: dict | None = None
    frames: int = 0
    max_frames: int | None = None  # of the whole utterance
    piece_end: int = 0  # the frame at which the piece being spoken is cut
    capped: bool = False


class MisoEngine:
    """See misod.engine.Engine. `codes`: how many codes of a codebook the codec has a sound for."""

    def __init__(self, model: Model, mimi: Mimi, prompt: Prompt, speech: Speech, info: Info, max_rows: int):
        self.model, self.mimi, self.prompt, self.speech = model, mimi, prompt, speech
        self.info, self.max_rows = info, max_rows
        self.sample_rate = mimi.config.sample_rate
        self.frame_samples = mimi.config.frame_samples
        self.frame_rate_hz = self.sample_rate / self.frame_samples
        self.codes = mimi.config.bins
        self._codec_stream = mx.new_stream(mx.default_device())

    @classmethod
    def open(cls, name: str, directory: Path, max_rows: int) -> "MisoEngine":
        """Load the model in `directory`, strictly, and warm it up. Raises ModelError naming what is wrong."""
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
        info = Info(engine="miso", model=name, digest=manifest.digest, backend=backend())
        engine = cls(model, mimi, prompt, speech, info, max_rows)
        engine._warm_up()
        return engine

    def prefill(self, say: Say) -> MisoRow:
        if say.speaker >= self.speech.speakers:
            known = f"0 to {self.speech.speakers - 1}" if self.speech.speakers > 1 else "0 only"
            raise RowFault(f"the speakers of {self.info.model} are {known}, not {say.speaker}", "bad_value")
        row = MisoRow(
            say=say,
            temperature=self.speech.temperature if say.temperature is None else say.temperature,
            top_k=say.top_k or self.speech.top_k,
            reader=text.Reader(say.text, self.speech.limits),
            key=mx.random.key(say.seed),
            codec=self.mimi.new_state(),
            max_frames=say.max_seconds and max(1, math.floor(say.max_seconds * self.frame_rate_hz)),
        )
        if not self._next_piece(row):
            raise RowFault(f"{self.info.model} has no letters for any of this text")
        return row

    def step(self, rows: list[MisoRow]) -> list[Chunk | Fault]:
        """Each row's codes are already in flight; while its sound is made, so are the next frame's."""
        mx.eval([row.frame for row in rows])
        codes, finite = (np.concatenate([np.array(row.frame[part]) for row in rows]) for part in (0, 1))
        heard = [i for i, row in enumerate(rows) if finite[i] and codes[i].any()]  # all zeros is the EOS frame
        pcm = dict(zip(heard, self._advance([rows[i] for i in heard], codes[heard]), strict=True)) if heard else {}
        return [
            self._settle(row, pcm.get(i)) if finite[i] else Fault(f"logits were not finite at frame {row.frames}")
            for i, row in enumerate(rows)
        ]

    def release(self, row: MisoRow) -> None:
        if row.reader:
            row.reader.close()
        row.reader = row.cache = row.frame = row.codec = row.key = None

    def memory(self) -> Memory:
        return Memory(mx.get_active_memory(), mx.get_cache_memory(), mx.get_peak_memory())

    def close(self) -> None:
        self.model = self.mimi = None
        gc.collect()
        mx.clear_cache()

    def _advance(self, rows: list[MisoRow], codes: np.ndarray) -> np.ndarray:
        """Sound the frame codes (B, K) and start on the next -> pcm (B, frame_samples)."""
        frame = mx.array(codes)
        with mx.stream(self._codec_stream):  # beside the next frame, not before it
            pcm, state = self.mimi.step(frame[:, :, None], concat_states([row.codec for row in rows]))
            mx.async_eval(pcm, state)
        last_h = self.model.read(self.model.embed_frame(frame), RowsCache([row.cache for row in rows]))
        self._draw(rows, last_h)
        for i, row in enumerate(rows):
            row.codec = state if len(rows) == 1 else take_rows(state, [i])
            row.frames += 1
        return np.array(pcm)

    def _draw(self, rows: list[MisoRow], last_h: mx.array) -> None:
        """Put each row's next frame in flight, from last_h (B, D)."""
        keys = []
        for row in rows:
            row.key, key = mx.random.split(row.key)
            keys.append(key)
        args = self.model.args
        noise = draw_noise(keys, args.audio_num_codebooks, args.audio_vocab_size)
        sampler = Sampler([Settings(row.temperature, row.top_k) for row in rows], noise, self.codes)
        codes, finite = self.model.frame(last_h, sampler)
        for i, row in enumerate(rows):
            row.frame = codes[i : i + 1], finite[i : i + 1]
        mx.async_eval([row.frame for row in rows])

    def _settle(self, row: MisoRow, pcm: np.ndarray | None) -> Chunk | Fault:
        """What becomes of the row after this step: goes on, goes on to its next piece, or ends. pcm None: EOS."""
        ended, pcm = pcm is None, np.zeros(0, np.float32) if pcm is None else pcm
        if row.max_frames and row.frames >= row.max_frames:
            return Chunk(pcm, "cap")
        if not ended and row.frames < row.piece_end:
            return Chunk(pcm)
        row.capped |= not ended
        try:
            if self._next_piece(row):
                return Chunk(pcm)
        except RowFault as fault:
            return Fault(str(fault))
        if row.frames == 0:
            return Fault("the model ended before it made a sound")
        return Chunk(pcm, "cap" if row.capped else "eos")

    def _next_piece(self, row: MisoRow) -> bool:
        """Prefill the next piece of the row's text; False if there is none."""
        piece = row.reader.next()
        if piece is None:
            return False
        tokens, mask = self.prompt.build([], row.say.speaker, piece.text)
        room = self.model.args.backbone.max_seq_len - len(tokens)
        if room < 1:
            raise RowFault(f"a sentence of {len(tokens)} tokens is more than the model can read")
        seconds = len(piece.text.split()) / SLOWEST_WORDS_PER_S + SPARE_S
        row.piece_end = row.frames + min(room, math.ceil(seconds * self.frame_rate_hz))
        row.cache = self.model.new_cache()
        self._draw([row], self.model.read(self.model.embed_prompt(mx.array(tokens), mx.array(mask)), row.cache))
        row.spoken.append(piece.text)
        return True

    def _warm_up(self) -> None:
        """Throwaway frames, so that the first request finds kernels built and grammars read."""
        text.warm()
        row = self.prefill(Say(text="Warm-up, one 2 three.", seed=0))
        for _ in range(3):
            self.step([row])
        mx.clear_cache()
        mx.reset_peak_memory()


def bundled_voice() -> Path:
    return Path(__file__).parent / "nano"


def backend() -> str:
    if mx.default_device() == mx.cpu:
        return "mlx cpu"
    return "mlx metal" if mx.metal.is_available() else "mlx cuda"
