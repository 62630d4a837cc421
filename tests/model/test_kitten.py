"""KittenTTS 2's language model against the reference (kittenml, Torch, fp32) on the same random weights."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import misod.kitten  # noqa: F401  before mlx, for OpenBLAS

# isort: split
import mlx.core as mx
import numpy as np
import pytest
from mlx.utils import tree_flatten
from tokenizers import Tokenizer

from misod.kitten import load
from misod.kitten.cache import BLOCK, Prefill
from misod.kitten.decode import Batch, Past, Vocabulary, _run, read
from misod.kitten.load import load_model, read_args
from misod.kitten.model import Model
from misod.kitten.sampling import Settings, draw, process
from misod.kitten.tokens import Tokens
from tests.model.kitten_fixture import KITTEN, known_ids, make_repository, metadata, tensors, write_weights

LOGITS_ATOL = 3e-4
GREEDY = Settings(temperature=0, repetition_penalty=1, token_run_penalty=0)
LIVELY = Settings(temperature=0.9, top_k=50, top_p=0.95, min_p=0.02, repetition_window=16)
PROMPTS = json.loads((KITTEN / "golden_prompts.json").read_text())
PROCESSORS = json.loads((KITTEN / "golden_logits_processors.json").read_text())
PIPELINE = {  # golden_meta.json of the golden's maker
    "top_k": 50, "top_p": 0.95, "min_p": 0.02, "repetition_penalty": 1.3, "repetition_window": 16,
    "token_run_penalty": 1.3, "token_run_grace": 3,
}  # fmt: skip


def golden(name: str) -> dict[str, np.ndarray]:
    with np.load(KITTEN / f"golden_{name}.npz", allow_pickle=False) as file:
        return dict(file)


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    return make_repository(tmp_path_factory.mktemp("kitten") / "tiny")


@pytest.fixture(scope="module")
def model(repository) -> Model:
    args, _, path = read_args(repository)
    return load_model(path, args)


@pytest.fixture(scope="module")
def tokens(repository) -> Tokens:
    """None of them ends a row, as in the golden: the tests of ends choose their own."""
    return replace(read_args(repository)[1], speech_end_id=1 << 20, stop_id=1 << 20)


@pytest.fixture(scope="module")
def everything(model, tokens) -> Vocabulary:
    return Vocabulary(model, tokens, speech_only=False)


@pytest.fixture(scope="module")
def pasts(model) -> dict[str, Past]:
    row = speaker_row(model)
    return {name: read(model, ids, row) for name, ids in PROMPTS["prompts"].items()}


def speaker_row(model: Model) -> mx.array:
    with np.load(KITTEN / "voices" / "tiny.npz") as voice:
        return model.speaker_row(mx.array(voice["embedding"]))


def spoken(batch: Batch, *steps: int) -> np.ndarray:
    """Tokens (B, sum of steps), all logits finite."""
    parts = [batch.run(n) for n in steps]
    assert all(finite.all() for _, finite in parts)
    return np.concatenate([ids for ids, _ in parts], axis=1)


# ---- exact


def test_what_is_multiplied_is_what_was_published_bit_for_bit(model):
    """Unpacked here the long way: base-3 digits, each -s, 0 or +s."""
    published, packed = tensors(), json.loads(metadata()["packed"])
    ours = dict(tree(model))
    for name, spec in packed.items():
        rows, columns = spec["shape"]
        digits = published[f"{name}::codes"][:, None] // 3 ** np.arange(5) % 3
        signs = digits.ravel()[: rows * columns].reshape(rows, -1, 128) - 1.0
        weights = (signs * wide(published[f"{name}::scale"])[..., None]).reshape(rows, columns)
        np.testing.assert_array_equal(multiplied(model, ours, name), weights)
    for name in published.keys() - {f"{n}::{part}" for n in packed for part in ("codes", "scale")}:
        np.testing.assert_array_equal(np.array(ours[name].astype(mx.float32)), wide(published[name]))


def multiplied(model: Model, ours: dict[str, mx.array], name: str) -> np.ndarray:
    """The rows of this published matrix, in whichever product they are."""
    layer, part = re.fullmatch(r"(model\.layers\.\d+\.)(.*)\.weight", name).groups()
    ((product, parts),) = ((product, parts) for product, parts in model.args.products().items() if part in parts)
    packed = (ours[f"{layer}{product}.{kind}"] for kind in ("weight", "scales", "biases"))
    start = sum(model.args.linears()[before][0] for before in parts[: parts.index(part)])
    whole = np.array(mx.dequantize(*packed, group_size=128, bits=4))
    return whole[start : start + model.args.linears()[part][0]]


def tree(model: Model):
    return tree_flatten(model.parameters())


def wide(bits: np.ndarray) -> np.ndarray:
    """bf16 -> float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def test_the_speakers_row_is_the_references(model):
    np.testing.assert_allclose(np.array(speaker_row(model)), golden("lm")["full_speaker_row"], rtol=0, atol=1e-6)


