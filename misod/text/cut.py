"""A sentence to parts within the model's limits: at clause marks where it can, else into parts of like length."""

import re
from dataclasses import dataclass

from misod.text.tracked import Tracked

_LONGEST_WORD = 40
_CLAUSE = re.compile(r"(?<=[,;:.!?—])\s+")
_WORD = re.compile(r"\S+")
_ENDS = (".", "!", "?", "…", "。", "！", "？")
_LEADING = " ,;:.!?…-—–"
_TRAILING = " ,;:-—–"


@dataclass(frozen=True)
class Limits:
    """What one piece may hold: the longest a model was trained on, and the marks it was taught to read.

    `letters` true: only A-Z, a-z and , . ? ! ' - : are left of each piece; accents are folded.
    """

    max_words: int = 60
    max_characters: int = 400
    letters: bool = False


WHOLE = Limits(max_words=1_000_000, max_characters=1_000_000)  # no limit: a piece is a sentence


def cut(sentence: Tracked, limits: Limits) -> list[Tracked]:
    if not too_long(sentence.text, limits):
        return [sentence]
    longest = min(_LONGEST_WORD, limits.max_characters - 1)
    sentence = sentence.sub(re.compile(rf"(\S{{{longest}}})(?=\S)"), r"\1 ").words()
    text, parts = sentence.text, []
    for start, end in _clauses(text):
        for part in _split_evenly(text, start, end, limits):
            if parts and not too_long(text[parts[-1][0] : part[1]], limits):
                parts[-1] = parts[-1][0], part[1]
            else:
                parts.append(part)
    return [sentence[start:end] for start, end in parts]


def too_long(text: str, limits: Limits) -> bool:
    return len(text.split()) > limits.max_words or len(text) >= limits.max_characters  # room for a final mark


def ended(piece: Tracked) -> Tracked:
    """A model cuts its last word where no mark tells it that the sentence ends."""
    text = piece.text.lstrip(_LEADING)
    piece = piece[len(piece) - len(text) :]
    piece = piece[: len(text.rstrip(_TRAILING))]
    if piece.text.rstrip("\"'”’)]").endswith(_ENDS):
        return piece
    return Tracked(piece.text + ".", [*piece.starts, piece.starts[-1]], [*piece.ends, piece.ends[-1]])


def _clauses(text: str) -> list[tuple[int, int]]:
    marks = [match.span() for match in _CLAUSE.finditer(text)]
    return list(zip([0, *(end for _, end in marks)], [*(start for start, _ in marks), len(text)], strict=True))


def _split_evenly(text: str, start: int, end: int, limits: Limits) -> list[tuple[int, int]]:
    """text[start:end] -> (start, end) of its parts, each of as many words as the others, within the limits."""
    words = [word.span() for word in _WORD.finditer(text, start, end)]
    parts_needed = max(1, -(-len(words) // limits.max_words), -(-(end - start) // limits.max_characters))
    size = -(-len(words) // parts_needed)
    parts: list[tuple[int, int]] = []
    held = 0
    for first, last in words:
        if not parts or held >= size or too_long(text[parts[-1][0] : last], limits):
            parts.append((first, last))
            held = 0
        parts[-1] = parts[-1][0], last
        held += 1
    return parts
