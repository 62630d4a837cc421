"""A quick start on nano and the tiny kitten: who works when, counted in steps, and what comes of it, in samples.

In kittenml's place stands a double; with seed 12 kitten's part is about a second long.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import misod.kitten  # noqa: F401  before mlx, for OpenBLAS

# isort: split
import numpy as np
import pytest

from misod import quick
from misod.engine import Chunk, Engine, Fault, ModelError, Models, Row, RowFault, Say, open_engine
from misod.kitten.engine import KittenEngine
from misod.quick import QuickStart, beside, prefill
from misod.weights.models import bundled
from tests.model.kitten_fixture import Double, make_repository

FIRST, REST = "Hello to you.", " We went home. It was late."
FRAME = 1920


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    return make_repository(tmp_path_factory.mktemp("kitten") / "kitten")


@pytest.fixture(scope="module")
def nano() -> Engine:
    return open_engine(bundled(), max_rows=4)


@pytest.fixture(scope="module")
def kitten(repository) -> KittenEngine:
    return KittenEngine.open("kitten", repository, 4, Double())


@pytest.fixture
def both(nano, kitten) -> QuickStart:
    return QuickStart(nano, kitten)


def quickly(**more) -> Say:
    return Say(**({"text": FIRST + REST, "seed": 12, "quick": ""} | more))


def given(engine: Engine, row: Row) -> Iterator[Chunk]:
    """As the worker does: what is due, then a step."""
    while True:
        if row.due:
            row.due()
        (chunk,) = engine.step([row])
        yield chunk
        if isinstance(chunk, Fault) or chunk.end:
            engine.release(row)
            return


def spoken(engine: Engine, say: Say) -> tuple[list[Chunk], Row]:
    """The chunks with sound, and the row."""
    row = prefill(engine, say)
    return [chunk for chunk in given(engine, row) if len(chunk.pcm) or chunk.end], row


def pcm_of(chunks: list[Chunk]) -> np.ndarray:
    return np.concatenate([chunk.pcm for chunk in chunks])


def test_each_engine_says_what_it_says_of_its_part_alone_and_the_row_tells_the_whole(both, nano, kitten):
    chunks, row = spoken(both, quickly())
    (seam,) = [i for i, chunk in enumerate(chunks) if chunk.seam]
    first, _ = spoken(kitten, Say(FIRST, 12))
    rest, alone = spoken(nano, Say(REST, 12))
    assert pcm_of(chunks[: seam + 1]).tobytes() == pcm_of(first).tobytes()
    assert [chunk.pcm.tobytes() for chunk in chunks[seam + 1 :]] == [chunk.pcm.tobytes() for chunk in rest]
    assert chunks[-1].end == "eos" and not any(chunk.end for chunk in chunks[:-1])
    assert row.spoken == [FIRST, *alone.spoken] and row.sentences == [0, 1, 2]
    said = " ".join(row.spoken)
    assert [(said[a:b], row.say.text[c:d]) for a, b, c, d in row.spans] == [(w, w) for w in said.split()]
    assert [chunk.piece for chunk in chunks] == sorted(chunk.piece for chunk in chunks) and chunks[-1].piece == 2
    assert (row.style, row.usual_lufs) == (alone.style, alone.usual_lufs) and alone.usual_lufs is not None
    assert (row.quick_digest, row.not_quick) == (kitten.info.digest, "")


def test_the_model_begins_once_kitten_has_drawn_and_makes_so_much_ahead_and_no_more(both, nano, kitten, monkeypatch):
    """Kitten's sound is held up until the model has done all that it may."""
    monkeypatch.setattr(quick, "AHEAD", 5)
    monkeypatch.setattr(kitten, "_tokens_hz", 20.0)  # 6 tokens a step
    sounds, sound, steps = threading.Event(), kitten.around.sound, []
    monkeypatch.setattr(kitten.around, "sound", lambda *how: sounds.wait(60) and sound(*how))
    read, made = nano.prefill, nano.step
    monkeypatch.setattr(nano, "prefill", lambda say: steps.append("prefill") or read(say))
    monkeypatch.setattr(nano, "step", lambda rows: steps.append("frame") or made(rows))
    row = prefill(both, quickly())
    heard, drawing, waiting = [], 0, 0
    for chunk in given(both, row):
        if row.first.batch:
            drawing += 1
            assert not steps and not row.due
        waiting += len(row.held) == 5
        if waiting == 3:
            assert not heard and steps.count("frame") <= 6  # the first may only have read
            sounds.set()
        heard += [chunk] if len(chunk.pcm) else []
    assert drawing >= 2 and steps[0] == "prefill" and steps.count("prefill") == 1
    assert waiting >= 3 and heard[0].seam  # all of kitten's, before any of the model's that waited


