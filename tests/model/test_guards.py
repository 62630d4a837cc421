"""What becomes of speech that goes wrong: logits are rigged for one row, and the row beside it must not notice."""

from collections.abc import Callable

import mlx.core as mx
import numpy as np
import pytest

from benchmarks.degenerate import speak
from misod.engine import Chunk, Fault, Say, open_engine
from misod.miso.engine import MAX_TRIES, TAIL_FRAMES, MisoEngine, MisoRow
from misod.weights.models import bundled

FRAME = 1920
VICTIM, BESIDE = "Please call me.", "The kettle is on, come in."
Bend = Callable[[MisoRow, int, mx.array], mx.array]  # (row, codebook, its logits (1, V)) -> logits


@pytest.fixture(scope="module")
def nano() -> MisoEngine:
    return open_engine(bundled(), max_rows=4)


class Rig:
    """Bends the logits, or the hidden state, of rows that speak VICTIM."""

    def __init__(self, engine: MisoEngine, monkeypatch):
        self.rows: list[MisoRow] = []
        self.bend: Bend = lambda row, codebook, logits: logits
        self.break_at: int | None = None
        draw, frame = engine._draw, engine.model.frame

        def draw_rigged(rows, last_h):
            self.rows = rows
            broken = [row.say.text == VICTIM and row.frames == self.break_at for row in rows]
            draw(rows, mx.where(mx.array(broken)[:, None], mx.array(np.nan), last_h))

        def frame_rigged(last_h, sampler, depth):
            def bent(codebook, logits):
                each = [logits[i : i + 1] for i in range(len(self.rows))]
                return sampler(
                    codebook, mx.concatenate([self._one(*x, codebook) for x in zip(self.rows, each, strict=True)])
                )

            return frame(last_h, bent, depth)

        monkeypatch.setattr(engine, "_draw", draw_rigged)
        monkeypatch.setattr(engine.model, "frame", frame_rigged)

    def _one(self, row: MisoRow, logits: mx.array, codebook: int) -> mx.array:
        return self.bend(row, codebook, logits) if row.say.text == VICTIM else logits

    def force(self, codes: np.ndarray, when: Callable[[MisoRow], bool]) -> None:
        """The victim draws these codes (K,) whenever `when` says so."""

        def bend(row, codebook, logits):
            wanted = mx.arange(logits.shape[1]) == int(codes[codebook])
            return mx.where(wanted, 1e4, logits) if when(row) else logits

        self.bend = bend


@pytest.fixture
def rig(nano, monkeypatch) -> Rig:
    return Rig(nano, monkeypatch)


def both(nano: MisoEngine) -> tuple[MisoRow, Chunk | Fault, list[np.ndarray], list[np.ndarray]]:
    """Speak VICTIM beside BESIDE -> the victim's row, its last answer, its pcm, and its neighbour's, a frame each."""
    beside, victim = (nano.prefill(Say(text=t, seed=4)) for t in (BESIDE, VICTIM))
    live, last, pcm = [beside, victim], {}, {id(beside): [], id(victim): []}
    while live:
        for row, result in zip(list(live), nano.step(live), strict=True):
            alone = (
                row is victim and isinstance(result, Chunk) and result.end == "eos"
            )  # its tail: beside was drawn alone
            if isinstance(result, Chunk) and result.pcm.size and not alone:
                pcm[id(row)].append(result.pcm)
            if isinstance(result, Fault) or result.end:
                last[id(row)] = result
                live.remove(row)
    assert last[id(beside)].end == "eos" and beside.mended == []
    return victim, last[id(victim)], pcm[id(victim)], pcm[id(beside)]


@pytest.fixture(scope="module")
def undisturbed(nano):
    victim, last, pcm, beside = both(nano)
    assert last.end == "eos" and victim.mended == []
    return pcm, beside


def assert_untouched(beside, undisturbed, together: int) -> None:
    """To the byte while both spoke, in either run; after that it is alone, and its sums are ordered otherwise."""
    _, before = undisturbed
    assert len(beside) == len(before)
    assert all(a.tobytes() == b.tobytes() for a, b in zip(beside[:together], before[:together], strict=True))
    np.testing.assert_allclose(np.concatenate(beside), np.concatenate(before), rtol=0, atol=2e-4)


def silent_frame(nano: MisoEngine) -> np.ndarray:
    return np.array(nano.mimi.encode(mx.zeros((1, FRAME * 12))))[0, : nano.model.args.audio_num_codebooks, -1]


def loudest_frame(nano: MisoEngine) -> np.ndarray:
    """Its codes (K,): of a vowel."""
    spoken = speak(nano, Say(text=VICTIM, seed=4))
    return spoken.codes[np.square(spoken.pcm).mean(axis=1).argmax()]