def test_every_layer_of_a_prompt_is_the_references(model):
    want, ids = golden("lm")["no_ref_hidden"], mx.array(PROMPTS["prompts"]["no_ref"])[None]
    x = model.embed(ids)
    x = mx.concatenate([speaker_row(model)[None, None], x[:, 1:]], axis=1)
    cache = Prefill([None] * 2, 0)
    first = model.model.layers[0](x, 0, cache)
    np.testing.assert_allclose(np.array(first[0]), want[0], rtol=0, atol=LOGITS_ATOL)
    last = model.model.norm(model.model.layers[1](first, 1, cache))
    np.testing.assert_allclose(np.array(last[0]), want[1], rtol=0, atol=LOGITS_ATOL)


@pytest.mark.parametrize("case", ["full", "no_ref"])
def test_logits_and_greedy_tokens_are_the_references(model, everything, pasts, case):
    want, ids = golden("lm"), known_ids()
    batch = Batch.start(everything, pasts[case], GREEDY, seed=0)
    for step in range(5):
        logits = np.array(batch._rows["logits"])[0, ids]
        np.testing.assert_allclose(logits, want[f"{case}_logits"][step], rtol=0, atol=LOGITS_ATOL)
        assert spoken(batch, 1)[0, 0] == want[f"{case}_tokens"][step]
    np.testing.assert_array_equal(spoken(batch, 20, 15)[0], want[f"{case}_tokens"][5:])


def test_tokens_after_all_processors_are_the_references(model, everything, pasts):
    batch = Batch.start(everything, pasts["full"], Settings(temperature=0, **PIPELINE), seed=0)
    np.testing.assert_array_equal(spoken(batch, 40)[0], golden("lm")["pipeline_tokens"])


@pytest.mark.parametrize("case", PROCESSORS, ids=lambda case: case["name"])
def test_scores_are_the_references(tokens, case):
    files, names = golden("logits_processors"), [other["name"] for other in PROCESSORS]
    scores, want = (files["scores_then_outs"][i] for i in (0, 1 + names.index(case["name"])))
    history = files[f"hist_{case['name']}"]
    knobs = {key: value for key, value in case.items() if key not in ("name", "prompt_length", "finite")}
    how = Settings(**knobs).arrays(len(scores), case["prompt_length"])
    padded = mx.array(np.pad(history, (0, 50)))[None]  # what is not filled yet counts for nothing
    ends = replace(tokens, speech_end_id=268, stop_id=272)
    got = process(mx.array(scores)[None], padded, mx.array([len(history)]), mx.array([_run(history)]), how, ends)
    np.testing.assert_array_equal(np.array(got)[0], want)
    assert np.isfinite(want).sum() == case["finite"]


