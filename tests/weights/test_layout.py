"""Every spelling of a checkpoint becomes the same model: names, rows, dims, tokenizer."""

import json

import mlx.core as mx
import numpy as np
import pytest
from tokenizers import Tokenizer

from misod.miso.load import load_model, read_config
from misod.miso.mimi import load_mimi
from misod.weights.convert import Parts, convert
from misod.weights.dims import MISO_8B, ModelArgs, expected_shapes
from misod.weights.layout import BOS, EOS, interleave, mimi_sources, read_args, reference_name, templated
from tests.model.miso_fixture import BF16, make_bf16
from tests.weights.conftest import FIXTURES, MIMI, TINY, mlx_audio_config, mlx_audio_name, write_mlx_audio

ORIGIN = {"repo": "fixture", "revision": None, "licence": None}


def made(parts: Parts, models, precision: str = "bf16"):
    return convert(parts, models, "made", precision, origin=ORIGIN, card="A fixture.\n")


def test_mlx_audios_names_are_the_references_and_the_references_are_their_own():
    for name in expected_shapes(MISO_8B):
        assert reference_name(name) == name
        assert reference_name(mlx_audio_name(name)) == name
        assert reference_name(mlx_audio_name(name).removeprefix("model.")) == name
    assert (
        reference_name("model.decoder.layers.7.self_attn.o_proj.scales") == "decoder.layers.7.attn.output_proj.scales"
    )
    assert reference_name("model.text_embeddings.biases") == "text_embeddings.biases"
    assert reference_name("model.backbone.embed_tokens.weight") == "backbone.embed_tokens.weight"


@pytest.mark.parametrize("spelling", ["reference", "mlx-audio", "ours"])
def test_each_spelling_gives_the_references_logits_and_frames(tmp_path, models, tokenizer, spelling):
    """The golden is the reference's, in fp32, on these bf16 weights; rows of q and k in another order are far off."""
    source = make_bf16(tmp_path / "source")
    source = source if spelling != "mlx-audio" else write_mlx_audio(source, tmp_path / "audio")
    folder = made(Parts(source, MIMI / "model.safetensors", tokenizer), models)
    if spelling == "ours":
        folder = made(Parts(folder, folder / "codec" / "model.safetensors", folder / "tokenizer.json"), models)
    args, _, quantization = read_config(folder / "config.json")
    model = load_model([folder / "model.safetensors"], args, quantization)
    with np.load(BF16 / "golden.npz", allow_pickle=False) as want:
        tokens, mask = mx.array(want["prompt_tokens"].astype(np.int32)), mx.array(want["prompt_mask"])
        cache, x = model.new_cache(), model.embed_prompt(tokens, mask)
        for f, frame in enumerate(want["frames"]):
            last_h = model.read(x, cache)
            logits = []
            codes, _ = model.frame(last_h, lambda _, row: (logits.append(row), mx.argmax(row, axis=-1))[1])  # noqa: B023
            np.testing.assert_allclose(np.array(last_h[0]), want["last_h"][f], rtol=0, atol=5e-5)
            np.testing.assert_allclose(np.array(logits[0][0]), want["c0_logits"][f], rtol=0, atol=3e-4)
            np.testing.assert_array_equal(np.array(codes[0]), frame)
            x = model.embed_frame(codes)


def test_dims_are_read_from_either_config_and_are_the_8bs_where_there_is_none(tmp_path):
    ours = json.loads((TINY / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(mlx_audio_config(ours)))
    assert read_args(tmp_path / "config.json") == read_args(TINY / "config.json") == ModelArgs.from_dict(ours)
    assert read_args(tmp_path / "absent.json") == MISO_8B
    (tmp_path / "config.json").write_text('{"model_type": "sesame", "depth_decoder_config": null}')
    assert read_args(tmp_path / "config.json") == MISO_8B


def test_the_flavours_of_older_configs_are_the_8b(tmp_path):
    sizes = {"text_vocab_size": 128_256, "audio_vocab_size": 2051, "audio_num_codebooks": 32}
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"backbone_flavor": "llama-8B", "decoder_flavor": "llama-300M", **sizes}))
    assert read_args(path) == MISO_8B
    path.write_text(json.dumps({"backbone_flavor": "llama-9B", "decoder_flavor": "llama-300M", **sizes}))
    with pytest.raises(ValueError, match=r"config\.json: no 'llama-9B'"):
        read_args(path)


