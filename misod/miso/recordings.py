"""Recordings, voices and dialogues as engine one takes them, or why it cannot."""

import math
from collections.abc import Generator
from typing import TYPE_CHECKING

import mlx.core as mx
import numpy as np

from misod import text
from misod.engine import Heard, RowFault, Say, check_codec, no_sound
from misod.miso.cache import KVCache
from misod.voices import MAX_SPOKEN_BYTES, Segment, Voice, digests

if TYPE_CHECKING:
    from misod.miso.engine import MisoEngine

# At a time, of a clip that is heard or read: as much as takes about as long as one frame of speech takes to make.
HEAR_FRAMES = 5
READ_POSITIONS = 64
# Of a text and what was said before it: others' frames wait for one such step at a time. On a CPU 256 take 80 ms of it.
PROMPT_POSITIONS = READ_POSITIONS if mx.default_device() == mx.cpu else 256


def hear(engine: "MisoEngine", pcm: np.ndarray, words: str, speaker: int) -> Generator[None, None, Heard]:
    """See misod.engine.Engine.hear."""
    check_speaker(engine, speaker)
    K, codes, spoken = engine.model.args.audio_num_codebooks, [], []
    reader = text.Reader(words, engine.speech.limits)
    try:
        for piece in engine.mimi.encode_pieces(mx.array(pcm)[None], K, HEAR_FRAMES):
            codes.append(np.array(piece)[0].astype(np.int16))
            yield
        while (piece := reader.next()) is not None:
            spoken.append(piece.text)
            yield
    finally:
        reader.close()
    if words.strip() and not spoken:
        raise RowFault(f"{engine.info.model} has no letters for any of the recording's transcript")
    heard = Heard(np.concatenate(codes, axis=1), " ".join(spoken), engine.info.codec, engine.info.model)
    if len(heard.spoken.encode()) > MAX_SPOKEN_BYTES:
        raise RowFault("the recording's transcript is too long once its numbers are written out", "bad_voice")
    segment = Segment(speaker, heard.spoken, heard.codes)
    _check_fits(engine, segment)
    yield from read_voice(engine, segment)
    return heard


def read_voice(engine: "MisoEngine", voice: Segment) -> Generator[None, None, mx.array]:
    """Have the backbone read it, some positions a step, for the next that asks for it; and what it made of it.

    In these steps always: a sum in other steps is another in its last bits, and would be other samples.
    """
    cache = engine.model.new_cache()
    yield from in_steps(engine, *engine.prompt.context_rows([voice]), cache, READ_POSITIONS)
    yield
    kv = cache.packed()
    mx.eval(kv)
    engine.prefixes.add(digests([voice])[0], kv)
    return kv


def in_steps(
    engine: "MisoEngine", tokens: np.ndarray, mask: np.ndarray, cache: KVCache, positions: int = PROMPT_POSITIONS
) -> Generator[None, None, mx.array]:
    """The backbone over them, so many positions a step, the last of which is not waited for -> last_h (1, D)."""
    for start in range(0, len(tokens), positions):
        here = slice(start, start + positions)
        last_h = engine.read_rows(tokens[here], mask[here], cache)
        if start + positions < len(tokens):
            mx.eval(last_h)
            yield
    return last_h


def check_speaker(engine: "MisoEngine", speaker: int) -> None:
    if speaker >= (count := engine.speech.speakers):
        known = f"0 to {count - 1}" if count > 1 else "0 only"
        raise RowFault(f"the speakers of {engine.info.model} are {known}, not {speaker}", "bad_value")


def segment_of(engine: "MisoEngine", voice: Voice) -> Segment:
    """Raises RowFault where the model cannot take it."""
    check_codec(voice, engine.info)
    if len(voice.codes) != engine.model.args.audio_num_codebooks or voice.codes.max() >= engine.codes:
        raise no_sound(voice, engine.info)
    _check_fits(engine, voice.segment)
    return voice.segment


def _check_fits(engine: "MisoEngine", voice: Segment) -> None:
    """Raises RowFault where the longest of pieces would not fit after it."""
    limits, length = engine.speech.limits, engine.prompt.segment_length(voice)
    frames = math.ceil(engine.speech.pace.cap_s(limits.max_words) * engine.frame_rate_hz)
    most = engine.model.args.backbone.max_seq_len - limits.max_characters - frames
    if length > most:
        line = f"the recording and its transcript take {length} positions of the model, which has {most} for them"
        raise RowFault(f"{line}: use a shorter one", "bad_voice")


def past_of(engine: "MisoEngine", say: Say) -> list[Segment]:
    """What the dialogue holds. Raises RowFault where another model spoke it: its codes mean nothing to this one."""
    if not say.dialogue or not say.dialogue.segments:
        return []
    if say.dialogue.digest != engine.info.digest:
        by, name = say.dialogue.model, say.dialogue.name
        line = f"the session {name} was spoken by {by}, not {engine.info.model}: forget it, or use another name"
        raise RowFault(line, "bad_value")
    return list(say.dialogue.segments)