@pytest.mark.parametrize("layout", PROMPTS["prompts"])
def test_prompts_are_laid_out_as_the_references(repository, layout):
    tokenizer = Tokenizer.from_file(str(repository / "lm" / "tokenizer.json"))
    transcript, text, emotion = (
        tokenizer.encode(words, add_special_tokens=False).ids
        for words in (PROMPTS["reference_transcript"], PROMPTS["target"], "{emo: 1}")
    )
    tokens = read_args(repository)[1]
    if layout == "plain_wrappers":
        tokens = replace(tokens, reference_text_start_id=0, final_seg_id=0)
    with np.load(KITTEN / "voices" / "tiny.npz") as voice:
        speech = voice["reference_tokens"].tolist()
    start = [tokens.start_id] if layout.startswith("no_ref") else tokens.voice(transcript, speech)
    ids = start + tokens.text(text, emotion if layout in ("full", "no_ref_emo") else ())
    assert ids == PROMPTS["prompts"][layout]
    assert tokens.speech([3, tokens.audio_id_base, tokens.audio_id_end - 1, tokens.audio_id_end]) == [0, 6560]


def test_the_tokenizer_is_the_references(repository):
    tokenizer = Tokenizer.from_file(str(repository / "lm" / "tokenizer.json"))
    for words, ids in PROMPTS["tokenizer_cases"]:
        assert tokenizer.encode(words, add_special_tokens=False).ids == ids


# ---- rows


def test_rows_that_join_and_leave_say_what_they_say_alone(model, everything, pasts):
    """Each with its own prompt, settings and seed."""
    rows = [("full", LIVELY, 5), ("no_ref", GREEDY, 6), ("ref_no_emo", Settings(temperature=1.2), 7)]

    def start(i: int) -> Batch:
        name, settings, seed = rows[i]
        return Batch.start(everything, pasts[name], settings, seed)

    alone = [spoken(start(i), 30)[0] for i in range(3)]
    batch, pair = start(0), start(1)
    first = spoken(batch, 10)
    pair.join(start(2))
    batch.join(pair)
    all_three = spoken(batch, 10)
    first_row, _, third_row = batch.split()
    batch = Batch.of([third_row, first_row])
    two = spoken(batch, 10)
    assert len(batch) == 2
    np.testing.assert_array_equal(np.concatenate([first[0], all_three[0], two[1]]), alone[0])
    np.testing.assert_array_equal(all_three[1], alone[1][:10])
    np.testing.assert_array_equal(np.concatenate([all_three[2], two[0]]), alone[2][:20])


@pytest.mark.slow  # g++ builds its kernels for half a minute
def test_a_compiled_step_draws_the_same(model, tokens, pasts):
    plain, compiled = (
        spoken(Batch.start(Vocabulary(model, tokens, False, each), pasts["full"], LIVELY, seed=2), 20)
        for each in (False, True)
    )
    np.testing.assert_array_equal(plain, compiled)


def test_a_seed_is_one_reading_and_another_seed_another(model, everything, pasts):
    first, again, other = (spoken(Batch.start(everything, pasts["full"], LIVELY, seed), 12) for seed in (3, 3, 4))
    assert first.tobytes() == again.tobytes() and first.tobytes() != other.tobytes()


def test_more_positions_than_were_there_change_nothing(model, everything, pasts):
    grown, roomy = (Batch.start(everything, pasts["full"], LIVELY, seed=1) for _ in range(2))
    roomy._reserve(3 * BLOCK)
    assert grown.capacity == BLOCK
    np.testing.assert_array_equal(spoken(grown, 150, 150), spoken(roomy, 300))
    assert grown.capacity == 2 * BLOCK


def test_a_voice_that_was_read_is_read_on_from_as_often_as_one_likes(model, everything):
    ids, row = PROMPTS["prompts"]["full"], speaker_row(model)
    whole = spoken(Batch.start(everything, read(model, ids, row), LIVELY, seed=1), 12)
    voice = read(model, ids[:29], row)
    for _ in range(2):
        past = read(model, ids[29:], past=voice)
        assert past.ids == tuple(ids)
        np.testing.assert_array_equal(spoken(Batch.start(everything, past, LIVELY, seed=1), 12), whole)