@pytest.mark.parametrize("first", [0, 2])
def test_an_end_that_nearly_wins_at_the_start_does_not_cut_the_speech(nano, rig, undisturbed, first):
    rig.force(np.zeros(nano.model.args.audio_num_codebooks, int), lambda row: row.frames <= first)
    victim, last, pcm, beside = both(nano)
    assert last.end == "eos" and victim.frames >= 8
    assert_untouched(beside, undisturbed, min(len(pcm), len(undisturbed[0])))


def test_speech_that_never_ends_is_cut_at_its_cap(nano, rig, undisturbed):
    def endless(row, codebook, logits):
        return logits if codebook else mx.where(mx.arange(logits.shape[1]) == 0, -1e4, logits)

    rig.bend = endless
    victim, last, pcm, beside = both(nano)
    assert last.end == "cap" or (last.end == "silence" and len(victim.mended) == MAX_TRIES)
    assert_untouched(beside, undisturbed, min(len(pcm), len(undisturbed[0])))


def test_a_start_that_stays_silent_is_drawn_anew_and_spoken(nano, rig, undisturbed):
    silence = silent_frame(nano)
    rig.force(silence, lambda row: row.tries == 0)
    victim, last, pcm, beside = both(nano)
    assert last.end == "eos" and victim.mended == ["silence at frame 13"]
    loud = np.abs(np.concatenate(pcm)) > 0.02
    assert loud[: 5 * FRAME].any() and victim.frames - TAIL_FRAMES == loud.size // FRAME  # of the 13, one was heard
    assert_untouched(beside, undisturbed, min(len(pcm), len(undisturbed[0])))


@pytest.mark.slow
def test_silence_that_comes_again_and_again_ends_the_speech_with_its_name(nano, rig, undisturbed):
    silence = silent_frame(nano)
    rig.force(silence, lambda row: len(row.codes) >= 8)
    victim, last, pcm, beside = both(nano)
    assert last.end == "silence" and len(victim.mended) == MAX_TRIES
    assert len(pcm) < 8 + (MAX_TRIES + 1) * 30
    assert_untouched(beside, undisturbed, min(len(pcm), len(undisturbed[0])))


@pytest.mark.parametrize(
    "tries", [1, *(pytest.param(tries, marks=pytest.mark.slow) for tries in (MAX_TRIES, MAX_TRIES + 1))]
)
def test_a_frame_that_repeats_is_drawn_anew_so_often_and_then_told(nano, rig, undisturbed, tries):
    rig.force(loudest_frame(nano), lambda row: len(row.codes) >= 6 and row.tries < tries)
    victim, last, pcm, beside = both(nano)
    if tries <= MAX_TRIES:
        assert last.end == "eos" and len(victim.mended) == tries
        assert all(entry.startswith("repeat at frame") for entry in victim.mended)
    else:
        assert last.code == "degenerate" and "repeat" in last.message
    assert_untouched(beside, undisturbed, min(len(pcm), len(undisturbed[0])))


def test_numbers_that_break_at_frame_7_end_that_row_alone(nano, rig, undisturbed):
    rig.break_at = 7
    _, last, pcm, beside = both(nano)
    assert isinstance(last, Fault) and "not finite at frame 7" in last.message and len(pcm) == 7
    assert_untouched(beside, undisturbed, 7)


def test_what_is_drawn_anew_goes_on_from_the_last_good_frame_as_if_nothing_else_had_been(nano, monkeypatch):
    """The cache after a redo equals that of a row which never went wrong: the same hidden state, to rounding."""
    row = nano.prefill(Say(text=VICTIM, seed=4))
    for _ in range(12):
        nano.step([row])
    seen = []
    monkeypatch.setattr(nano, "_draw", lambda rows, last_h: seen.append(last_h))
    codes, frames = list(row.codes), row.frames
    row.watch.began = 5
    heard = nano._draw_anew(row, "repeat", np.ones(FRAME, np.float32))
    assert len(row.codes) == 5 and row.frames == frames and heard.all()
    tokens, mask = nano.prompt.build([], 0, row.spoken[0])
    cache = nano.model.new_cache()
    nano.model.read(nano.model.embed_prompt(mx.array(tokens), mx.array(mask)), cache)
    for each in codes[:5]:
        last_h = nano.model.read(nano.model.embed_frame(mx.array(each[None])), cache)
    np.testing.assert_allclose(np.array(seen[0]), np.array(last_h), rtol=0, atol=1e-4)
    assert row.cache.offset == cache.offset
