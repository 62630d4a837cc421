"""One vocabulary for text and speech: what the named tokens are, and how a prompt is laid out."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Tokens:
    """`token_map` of config.json. Speech token t of the codec is audio_id_base + t; a named token of 0 is absent."""

    audio_id_base: int
    num_audio_tokens: int
    speech_start_id: int
    speech_end_id: int
    text_start_id: int
    text_end_id: int
    start_id: int
    stop_id: int
    final_seg_id: int = 0
    reference_speech_start_id: int = 0
    reference_speech_end_id: int = 0
    reference_text_start_id: int = 0
    reference_text_end_id: int = 0

    @property
    def audio_id_end(self) -> int:
        return self.audio_id_base + self.num_audio_tokens

    @property
    def ends(self) -> tuple[int, int]:
        return self.speech_end_id, self.stop_id

    def speech(self, ids: Sequence[int]) -> list[int]:
        """The codec's tokens among them: text, which can be drawn too, has no sound."""
        return [i - self.audio_id_base for i in ids if self.audio_id_base <= i < self.audio_id_end]

    def voice(self, transcript: Sequence[int], speech: Sequence[int]) -> list[int]:
        """What a voice's prompts begin with: what its recording says, and the codec's tokens of the recording.

        Checkpoints that were not taught the reference's own marks have it in those of any segment.
        """
        audio = [self.audio_id_base + t for t in speech]
        if not self.reference_text_start_id:
            return [self.start_id, self.text_start_id, *transcript, self.speech_start_id, *audio, self.speech_end_id]
        text = [self.reference_text_start_id, *transcript, self.reference_text_end_id]
        return [self.start_id, *text, self.reference_speech_start_id, *audio, self.reference_speech_end_id]

    def text(self, ids: Sequence[int], emotion: Sequence[int] = ()) -> list[int]:
        """What follows the voice, or start_id where there is none: the model goes on with the speech for the text.

        `emotion`: the control that a text with expression tags is preceded by.
        """
        final = [self.final_seg_id] if self.final_seg_id else []
        return [*emotion, self.text_start_id, *ids, *final, self.speech_start_id]