def test_a_row_ends_where_its_end_is_drawn_and_the_others_go_on(model, tokens, pasts):
    said = golden("lm")["full_tokens"]
    ending = Vocabulary(model, replace(tokens, stop_id=int(said[7])), speech_only=False)
    batch = Batch.start(ending, pasts["full"], GREEDY, seed=0)
    batch.join(Batch.start(ending, pasts["no_ref"], GREEDY, seed=0))
    ours, others = spoken(batch, 5, 15)
    np.testing.assert_array_equal(ours, [*said[:7], *[-1] * 13])
    np.testing.assert_array_equal(others, golden("lm")["no_ref_tokens"][:20])


@pytest.mark.parametrize("history", [[5, 7, 7, 7], [7, 7], [7], [7, 5]])
def test_how_often_the_last_token_came_in_a_row(history):
    assert _run(np.array(history)) == len(history) - len("".join(map(str, history)).rstrip(str(history[-1])))


def test_speech_alone_is_drawn_where_text_has_no_part(model, repository, pasts):
    """The head's other rows are left out; those that are there say what they say among all."""
    tokens = read_args(repository)[1]
    speech, everything = (Vocabulary(model, tokens, only) for only in (True, False))
    hidden = pasts["full"].hidden
    table = np.array(speech.table)
    assert sorted(table) == sorted({*range(tokens.audio_id_base, tokens.audio_id_end), *tokens.ends})
    np.testing.assert_allclose(
        np.array(speech.logits(hidden))[0], np.array(everything.logits(hidden))[0, table], rtol=0, atol=1e-5
    )
    drawn = spoken(Batch.start(speech, pasts["full"], Settings(temperature=5.0), seed=2), 30)
    assert drawn.min() >= tokens.audio_id_base and drawn.max() < tokens.audio_id_end
    assert len(set(drawn[0])) > 20


def test_penalties_hold_for_speech_alone_as_for_all(model, repository, pasts):
    """Greedy, so text is out of the way wherever it is not the likeliest: the golden draws none in `full`."""
    tokens = read_args(repository)[1]
    batch = Batch.start(
        Vocabulary(model, tokens, speech_only=True), pasts["full"], Settings(temperature=0, **PIPELINE), seed=0
    )
    want = golden("lm")["pipeline_tokens"]
    until = next((i for i, t in enumerate(want) if not tokens.audio_id_base <= t < tokens.audio_id_end), len(want))
    assert until > 10
    np.testing.assert_array_equal(spoken(batch, until)[0], want[:until])


def test_draws_are_in_the_proportion_of_their_chances():
    chances = np.array([0.5, 0.3, 0.2, 0.0])
    scores = mx.broadcast_to(mx.log(mx.array(chances)), (4000, 4))
    drawn = np.array(draw(scores, mx.random.split(mx.random.key(0), 4000), {"noise": mx.ones((1, 1))}))
    np.testing.assert_allclose(np.bincount(drawn, minlength=4) / 4000, chances, atol=0.03)


def test_logits_that_are_not_finite_are_told_of_their_row_alone(model, everything, pasts):
    batch = Batch.start(everything, replace(pasts["full"], hidden=pasts["full"].hidden * mx.nan), GREEDY, 0)
    batch.join(Batch.start(everything, pasts["no_ref"], GREEDY, 0))
    assert batch.run(2)[1].tolist() == [False, True]


# ---- refused, in one line that names the file


def without(name: str):
    return lambda found, about: found.pop(name)


def with_array(name: str, change):
    def mutate(found, about):
        found[name] = change(found[name].copy())

    return mutate


def with_metadata(**fields: str):
    return lambda found, about: about.update(fields)


def at_end(value: int):
    def change(codes):
        codes[-1] = value
        return codes

    return change


