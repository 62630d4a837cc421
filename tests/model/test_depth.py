"""`--depth N`: only the first N codebooks of a frame are made, read and decoded, whoever else speaks."""

import mlx.core as mx
import numpy as np
import pytest

from misod.engine import RowFault, Say, open_engine
from misod.miso.depth import segment_codes, there
from misod.miso.engine import MisoEngine
from misod.miso.prompt import Segment
from misod.miso.sampling import Sampler
from misod.weights.models import bundled

TEXT = "The music played on until the last guest had left."
K = 16


@pytest.fixture(scope="module")
def nano() -> MisoEngine:
    return open_engine(bundled(), max_rows=4)


def begun(nano: MisoEngine, depth: int | None, **say):
    return nano.prefill(Say(**({"text": TEXT, "seed": 1} | say), sampling={"depth": depth}))


def run(nano: MisoEngine, depths: list[int | None], frames: int = 12) -> list[tuple[np.ndarray, np.ndarray]]:
    """codes (frames, K) and pcm of a row of each depth, all at once."""
    rows = [begun(nano, depth, seed=seed) for seed, depth in enumerate(depths)]
    pcm = [np.concatenate(chunks) for chunks in zip(*(sounds(nano.step(rows)) for _ in range(frames)), strict=True)]
    codes = [np.stack(row.codes) for row in rows]
    for row in rows:
        nano.release(row)
    return list(zip(codes, pcm, strict=True))


def sounds(chunks) -> list[np.ndarray]:
    return [chunk.pcm for chunk in chunks]


def test_the_first_codebooks_of_a_frame_are_those_of_the_whole_frame(nano):
    row = begun(nano, None)
    greedy = lambda _, logits: mx.argmax(logits, axis=-1)  # noqa: E731
    whole, shallow = (np.array(nano.model.frame(row.prompt_h, greedy, depth)[0])[0] for depth in (None, 5))
    np.testing.assert_array_equal(shallow, [*whole[:5], *[0] * 11])
    assert whole[5:].any()


@pytest.mark.parametrize("depth", [1, 5])
def test_no_more_codebooks_are_asked_for_than_the_deepest_row_needs(nano, depth, monkeypatch):
    asked, draw = [], Sampler.__call__
    monkeypatch.setattr(Sampler, "__call__", lambda self, k, logits: (asked.append(k), draw(self, k, logits))[1])
    rows = [begun(nano, each, seed=1) for each in (depth, 1)]
    asked.clear()
    nano.step(rows)
    assert asked == list(range(depth))


@pytest.mark.slow
def test_rows_of_all_depths_speak_in_company_as_they_do_alone(nano):
    depths = [4, None, 9, K]
    together = run(nano, depths)
    for seed, (depth, (codes, pcm)) in enumerate(zip(depths, together, strict=True)):
        rows = begun(nano, depth, seed=seed)
        alone = np.concatenate([sounds(nano.step([rows]))[0] for _ in range(12)])
        np.testing.assert_array_equal(codes, np.stack(rows.codes))
        np.testing.assert_allclose(pcm, alone, rtol=0, atol=2e-4)
        assert not codes[:, depth or K :].any() and codes[:, : depth or K].any(axis=0).all()


def test_a_row_of_every_codebook_is_the_row_that_asked_for_none(nano):
    def speak(depth: int | None) -> bytes:
        row = begun(nano, depth)
        return b"".join(sounds(nano.step([row]))[0].tobytes() for _ in range(10))

    assert speak(K) == speak(None) != speak(8)


def test_what_is_not_there_is_no_sound_and_the_mean_of_its_codebook_to_the_backbone(nano):
    codes, has = mx.zeros((1, K), mx.int32) + 3, mx.array(there([6], K))
    ours, _ = nano.mimi.step(codes[:, :, None], nano.mimi.new_state(), has)
    theirs, _ = nano.mimi.step(codes[:, :6, None], nano.mimi.new_state())
    np.testing.assert_allclose(np.array(ours), np.array(theirs), rtol=0, atol=1e-6)
    table = np.array(nano.model.audio_embeddings.weight).reshape(K, -1, nano.model.args.backbone.embed_dim)
    wanted = table[:6, 3].sum(axis=0) + table[6:].mean(axis=1).sum(axis=0)
    np.testing.assert_allclose(np.array(nano.model.embed_frame(codes, has))[0, 0], wanted, rtol=0, atol=1e-4)


def test_a_shallow_sentence_is_read_again_as_it_was_spoken(nano):
    """From its codes, as from the cache."""
    frames = [np.array([7, 3, *[0] * 14]), np.array([9, 1, *[0] * 14])]
    segment = Segment(0, "Hello.", segment_codes(frames, 2))
    cache, anew = nano.model.new_cache(), nano.model.new_cache()
    nano.read_rows(*nano.prompt.build([], 0, "Hello."), cache)
    for codes in frames:
        nano.model.read(nano.model.embed_frame(mx.array(codes[None]), mx.array(there([2], K))), cache)
    followed = nano.read_rows(*nano.prompt.follow(0, "Go."), cache)
    read = nano.read_rows(*nano.prompt.build([segment], 0, "Go."), anew)
    assert cache.offset == anew.offset
    np.testing.assert_allclose(np.array(followed), np.array(read), rtol=0, atol=1e-4)


def test_a_shallow_text_of_several_sentences_goes_to_its_end(nano):
    row, end = begun(nano, 6, text="Hello there. How are you? Good day."), None
    while not end:
        end = nano.step([row])[0].end
    assert end == "eos" and len(row.spoken) == 3
    assert all((segment.codes[6:] == -1).all() and (segment.codes[:6] >= 0).all() for segment in row.context)


def test_a_depth_the_model_has_not_is_a_fault_that_says_what_it_has(nano):
    with pytest.raises(RowFault, match=r"16 codebooks.*1 to 16") as fault:
        begun(nano, 17)
    assert fault.value.code == "bad_value"
