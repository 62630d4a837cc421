"""Voices and dialogues as the I/O thread sees them: what clients ask of them is answered here, from memory and disk."""

import json
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from misod import published, voices
from misod.dialogues import Dialogue, Dialogues
from misod.engine import Heard, ModelError, model_directory
from misod.voices import Store, Voice
from protocol import messages as m
from protocol.errors import ProtocolError
from protocol.paths import Paths


class Library:
    """Each refusal is a ProtocolError without the request's id. `dropped` is told the digest of a voice, or of a
    dialogue's past, that goes."""

    def __init__(self, paths: Paths, dropped: Callable[[str], None]):
        self.store = Store(paths.voices, paths.prefixes, dropped)
        self.dialogues = Dialogues(dropped)
        self._models = paths.models

    @property
    def voices(self) -> int:
        """That were learned; 0 where nobody can look, which whoever asks for them is told."""
        with suppress(ProtocolError):
            return len(self.store.names())
        return 0

    def answer(self, message: m.Message) -> m.Message:
        """The reply to one of ANSWERS."""
        return ANSWERS[type(message)](self, message)

    def check_learn(self, learn: m.Learn) -> None:
        """Before the work."""
        check_clip(learn.clip)
        self.store.check_room(learn.name, learn.replace)

    def learned(self, learn: m.Learn, heard: Heard) -> tuple[m.Voices, str]:
        """The answer, and the digest of the voice."""
        voice = Voice(
            **vars(heard),
            name=learn.name,
            text=learn.text,
            speaker=learn.speaker,
            clip_digest=learn.clip_digest,
            created=voices.now(),
            licence=learn.licence,
            permission=learn.permission,
        )
        self.store.write(voice, learn.replace)
        return self._voices(learn.id, voice.name), voice.digest

    def voice_of(self, say: m.Say) -> Voice | None:
        """The one that was learned; None also where the name may be one of the model's own."""
        if say.clip:
            check_clip(say.clip)
        if say.clip_text and not say.clip:
            raise ProtocolError("bad_value", "say.clip_text is of a say.clip")
        if say.voice is None:
            return None
        if say.clip:
            raise ProtocolError("bad_value", "say.voice and say.clip are one or the other")
        if m.is_name(say.voice) and say.voice not in self.store.names():
            return None
        return self.store.read(say.voice)

    def dialogue_of(self, say: m.Say) -> Dialogue | None:
        if say.session is None:
            return None
        if not m.is_name(say.session):
            raise ProtocolError("bad_value", m.NAME_RULE)
        return self.dialogues.get(say.session)

    def _voices(self, request: int, name: str) -> m.Voices:
        return m.Voices(id=request, listing=_json(self.store.listing(name)))

    def _on_voices(self, asked: m.VoicesRequest) -> m.Voices:
        if not asked.model:
            return self._voices(asked.id, asked.name)
        own = self._own(asked.model, asked.name)
        learned = self.store.names()
        if asked.name and asked.name not in learned and own:
            return m.Voices(id=asked.id, listing=_json(own))
        rows = self.store.listing(asked.name)
        return m.Voices(id=asked.id, listing=_json(rows + [row for row in own if row["name"] not in learned]))

    def _own(self, model: str, name: str) -> list[dict]:
        """What the model brings. A model that is not as it must be brings none: to speak with it says what is wrong."""
        try:
            return published.listing(model_directory(model, self._models), name)
        except ModelError as error:
            raise ProtocolError(error.code, str(error)) from None
        except (OSError, ValueError, TypeError, AttributeError, KeyError):
            return []

    def _on_forget(self, forget: m.Forget) -> m.Voices:
        listing = self.store.forget(forget.name)
        return m.Voices(id=forget.id, listing=_json([listing]))

    def _on_export(self, export: m.Export) -> m.VoiceFile:
        return m.VoiceFile(id=export.id, name=export.name, data=self.store.read(export.name).pack())

    def _on_import(self, given: m.Import) -> m.Voices:
        try:
            voice = voices.unpack(given.data)
        except ValueError as error:
            raise ProtocolError("bad_voice", f"this is no voice's file: {error}") from None
        if given.name:
            voice = replace(voice, name=given.name)
        self.store.write(voice, given.replace)
        return self._voices(given.id, voice.name)

    def _on_sessions(self, asked: m.SessionsRequest) -> m.Sessions:
        return m.Sessions(id=asked.id, listing=_json(self.dialogues.listing()))

    def _on_forget_session(self, forget: m.ForgetSession) -> m.Sessions:
        if not self.dialogues.forget(forget.name):
            raise ProtocolError("no_session", "there is no session of that name")
        return m.Sessions(id=forget.id, listing=_json(self.dialogues.listing()))


ANSWERS = {
    m.VoicesRequest: Library._on_voices,
    m.Forget: Library._on_forget,
    m.Export: Library._on_export,
    m.Import: Library._on_import,
    m.SessionsRequest: Library._on_sessions,
    m.ForgetSession: Library._on_forget_session,
}


def check_clip(clip: bytes) -> None:
    if len(clip) % 2 or len(clip) < m.MIN_CLIP_BYTES:
        raise ProtocolError("bad_value", f"a clip is whole samples of 2 bytes, at least {m.MIN_CLIP_BYTES} bytes")


def _json(listing: list[dict]) -> str:
    return json.dumps(listing, ensure_ascii=False, separators=(",", ":"))