def test_others_go_on_frame_by_frame_while_kitten_draws_a_little_between(both, kitten, monkeypatch):
    monkeypatch.setattr(kitten, "_tokens_hz", 50.0)  # 4 tokens in SLICE_S
    other, row = both.prefill(Say("We are on our way to the sea, and it is warm.", 1)), prefill(both, quickly())
    drawn = 0
    while row.opening and not row.due:
        mine, its = both.step([other, row])
        assert len(mine.pcm) == FRAME and not len(its.pcm)
        assert len(row.first.ids) - drawn <= 4
        drawn = len(row.first.ids)
    assert drawn > 8
    both.release(other)
    both.release(row)


def test_one_sentence_is_kittens_alone(both, nano, monkeypatch):
    monkeypatch.setattr(nano, "prefill", None)
    chunks, row = spoken(both, quickly(text=FIRST))
    assert chunks[-1].end == "eos" and not any(chunk.seam for chunk in chunks) and row.spoken == [FIRST]


class AtOnce:
    """In an executor's place: the sound is there in the step that drew it."""

    def submit(self, work, *how) -> Future:
        done: Future = Future()
        done.set_result(work(*how))
        return done


def test_what_is_wrong_with_the_models_part_is_told_before_any_sound(both, kitten, monkeypatch):
    monkeypatch.setattr(kitten, "_sounder", AtOnce())
    row = prefill(both, quickly(speaker=9))
    with pytest.raises(RowFault, match="speaker"):
        for chunk in given(both, row):
            assert not len(chunk.pcm)
    both.release(row)
    assert row.first.batch is None and row.rest is None


def test_letters_that_the_model_has_none_for_are_left_out_and_counted(both):
    chunks, row = spoken(both, quickly(text=f"{FIRST} Привет 世界."))
    assert chunks[-1].end == "eos" and row.spoken == [FIRST] and row.unread == 8


def test_a_fault_of_kitten_names_it_and_cancelling_frees_both(both, kitten, monkeypatch):
    monkeypatch.setattr(kitten.around, "silent", set(range(1, 10_000)))
    *_, last = given(both, prefill(both, quickly(max_seconds=0.6)))
    assert isinstance(last, Fault) and last.code == "degenerate" and last.message.startswith("kitten, which begins: ")
    monkeypatch.setattr(kitten.around, "silent", set())
    row = prefill(both, quickly())
    next(None for _ in given(both, row) if row.rest)
    both.release(row)
    assert row.rest.cache is None and row.first.batch is None and row.first.reading is None


@pytest.mark.parametrize("seconds", [0.4, 2.0])
def test_max_seconds_are_of_both_together(both, seconds):
    chunks, _ = spoken(both, quickly(max_seconds=seconds))
    assert chunks[-1].end == "cap" and 0 <= len(pcm_of(chunks)) - seconds * 24_000 < FRAME


def test_a_pause_of_the_text_between_the_two_is_kept(both, kitten, nano):
    chunks, _ = spoken(both, quickly(text="# Hello to you.\n\nWe went."))
    first, seam = [chunk for chunk in chunks if chunk.seam]
    assert len(seam.pcm) == round(0.5 / 0.08) * FRAME and not seam.pcm.any() and first.piece == seam.piece == 0


def test_a_voice_that_kitten_has_not_is_refused_by_name(both):
    with pytest.raises(RowFault, match="kitten has no voice bruno") as error:
        prefill(both, quickly(quick="bruno"))
    assert error.value.code == "bad_value"
    assert prefill(both, quickly(quick="tiny")).quick_digest


def test_without_kitten_the_model_says_all_and_why(nano, kitten):
    row = prefill(nano, quickly())
    assert row.not_quick == "kitten is not loaded beside nano: `misoctl load --quick-start`" and not row.quick_digest
    assert prefill(kitten, quickly()).not_quick == "kitten speaks all of it"
    assert not prefill(nano, Say(FIRST, 1)).not_quick


def test_kitten_is_loaded_beside_only_where_it_fits(nano, kitten, repository, tmp_path):
    opened: list[Path] = []

    def models(directory: Path, room_bytes: int) -> Models:
        return Models(lambda name: directory, lambda path: opened.append(path) or kitten, lambda: room_bytes)

    needed_bytes = sum(file.stat().st_size for file in repository.rglob("*") if file.is_file())
    for main, directory, room_bytes, code in (
        (kitten, repository, 1 << 40, "bad_value"),
        (nano, tmp_path, 1 << 40, "model"),
        (nano, repository, needed_bytes - 1, "no_room"),
    ):
        with pytest.raises(ModelError) as error:
            beside(main, models(directory, room_bytes))
        assert error.value.code == code and not opened
    assert beside(nano, models(repository, needed_bytes)).info.quick_digest == kitten.info.digest
