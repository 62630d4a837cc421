"""The Miso model against the reference (torchtune, fp32) on the same random weights: fixtures/miso_tiny."""

import json
from pathlib import Path
from types import SimpleNamespace

import mlx.core as mx
import numpy as np
import pytest

from misod.miso.cache import BLOCK, KVCache, RowsCache
from misod.miso.load import load_model
from misod.miso.model import Model
from misod.miso.prompt import Prompt, Segment
from misod.miso.sampling import Sampler, Settings, draw_noise
from misod.miso.transformer import Rope, rope_theta
from misod.weights.dims import ModelArgs, TransformerArgs
from tests.model.miso_fixture import BF16, make_bf16

FIXTURES = Path(__file__).parent / "fixtures"
TINY = FIXTURES / "miso_tiny" / "v99_fp32"
LOGITS_ATOL, LAST_H_ATOL = 3e-4, 5e-5  # the reference itself, fp64 against fp32: 1.1e-4 and 1.3e-5


def load(directory: Path) -> Model:
    return load_model([directory / "model.safetensors"], args_of(directory), {})


def args_of(directory: Path) -> ModelArgs:
    return ModelArgs.from_dict(json.loads((directory / "config.json").read_text()))


def golden(directory: Path, case: str) -> dict[str, np.ndarray]:
    with np.load(directory / f"{case}.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(scope="module")
def model() -> Model:
    return load(TINY)


class Greedy:
    """Takes the likeliest code of the whole vocabulary, as the reference's goldens do, and keeps the logits."""

    def __init__(self):
        self.logits = []

    def __call__(self, codebook: int, logits: mx.array) -> mx.array:
        assert codebook == len(self.logits)
        self.logits.append(logits)
        return mx.argmax(logits, axis=-1)


def prefill(model: Model, case: dict, cache: KVCache) -> mx.array:
    tokens, mask = mx.array(case["prompt_tokens"].astype(np.int32)), mx.array(case["prompt_mask"])
    return model.read(model.embed_prompt(tokens, mask), cache)


def speak(model: Model, case: dict, frames: int):
    """Greedy frames: yields (last_h, logits (K, V), codes (K,))."""
    cache = model.new_cache()
    last_h = prefill(model, case, cache)
    for _ in range(frames):
        draw = Greedy()
        codes, finite = model.frame(last_h, draw)
        assert finite.item()
        yield np.array(last_h[0]), np.array(mx.concatenate(draw.logits)), np.array(codes[0])
        last_h = model.read(model.embed_frame(codes), cache)


@pytest.mark.parametrize("case", ["short", "two_seg", "long"])
def test_logits_hidden_states_and_greedy_frames_are_the_references(model, case):
    want = golden(TINY, f"golden_{case}")
    for f, (last_h, logits, codes) in enumerate(speak(model, want, len(want["frames"]))):
        np.testing.assert_allclose(last_h, want["last_h"][f], rtol=0, atol=LAST_H_ATOL)
        np.testing.assert_allclose(logits, want["logits"][f], rtol=0, atol=LOGITS_ATOL)
        np.testing.assert_array_equal(codes, want["frames"][f])


@pytest.mark.parametrize("case", ["short", "two_seg"])
def test_every_backbone_layer_of_the_prefill_is_the_references(model, case):
    want = golden(TINY, f"golden_{case}")
    x = model.embed_prompt(mx.array(want["prompt_tokens"].astype(np.int32)), mx.array(want["prompt_mask"]))
    np.testing.assert_allclose(np.array(x[0]), want["prefill_embeds"], rtol=0, atol=1e-6)
    cache = model.new_cache()
    turn = model.backbone.rope.at(0, *x.shape[1::-1], x.dtype)
    for i, layer in enumerate(model.backbone.layers):
        x = layer(x, i, cache, turn)
        np.testing.assert_allclose(np.array(x[0]), want["prefill_layer_out"][i], rtol=0, atol=LAST_H_ATOL)


def test_the_end_is_a_frame_of_zeros_and_comes_when_the_references_does():
    want = golden(TINY, "golden_eos")
    model = load(TINY)
    model.codebook0_head.weight[0] = mx.array(want["codebook0_head_row0"])
    model.audio_head[:, :, 0] = mx.array(want["audio_head_col0"])
    model.bind()
    steps = list(speak(model, want, int(want["steps"])))
    np.testing.assert_array_equal([codes for *_, codes in steps], want["all_steps"])
    np.testing.assert_allclose(steps[-1][1], want["logits_last_step"], rtol=0, atol=LOGITS_ATOL)
    assert not steps[-1][2].any() and all(codes.any() for *_, codes in steps[:-1])


def test_a_bf16_checkpoint_computed_in_fp32_is_the_references(tmp_path):
    model = load(make_bf16(tmp_path / "source"))
    want = golden(BF16, "golden")
    for f, (last_h, logits, codes) in enumerate(speak(model, want, len(want["frames"]))):
        np.testing.assert_allclose(last_h, want["last_h"][f], rtol=0, atol=LAST_H_ATOL)
        np.testing.assert_allclose(logits[0], want["c0_logits"][f], rtol=0, atol=LOGITS_ATOL)
        np.testing.assert_array_equal(codes, want["frames"][f])
        if f == 0:
            np.testing.assert_allclose(logits[1:], want["ci_logits"][0], rtol=0, atol=LOGITS_ATOL)


class Ids:
    """A tokenizer that answers with the golden's ids: the tiny fixture has no vocabulary of its own."""

    def __init__(self, answers: list):
        self.answers = answers

    def encode(self, text: str):
        self.ids = self.answers.pop(0).tolist()
        return self


def test_prompt_rows_are_the_references(model):
    want = golden(TINY, "golden_prompt_build")
    prompt = Prompt(Ids([want["segment_text_ids"], want["gen_text_ids"]]), codebooks=32)
    tokens, mask = prompt.build([Segment(0, "context", want["segment_codes"])], 1, "text")
    np.testing.assert_array_equal(tokens, want["prompt_tokens"])
    np.testing.assert_array_equal(mask, want["prompt_mask"])
    for f, (last_h, logits, codes) in enumerate(speak(model, want, len(want["frames"]))):
        np.testing.assert_allclose(last_h, want["last_h"][f], rtol=0, atol=LAST_H_ATOL)
        np.testing.assert_allclose(logits[0], want["c0_logits"][f], rtol=0, atol=LOGITS_ATOL)
        np.testing.assert_array_equal(codes, want["frames"][f])


@pytest.mark.parametrize("kept", [0, 5000])
@pytest.mark.parametrize("way", ["complex", "elsewhere"])
@pytest.mark.parametrize("dim", [64, 128])
def test_rope_is_the_references_at_the_true_head_dims(dim, way, kept, monkeypatch):
    if way == "elsewhere":
        monkeypatch.setattr(mx, "default_device", lambda: mx.gpu)
    with np.load(FIXTURES / "miso_tiny" / "rope_llama3.npz") as want:
        H = len(want[f"x_{dim}"][0])
        args = TransformerArgs(num_layers=1, num_heads=H, num_kv_heads=H, embed_dim=H * dim, intermediate_dim=1)
        np.testing.assert_array_equal(np.array(rope_theta(args)), want[f"theta_{dim}"])
        rope, v = Rope(args, kept), mx.random.normal((H, dim), key=mx.random.key(0))
        for heads, y, position in zip(want[f"x_{dim}"], want[f"y_{dim}"], want["positions"], strict=True):
            x = mx.concatenate([mx.array(heads), mx.array(heads), v]).reshape(1, -1)  # q, k, v: (1, 3 H d)
            for offset, T, rows in ((int(position), 1, 1), (int(position), 1, 3), (int(position), 2, 2)):
                turn = rope.at(offset, T, rows, mx.float32)
                check_turned(turn, mx.repeat(x[:, None], T, axis=1), rows, y, v)
            offsets = mx.array([0, int(position)])
            check_turned(rope.at(offsets, 1, 2, mx.float32), x[:, None], 2, y, v)


def check_turned(turn, x: mx.array, rows: int, y: np.ndarray, v: mx.array) -> None:
    """Of the last row, at the first position."""
    x = mx.repeat(x, rows, axis=0)
    q, kv = turn(x[:, 0] if x.shape[1] == 1 else x)
    np.testing.assert_allclose(np.array(q)[-1, :, 0], y, rtol=0, atol=1e-6)
    np.testing.assert_allclose(np.array(kv)[0, -1, :, 0], y, rtol=0, atol=1e-6)
    np.testing.assert_array_equal(np.array(kv)[1, -1, :, 0], np.array(v))


@pytest.mark.parametrize("case", ["T0.9_k50", "T1.0_k1", "T0.7_k5", "T1.3_k2051", "T0.2_k50"])
def test_draws_are_the_references_for_the_same_noise(case):
    """The reference takes argmax(probs / q), q exponential; ties at the k-th value all survive."""
    with np.load(FIXTURES / "miso_tiny" / "sampling.npz") as want:
        temperature, top_k = float(case[1:4]), int(case.split("_k")[1])
        logits, q = mx.array(want["logits"]), mx.array(want["q"])
        B = logits.shape[0]
        sampler = Sampler([Settings(temperature, top_k)] * B, -mx.log(q)[:, None])
        tied = np.array(logits.max(axis=1, keepdims=True) == logits).sum(axis=1) > 1
        got, expected = np.array(sampler(0, logits)), want[f"token_{case}"]
        survivors = [set(np.flatnonzero(p)) for p in want[f"probs_{case}"]]
        assert all(token in alive for token, alive in zip(got, survivors, strict=True))
        np.testing.assert_array_equal(got[~tied], expected[~tied])


def test_greedy_ignores_the_noise_and_rows_keep_their_own_settings():
    logits = mx.random.normal((3, 50), key=mx.random.key(0))
    noise = draw_noise([mx.random.key(i) for i in range(3)], 1, 50) * 100
    mixed = Sampler([Settings(0, 50), Settings(1.0, 50), Settings(1.0, 1)], noise)(0, logits)
    best = np.array(mx.argmax(logits, axis=-1))
    assert mixed[0] == best[0] and mixed[2] == best[2]
    assert mixed[1] == mx.argmax(logits[1] + noise[1, 0])


def test_codes_without_a_sound_are_never_drawn():
    logits = mx.zeros((1, 10))
    logits[:, 8:] = 50.0
    for seed in range(50):
        sampler = Sampler([Settings(1.0, 10)], draw_noise([mx.random.key(seed)], 1, 10), codes=8)
        assert sampler(0, logits).item() < 8


def test_top_k_beyond_the_vocabulary_keeps_all_of_it():
    logits = mx.random.normal((1, 20), key=mx.random.key(1))
    noise = draw_noise([mx.random.key(2)], 1, 20)
    assert Sampler([Settings(1.0, 4096)], noise)(0, logits) == mx.argmax(logits + noise[:, 0])


LADDER = mx.log(mx.array([[0.5, 0.25, 0.125, 0.125]]))  # shares of four codes


def drawn(settings: Settings, logits: mx.array, seeds: int = 200) -> set[int]:
    V = logits.shape[1]
    noises = [draw_noise([mx.random.key(seed)], 1, V) for seed in range(seeds)]
    return {int(Sampler([settings], noise)(0, logits)[0].item()) for noise in noises}


@pytest.mark.parametrize(
    ("settings", "wanted"),
    [
        (Settings(1.0, 4), {0, 1, 2, 3}),
        (Settings(1.0, 4, top_p=0.5), {0}),
        (Settings(1.0, 4, top_p=0.51), {0, 1}),
        (Settings(1.0, 4, top_p=0.76), {0, 1, 2, 3}),  # equal shares stay together
        (Settings(1.0, 4, min_p=0.5), {0, 1}),
        (Settings(1.0, 4, min_p=1.0), {0}),
        (Settings(1.0, 2, min_p=0.1, top_p=0.99), {0, 1}),
        (Settings(0.5, 4, top_p=0.7), {0}),  # judged at the row's own temperature: 0.73 of it
    ],
)
def test_only_codes_of_enough_share_are_drawn(settings, wanted):
    assert drawn(settings, LADDER) == wanted


def test_an_end_that_must_not_come_yet_is_never_drawn_in_the_first_codebook_alone():
    settings, noise = Settings(0, 1, may_end=False), draw_noise([mx.random.key(0)], 2, 4)
    sampler = Sampler([settings], noise)
    assert sampler(0, LADDER).item() == 1 and sampler(1, LADDER).item() == 0


@pytest.mark.parametrize("guidance", [0.0, 0.5, 3.0])
def test_guidance_moves_a_row_away_from_its_shadow_and_leaves_others_alone(guidance):
    rows = mx.random.normal((3, 20), key=mx.random.key(1))
    shadow = mx.random.normal((1, 20), key=mx.random.key(2))
    settings = [Settings(0, 20), Settings(0, 20, guidance=guidance), Settings(0, 20)]
    sampler = Sampler(settings, draw_noise([mx.random.key(i) for i in range(3)], 1, 20))
    codes = sampler(0, mx.concatenate([rows, shadow])).tolist()
    best = mx.argmax(rows, axis=1).tolist()
    guided = mx.argmax(shadow[0] + guidance * (rows[1] - shadow[0])).item()
    assert codes == [best[0], guided, best[2], guided]
    assert guidance or guided != best[1]


class Letters:
    """A tokenizer of letters."""

    def encode(self, text: str):
        return SimpleNamespace(ids=[1, *(2 + ord(c) % 200 for c in text), 3])


@pytest.mark.parametrize("segments", [1, 2])
def test_a_text_that_follows_its_past_in_the_cache_is_as_if_all_were_read_anew(model, segments):
    rng = np.random.default_rng(3)
    prompt = Prompt(Letters(), 32)
    past = [Segment(i, "abc" * (i + 1), rng.integers(1, 99, (32, 5 + i))) for i in range(segments)]
    cache, alone = model.new_cache(), model.new_cache()
    for i, segment in enumerate(past):
        rows = prompt.follow(segment.speaker, segment.text) if i else prompt.build([], segment.speaker, segment.text)
        model.read(model.embed_prompt(*map(mx.array, rows)), cache)
        for codes in segment.codes.T:
            model.read(model.embed_frame(mx.array(codes[None])), cache)
    followed = model.read(model.embed_prompt(*map(mx.array, prompt.follow(1, "new"))), cache)
    anew = model.read(model.embed_prompt(*map(mx.array, prompt.build(past, 1, "new"))), alone)
    assert cache.offset == alone.offset == prompt.length(past, 1, "new")
    np.testing.assert_allclose(np.array(followed), np.array(anew), rtol=0, atol=LAST_H_ATOL)


def test_a_rows_noise_does_not_depend_on_who_else_speaks_and_is_new_each_frame():
    key = mx.random.key(7)
    alone, crowd = draw_noise([key], 4, 9), draw_noise([mx.random.key(1), key], 4, 9)
    assert mx.array_equal(alone[0], crowd[1])
    _, next_key = mx.random.split(key)
    assert not mx.array_equal(alone[0], draw_noise([next_key], 4, 9)[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("where", ["codebook0_head", "audio_head"])
def test_logits_that_are_not_finite_are_told_of_their_row_only(bad, where):
    model = load(TINY)
    if where == "codebook0_head":
        model.codebook0_head.weight[3, 0] = bad
    else:
        model.audio_head[20, 0, 3] = bad
    model.bind()
    last_h = mx.stack([mx.ones((96,)), mx.ones((96,))])
    assert not model.frame(last_h, Greedy())[1].any()
    healthy = load(TINY)
    poisoned = mx.stack([mx.full((96,), bad), mx.ones((96,))])
    np.testing.assert_array_equal(np.array(healthy.frame(poisoned, Greedy())[1]), [False, True])


def test_rows_that_join_and_leave_at_any_frame_speak_as_if_alone(model):
    """Two prompts of different lengths, batched while both speak: the codes of each are those it has alone."""
    cases = [golden(TINY, "golden_short"), golden(TINY, "golden_two_seg")]
    caches = [model.new_cache() for _ in cases]
    hidden = [prefill(model, case, cache) for case, cache in zip(cases, caches, strict=True)]
    spoken = [[], []]
    for rows in [[0], [0, 1], [0, 1], [1, 0], [1], [1, 0]]:
        codes, _ = model.frame(mx.concatenate([hidden[r] for r in rows]), Greedy())
        last_h = model.read(model.embed_frame(codes), RowsCache([caches[r] for r in rows]))
        for i, r in enumerate(rows):
            hidden[r] = last_h[i : i + 1]
            spoken[r].append(np.array(codes[i]))
    for case, frames in zip(cases, spoken, strict=True):
        np.testing.assert_array_equal(frames, case["frames"][: len(frames)])


def test_prefill_in_pieces_is_prefill_at_once_up_to_the_context_limit(model):
    """2,040 rows and 8 frames: the last position there is, 2,047."""
    rng = np.random.default_rng(3)
    tokens = mx.array(rng.integers(0, 99, (2040, 33)).astype(np.int32))
    mask = mx.array(np.arange(33) < 32) & mx.ones((2040, 1), mx.bool_)
    x = model.embed_prompt(tokens, mask)
    whole, pieces = model.new_cache(), model.new_cache()
    at_once = model.read(x, whole)
    for start in range(0, 2040, 300):
        in_pieces = model.read(x[:, start : start + 300], pieces)
    np.testing.assert_allclose(np.array(in_pieces), np.array(at_once), rtol=0, atol=LAST_H_ATOL)
    for _ in range(8):
        codes, _ = model.frame(at_once, Greedy())
        np.testing.assert_array_equal(np.array(codes), np.array(model.frame(in_pieces, Greedy())[0]))
        frame = model.embed_frame(codes)
        at_once, in_pieces = model.read(frame, whole), model.read(frame, pieces)
    assert whole.offset == pieces.offset == 2048


def test_the_cache_grows_by_blocks_and_is_not_copied_in_between():
    cache = KVCache(1)
    shapes = set()
    for _ in range(BLOCK + 3):
        mx.eval(cache.attend(0, mx.ones((1, 4, 1, 8)), mx.ones((2, 1, 2, 1, 8)), 1.0))
        cache.advance(1)
        shapes.add(cache.kv[0].shape)
    assert shapes == {(2, 1, 2, BLOCK, 8), (2, 1, 2, 2 * BLOCK, 8)}


def test_a_checkpoint_that_does_not_fit_is_refused_with_every_tensor_named(tmp_path):
    weights = mx.load(str(TINY / "model.safetensors"))
    weights["decoder.norm.weight"] = weights.pop("decoder.norm.scale")
    weights["projection.weight"] = mx.zeros((64, 95))
    mx.save_safetensors(str(tmp_path / "model.safetensors"), weights)
    with pytest.raises(ValueError, match="3 tensors") as error:
        load_model([tmp_path / "model.safetensors"], args_of(TINY), {})
    for part in ("missing decoder.norm.scale", "extra decoder.norm.weight", "misshapen projection.weight"):
        assert part in str(error.value)
    assert str(tmp_path / "model.safetensors") in str(error.value)
