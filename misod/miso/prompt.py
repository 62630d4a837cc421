"""The rows a backbone reads before it speaks: context segments, then the text to say.

A row is K audio codes and one text id with a mask of which are present, (T, K + 1). A text segment is
`[speaker] text` between the tokenizer's BOS and EOS; an audio segment ends with one row of zeros, the EOS frame.
"""

from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from misod.tokenizer_file import read_tokenizer
from misod.voices import Segment


class Prompt:
    def __init__(self, tokenizer: Tokenizer, codebooks: int):
        self._tokenizer, self._codebooks = tokenizer, codebooks

    @classmethod
    def open(cls, path: Path, codebooks: int, vocabulary: int) -> "Prompt":
        """From a tokenizer.json, as `read_tokenizer`."""
        return cls(read_tokenizer(path, vocabulary), codebooks)

    def build(self, context: list[Segment], speaker: int, text: str) -> tuple[np.ndarray, np.ndarray]:
        """tokens (T, K + 1) int32 and mask (T, K + 1) bool."""
        rows = [*self._context_rows(context), self.text_rows(self._ids(speaker, text))]
        return _joined(rows)

    def context_rows(self, context: list[Segment]) -> tuple[np.ndarray, np.ndarray]:
        """The same without a text to say."""
        return _joined(self._context_rows(context))

    def _context_rows(self, context: list[Segment]) -> list[tuple[np.ndarray, np.ndarray]]:
        parts = []
        for segment in context:
            parts += [self.text_rows(self._ids(segment.speaker, segment.text)), self.audio_rows(segment.codes)]
        return parts

    def follow(self, speaker: int, text: str) -> tuple[np.ndarray, np.ndarray]:
        """What comes after a segment's own frames: the EOS frame that ends them, and the next text."""
        tokens, mask = self.audio_rows(np.zeros((self._codebooks, 0), np.int32))
        more_tokens, more_mask = self.text_rows(self._ids(speaker, text))
        return np.concatenate([tokens, more_tokens]), np.concatenate([mask, more_mask])

    def length(self, context: list[Segment], speaker: int, text: str) -> int:
        """Rows that `build` would make."""
        return sum(map(self.segment_length, context)) + len(self._ids(speaker, text))

    def segment_length(self, segment: Segment) -> int:
        return len(self._ids(segment.speaker, segment.text)) + segment.codes.shape[1] + 1

    def _ids(self, speaker: int, text: str) -> list[int]:
        return self._tokenizer.encode(f"[{speaker}] {text}").ids

    def text_rows(self, ids: list[int]) -> tuple[np.ndarray, np.ndarray]:
        tokens = np.zeros((len(ids), self._codebooks + 1), np.int32)
        tokens[:, -1] = ids
        mask = np.zeros(tokens.shape, bool)
        mask[:, -1] = True
        return tokens, mask

    def audio_rows(self, codes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """codes (K, T) -> T + 1 rows, the last the EOS frame. A code below 0 stays so: see misod.miso.depth."""
        tokens = np.zeros((codes.shape[1] + 1, self._codebooks + 1), np.int32)
        tokens[:-1, :-1] = codes.T
        mask = np.ones(tokens.shape, bool)
        mask[:, -1] = False
        return tokens, mask


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    return np.concatenate([t for t, _ in parts]), np.concatenate([m for _, m in parts])