Q = "model.layers.1.self_attn.q_proj.weight"
WRONG = {
    "missing": (without("model.norm.weight"), "missing model.norm.weight [256]"),
    "extra": (
        lambda found, about: found.update({"lm_head.weight": found["model.norm.weight"]}),
        "extra lm_head.weight",
    ),
    "short": (with_array(f"{Q}::codes", lambda a: a[:-1]), f"misshapen {Q}::codes [13107], should be [13108]"),
    "scales of fp32": (with_array(f"{Q}::scale", wide), f"wrong type {Q}::scale F32, should be BF16"),
    "no digits": (with_array(f"{Q}::codes", lambda a: np.maximum(a, 243)), f"{Q} has a byte 2"),
    "digits in the padding": (with_array(f"{Q}::codes", at_end(3)), f"{Q} has digits after its last weight"),
    "infinite scale": (with_array(f"{Q}::scale", lambda a: a | 0x7F80), f"{Q} has a scale that is not finite"),
    "format": (with_metadata(format="another"), "the format is 'another'"),
    "group size": (with_metadata(group_size="64"), "groups of 64"),
    "no metadata": (lambda found, about: about.clear(), "no 'format' in it"),
    "another list": (with_metadata(packed="{}"), "not those of the config"),
}


@pytest.mark.parametrize(("mutate", "says"), WRONG.values(), ids=WRONG.keys())
def test_weights_that_are_not_as_they_must_be_are_refused(repository, tmp_path, mutate, says):
    found, about, path = tensors(), metadata(), tmp_path / "model-ternary.safetensors"
    mutate(found, about)
    write_weights(path, found, about)
    with pytest.raises(ValueError) as error:
        load_model(path, read_args(repository)[0])
    assert str(error.value).startswith(str(path)) and says in str(error.value) and "\n" not in str(error.value)


CONFIGS = {
    "full": ("config.json", {"lm_packed": None, "default_weights": "full"}, "four times the bytes"),
    "emb4": ("config.json", {"lm_packed": None, "default_weights": "emb4"}, "rounded to 4 bits"),
    "another model": ("config.json", {"type": "ONNX2"}, "its type is 'ONNX2'"),
    "no speaker": ("config.json", {"speaker_embedding_dim": None}, "speaker_embedding_dim"),
    "scaled rope": ("lm/config.json", {"rope_scaling": {"rope_type": "yarn"}}, "rope_scaling is"),
    "a head of its own": ("lm/config.json", {"tie_word_embeddings": False}, "tie_word_embeddings is False"),
    "no dims": ("lm/config.json", {"head_dim": None}, "head_dim"),
    "broken groups": ("lm/config.json", {"hidden_size": 250}, "not whole groups of 128"),
    "small vocabulary": ("lm/config.json", {"vocab_size": 6000}, "beyond its vocabulary of 6000"),
}


@pytest.mark.parametrize(("name", "fields", "says"), CONFIGS.values(), ids=CONFIGS.keys())
def test_a_repository_of_another_kind_is_refused(tmp_path, name, fields, says):
    directory = shutil.copytree(KITTEN, tmp_path / "repository")
    config = json.loads((directory / name).read_text()) | fields
    (directory / name).write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    with pytest.raises(ValueError) as error:
        read_args(directory)
    assert str(error.value).startswith(str(directory)) and says in str(error.value) and "\n" not in str(error.value)


def test_no_more_matrices_are_unpacked_than_wait_for_their_turn(repository, monkeypatch):
    args, _, path = read_args(repository)
    names, begun, codes = [*load.packed_shapes(args)], [], load._codes
    monkeypatch.setattr(load, "_codes", lambda path, name, *more: begun.append(name) or codes(path, name, *more))
    unpacked = load._unpacked(path, load.read_header(path), args, names)
    for number in range(1, len(names) + 1):
        next(unpacked)
        assert len(begun) <= number + load.AHEAD
    assert sorted(begun) == sorted(names)


def test_a_load_holds_the_model_and_little_else(repository):
    args, _, path = read_args(repository)
    largest = args.vocab_size * args.hidden_size * 2
    mx.clear_cache()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    model = load_model(path, args)
    kept = mx.get_active_memory() - before
    assert kept < sum(array.nbytes for _, array in tree(model)) * 1.05
    assert mx.get_peak_memory() - before < kept + largest
