"""What a body asks for, and each of the ways in which it may be wrong."""

import json

import pytest

from misoctl.http import asked
from misoctl.http.refusal import Refusal
from protocol import messages as m


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("MISO_HOME", str(tmp_path))
    for name in ("anna", "alloy"):
        (tmp_path / "voices").mkdir(exist_ok=True)
        (tmp_path / "voices" / f"{name}.safetensors").touch()
    (tmp_path / "models" / "miso").mkdir(parents=True)
    return tmp_path


def read(**fields) -> asked.Asked:
    return asked.read(json.dumps({"input": "Hello."} | fields).encode())


def test_nothing_but_a_text_is_enough():
    wanted = read()
    assert wanted.say == {"text": "Hello.", "model": None, "speaker": 0, "seed": None}
    assert (wanted.response_format, wanted.sse, wanted.ignored) == ("mp3", False, ())


def test_null_is_not_given():
    assert read(**dict.fromkeys(asked.TYPES.keys() - {"input"})) == read()


@pytest.mark.parametrize("name", asked.ALIASES)
def test_openais_models_are_whichever_is_loaded(name):
    assert read(model=name).say["model"] is None


@pytest.mark.parametrize("name", ["nano", "miso"])
def test_models_that_are_here_go_by_their_names(name):
    assert read(model=name).say["model"] == name


def test_the_voices_of_the_openai_client_are_all_here():
    from typing import get_args

    from openai.types.audio.speech_create_params import Voice

    theirs = {name for part in get_args(Voice) for name in get_args(part)}
    assert "onyx" in theirs and theirs == asked.SPEAKERS.keys()
    assert {*asked.SPEAKERS.values()} == {0, 1}


@pytest.mark.parametrize(
    ("voice", "say"),
    [
        ("nova", {"speaker": 0}),
        ("onyx", {"speaker": 1}),
        ("0", {"speaker": 0}),
        ("12", {"speaker": 12}),
        ("anna", {"voice": "anna"}),
        ("alloy", {"voice": "alloy"}),  # learned here: before OpenAI's
        ({"id": "anna"}, {"voice": "anna"}),
    ],
)
def test_voices(voice, say):
    said = read(voice=voice).say
    assert {name: said[name] for name in ("speaker", "voice") if name in said} == say


def test_instructions_are_told_to_be_ignored():
    assert read(instructions="Whisper.").ignored == ("instructions",)
    assert read(instructions="").ignored == ()


@pytest.mark.parametrize("name", asked.MEDIA_TYPES)
def test_formats(name):
    assert read(response_format=name).response_format == name


REFUSED = {  # fields, status, the field that is named, a word of the message
    "no text": ({"input": None}, 400, "input", "nothing to say"),
    "empty": ({"input": ""}, 400, "input", "nothing to say"),
    "marks only": ({"input": "... !"}, 400, "input", "nothing to say"),
    "too long": ({"input": "a" * (m.MAX_TEXT_BYTES + 1)}, 400, "input", "60,001 bytes"),
    "half a character": ({"input": "a\ud800"}, 400, "input", "surrogate"),
    "text of another type": ({"input": ["Hello."]}, 400, "input", "must be text"),
    "no such voice": ({"voice": "ana"}, 400, "voice", "did you mean anna?"),
    "a voice by a path": ({"voice": "../anna"}, 400, "voice", "did you mean anna?"),
    "a number with a sign": ({"voice": "-1"}, 400, "voice", "there is"),
    "a number of another script": ({"voice": "\u0663"}, 400, "voice", "there is"),
    "a voice without id": ({"voice": {"name": "anna"}}, 400, "voice", '{"id": name}'),
    "a voice by a number": ({"voice": 1}, 400, "voice", "must be a name"),
    "no such model": ({"model": "nanno"}, 404, "model", "did you mean nano?"),
    "a model by a path": ({"model": "../models/miso"}, 404, "model", "miso"),
    "an empty model": ({"model": ""}, 404, "model", "there is miso, nano"),
    "aac": ({"response_format": "aac"}, 400, "response_format", "mp3, opus, flac, wav, pcm are"),
    "a misspelt format": ({"response_format": "mp"}, 400, "response_format", "did you mean mp3?"),
    "faster": ({"speed": 1.5}, 400, "speed", "1.0"),
    "not a speed": ({"speed": float("nan")}, 400, "speed", "1.0"),
    "speed by a bool": ({"speed": True}, 400, "speed", "must be a number"),
    "stream": ({"stream_format": "ws"}, 400, "stream_format", "audio, sse"),
    "seed too large": ({"seed": 2**32}, 400, "seed", "0 to 4294967295"),
    "seed below": ({"seed": -1}, 400, "seed", "0 to"),
    "seed by a bool": ({"seed": True}, 400, "seed", "whole number"),
    "seed by a float": ({"seed": 1.5}, 400, "seed", "whole number"),
    "a misspelt field": ({"sped": 1.0}, 400, "'sped'", "did you mean speed?"),
    "a field of anything": ({"\n" + "é" * 900: 1}, 400, None, "unknown field"),
}


@pytest.mark.parametrize(("fields", "status", "param", "word"), REFUSED.values(), ids=REFUSED.keys())
def test_refused_by_name(fields, status, param, word):
    with pytest.raises(Refusal) as refused:
        read(**fields)
    error = refused.value.error["error"]
    assert refused.value.status == status and word in error["message"]
    assert param in (None, error["param"]) and error["type"] == "invalid_request_error" and error["code"]
    assert "\n" not in error["message"] and len(error["message"]) < 400


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"nope", b"\xff\xfe\x00", b'"text"', b"[]", b"null", b"7", b'{"input": "\xff"}'),
        *(b"[" * 200_000, b'{"a":' * 200_000, b"9" * 10_000, b'{"seed": ' + b"9" * 10_000 + b"}"),
    ],
    ids=lambda body: f"{body[:12]}",
)
def test_what_is_no_json_object(body):
    with pytest.raises(Refusal) as refused:
        asked.read(body)
    assert (refused.value.status, refused.value.code) == (400, "bad_json")


def test_the_longest_text_fits_into_the_body_that_is_taken():
    from misoctl.http.app import MAX_BODY_BYTES

    body = b'{"input": "a' + b"\\u0001" * (m.MAX_TEXT_BYTES - 1) + b'"}'
    assert len(body) < MAX_BODY_BYTES
    assert len(asked.read(body).say["text"]) == m.MAX_TEXT_BYTES