@pytest.mark.parametrize("config", ["", "[]", '{"backbone": 3}', '{"depth_decoder_config": {"num_hidden_layers": 2}}'])
def test_a_config_that_says_too_little_is_named(tmp_path, config):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(ValueError, match=r"^\S*config\.json: "):
        read_args(tmp_path / "config.json")


def test_mimis_names_in_transformers_are_those_that_were_verified_by_loading():
    names = json.loads((FIXTURES / "mimi_tiny" / "mimi_names.json").read_text())
    assert len(names) == 318
    for published, theirs in names.items():
        assert mimi_sources(published, ()) == theirs
        assert mimi_sources(published, {published}) == [published]


def test_moshis_newer_spelling_of_a_projection_is_known():
    name = "encoder_transformer.transformer.layers.0.self_attn.in_proj_weight"
    newer = "encoder_transformer.transformer.layers.0.self_attn.in_projs.0.weight"
    assert mimi_sources(name, {newer}) == [newer]
    name, newer = name.replace("in_proj_", "out_proj."), newer.replace("in_projs", "out_projs")
    assert mimi_sources(name, {newer}) == [newer]


def write_transformers_mimi(folder):
    """The tiny codec under transformers' names, its q and k rows sorted for rotating halves."""
    folder.mkdir()
    stored, out = mx.load(str(MIMI / "model.safetensors")), {}
    for name, w in stored.items():
        theirs = mimi_sources(name, ())
        if len(theirs) == 1:
            out[theirs[0]] = w
            continue
        for part, rows in zip(theirs, mx.split(w, 3), strict=True):
            halves = rows.reshape(4, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
            out[part] = rows if part.endswith("v_proj.weight") else halves
    mx.save_safetensors(str(folder / "model.safetensors"), out)
    (folder / "config.json").write_bytes((MIMI / "config.json").read_bytes())
    return folder / "model.safetensors"


def test_transformers_codec_becomes_the_published_one_bit_for_bit(tmp_path, models, tokenizer):
    codec = write_transformers_mimi(tmp_path / "mimi")
    folder = made(Parts(TINY, codec, tokenizer), models)
    published, converted = (mx.load(str(p / "model.safetensors")) for p in (MIMI, folder / "codec"))
    assert published.keys() == converted.keys()
    assert all(mx.array_equal(published[name], converted[name]) for name in published)
    load_mimi(folder / "codec")


def test_interleaving_undoes_sorting_into_halves():
    rows = np.arange(24, dtype=np.float32).reshape(12, 2)
    halves = rows.reshape(2, 3, 2, 2).swapaxes(1, 2).reshape(12, 2)
    np.testing.assert_array_equal(interleave(halves, 2), rows)


def test_the_tokenizer_puts_bos_before_and_eos_after(tmp_path, tokenizer):
    (tmp_path / "out.json").write_bytes(templated(tokenizer))
    made = Tokenizer.from_file(str(tmp_path / "out.json"))
    plain = Tokenizer.from_file(str(tokenizer))
    bos, eos = (plain.token_to_id(token) for token in (BOS, EOS))
    assert plain.encode("[0] Hé.").ids == made.encode("[0] Hé.").ids[1:-1]
    assert made.encode("[0] Hé.").ids[0] == bos and made.encode("[0] Hé.").ids[-1] == eos
    assert templated(tmp_path / "out.json") == (tmp_path / "out.json").read_bytes()


@pytest.mark.parametrize("raw", ["{}", "3", '{"added_tokens": []}', "nonsense", '{"added_tokens": [{"content": "x"}]}'])
def test_a_tokenizer_without_llamas_tokens_is_named(tmp_path, raw):
    (tmp_path / "tokenizer.json").write_text(raw)
    with pytest.raises(ValueError, match=r"^\S*tokenizer\.json: "):
        templated(tmp_path / "tokenizer.json")
