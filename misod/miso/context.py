"""What engine one reads before it speaks a piece: voice, dialogue and what was said, as much as fits, and once."""

from collections.abc import Generator
from typing import TYPE_CHECKING

import mlx.core as mx

from misod.engine import RowFault
from misod.miso.cache import KVCache
from misod.miso.depth import segment_codes
from misod.miso.recordings import in_steps, read_voice
from misod.voices import Segment, digests

if TYPE_CHECKING:
    from misod.miso.engine import MisoEngine, MisoRow


def read_piece(
    engine: "MisoEngine", row: "MisoRow", piece: str, frames: int, follows: bool
) -> Generator[None, None, tuple[mx.array, int]]:
    """The backbone over the piece, after as much of what was spoken before as fits -> last_h, frames left.

    What the cache holds is not read again: only the EOS frame that ends it, and the new text.
    """
    kept = _fitting(engine, row, piece, frames)
    dropped = len(row.context) - len(kept)
    row.dropped += dropped
    row.context = kept
    if follows and not dropped:
        tokens, mask = engine.prompt.follow(row.voices[-1], piece)
    else:
        row.cache, read = yield from _recall(engine, row)
        tokens, mask = engine.prompt.build(row.past[read:], row.voices[-1], piece)
    room = engine.model.args.backbone.max_seq_len - row.cache.offset - len(tokens)
    if room < 1:
        raise RowFault(f"a sentence of {len(tokens)} tokens is more than the model can read")
    last_h = yield from in_steps(engine, tokens, mask, row.cache)
    if row.style.guidance != 1:
        row.shadow = engine.model.new_cache()
        tokens, mask = engine.prompt.build([], row.voices[-1], "")
        silent_h = engine.read_rows(tokens, mask, row.shadow)
        last_h = mx.concatenate([last_h, silent_h])
    return last_h, room


def _recall(engine: "MisoEngine", row: "MisoRow") -> Generator[None, None, tuple[KVCache, int]]:
    """A cache, and how many segments of the row's context it has read: of a voice always that, at least.

    A voice is read by itself, whether or not it was there already: the samples are the same to the byte.
    """
    context = row.past
    if not context or not (row.voice or row.say.dialogue):
        return engine.model.new_cache(), 0
    named, chain = bool(row.say.voice and row.say.voice.name), digests(context)
    count, cache = engine.prefixes.find(chain, engine.prompt.segment_length(row.voice) if named else 0)
    if cache is not None:
        return cache, count
    if not row.voice:
        return engine.model.new_cache(), 0
    kv = yield from read_voice(engine, row.voice)
    if named:
        engine.prefixes.store(chain[0], kv)
    return KVCache.fork(kv), 1


def remember(engine: "MisoEngine", row: "MisoRow") -> None:
    """What the row's cache holds is the past of what is said next in its dialogue, if the model takes so much."""
    row.said.append(Segment(row.voices[-1], row.spoken[-1], segment_codes(row.codes, row.style.depth)))
    context = [*row.past, row.said[-1]]
    if len(context) > engine.speech.segments or row.cache.offset >= engine.model.args.backbone.max_seq_len:
        return
    engine.read_rows(*engine.prompt.audio_rows(row.said[-1].codes[:, :0]), row.cache)  # the EOS frame
    kv = row.cache.packed()
    mx.async_eval(kv)
    row.kept = digests(context)[-1]
    engine.prefixes.add(row.kept, kv)


def _fitting(engine: "MisoEngine", row: "MisoRow", piece: str, frames: int) -> list[Segment]:
    """The newest segments that leave room for the voice, the piece and its frames; whole ones only.

    Those that stay are read anew where one must go: so a quarter of all goes at once, and then none for a while.
    """
    most, positions = engine.speech.segments, engine.model.args.backbone.max_seq_len
    room = positions - frames - engine.prompt.length([], row.voices[-1], piece)
    if row.voice:
        most, room = most - 1, room - engine.prompt.segment_length(row.voice)
    lengths = [engine.prompt.segment_length(segment) for segment in row.context]
    if len(lengths) > most or sum(lengths) > room:
        most, room = most - most // 4, room - positions // 4
    while lengths and (len(lengths) > most or sum(lengths) > room):
        lengths.pop(0)
    return row.context[len(row.context) - len(lengths) :]
