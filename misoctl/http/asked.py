"""The body of POST /v1/audio/speech, which anybody may have written, to what misod and the encoder take."""

import json
from collections.abc import Iterator
from dataclasses import dataclass

from misoctl import completion
from misoctl.http.refusal import Refusal
from protocol import messages as m
from protocol.errors import near

ALIASES = ("tts-1", "tts-1-hd", "gpt-4o-mini-tts", "gpt-4o-mini-tts-2025-12-15")  # for the model that is loaded
SPEAKERS = dict.fromkeys(("alloy", "coral", "marin", "nova", "sage", "shimmer"), 0)
SPEAKERS |= dict.fromkeys(("ash", "ballad", "cedar", "echo", "fable", "onyx", "verse"), 1)
MEDIA_TYPES = {
    "mp3": "audio/mpeg",
    "opus": "audio/ogg",
    "flac": "audio/flac",
    "wav": "audio/wav",
    "pcm": "audio/pcm",
}
STREAM_FORMATS = ("audio", "sse")
TYPES = {  # what each field may be; a number is no bool, which check looks at
    "model": (str, "text"),
    "input": (str, "text"),
    "voice": ((str, dict), "a name"),
    "instructions": (str, "text"),
    "response_format": (str, f"one of {', '.join(MEDIA_TYPES)}"),
    "speed": ((int, float), "a number"),
    "stream_format": (str, f"one of {', '.join(STREAM_FORMATS)}"),
    "seed": (int, "a whole number"),  # OpenAI has none
}


@dataclass(frozen=True)
class Asked:
    """`say`: what is sent to misod. `ignored`: fields that were understood and have no effect."""

    say: dict
    response_format: str
    sse: bool
    ignored: tuple[str, ...]


def read(body: bytes) -> Asked:
    """Raises Refusal, naming the field."""
    fields = _fields(body)
    _check_speed(fields.get("speed", 1))
    return Asked(
        say={"text": _text(fields), "model": _model(fields.get("model"))}
        | _voice(fields.get("voice"))
        | {"seed": _seed(fields.get("seed"))},
        response_format=_format(fields.get("response_format", "mp3")),
        sse=_one_of(STREAM_FORMATS, fields.get("stream_format", "audio"), "stream_format") == "sse",
        ignored=("instructions",) if fields.get("instructions") else (),
    )


def known_models() -> Iterator[str]:
    yield from sorted(set(completion.models()))
    yield from ALIASES


def known_voices() -> Iterator[str]:
    """A voice that was learned goes before one of OpenAI's of the same name."""
    yield from sorted(set(completion.voices()) | SPEAKERS.keys())


def _fields(body: bytes) -> dict:
    """What was given, each of its type; null is not given."""
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is not JSON", code="bad_json") from None
    if not isinstance(fields, dict):
        raise Refusal(400, "the body is not a JSON object", code="bad_json")
    fields = {name: value for name, value in fields.items() if value is not None}
    for name, value in fields.items():
        if name not in TYPES:
            raise Refusal(400, f"unknown field {_shown(name)}: {near(name, TYPES)}", _shown(name), "unknown_parameter")
        kind, wanted = TYPES[name]
        if not isinstance(value, kind) or isinstance(value, bool):
            raise Refusal(400, f"{name} must be {wanted}", name, "invalid_type")
    return fields


def _text(fields: dict) -> str:
    text = fields.get("input", "")
    if not m.speakable(text):
        raise Refusal(400, "there is nothing to say in input: give it words", "input", "unspeakable")
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        raise Refusal(400, "input has half of a character in it (a lone surrogate)", "input", "invalid_value") from None
    if size > m.MAX_TEXT_BYTES:
        message = f"input is {size:,} bytes, over {m.MAX_TEXT_BYTES:,}, the most that one request takes: split it"
        raise Refusal(400, message, "input", "string_above_max_length")
    return text


def _model(name: str | None) -> str | None:
    if name is None or name in ALIASES:
        return None
    return _one_of(tuple(known_models()), name, "model", 404, "model_not_found")


def _voice(voice: str | dict | None) -> dict:
    """OpenAI's clients give a voice of one's own as {"id": name}."""
    if isinstance(voice, dict):
        voice = voice.get("id")
        if not isinstance(voice, str):
            raise Refusal(400, 'voice must be a name, or {"id": name}', "voice", "invalid_type")
    if voice is None:
        return {"speaker": 0}
    if voice in completion.voices():
        return {"voice": voice}
    if voice.isascii() and voice.isdigit() and len(voice) <= 2:
        return {"speaker": int(voice)}
    return {"speaker": SPEAKERS[_one_of(tuple(known_voices()), voice, "voice", code="voice_not_found")]}


def _seed(seed: int | None) -> int | None:
    if seed is not None and not 0 <= seed <= m.UINT32:
        raise Refusal(400, f"seed must be 0 to {m.UINT32}", "seed", "invalid_value")
    return seed


def _check_speed(speed: float) -> None:
    if speed != 1:
        raise Refusal(400, "speed must be 1.0: miso does not speak faster or slower yet", "speed", "unsupported_value")


def _format(name: str) -> str:
    if name == "aac":
        message = f"response_format aac is not made here: {', '.join(MEDIA_TYPES)} are"
        raise Refusal(400, message, "response_format", "unsupported_value")
    return _one_of(tuple(MEDIA_TYPES), name, "response_format")


def _one_of(known: tuple[str, ...], name: str, field: str, status: int = 400, code: str = "invalid_value") -> str:
    if name not in known:
        raise Refusal(status, f"there is no {field} {_shown(name)}: {near(name, known)}", field, code)
    return name


def _shown(name: str) -> str:
    """Of a name that may be anything, what fits on a line."""
    return ascii(name[:40])
