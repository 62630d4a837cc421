"""Text to pieces a model can say: split into sentences, write numbers out, cut to length.

Pieces come lazily: the first is ready before the rest of a long text has been looked at.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import kitten_text_processing

from protocol.messages import speakable

# A full stop after these does not end a sentence.
_ABBREVIATIONS = """
    Mr Mrs Ms Dr Prof St Jr Sr vs etc approx No Fig Inc Ltd Co Gen Col Lt Sgt Rev Hon e.g i.e a.m p.m
""".split()
_END = re.compile(r"[.!?…]+[\"'”’)\]]*(?=\s)|[。！？]|\n\s*\n")
_BEFORE_STOP = re.compile(rf"(?:\b(?:{'|'.join(map(re.escape, _ABBREVIATIONS))})|\b[A-Za-z])$", re.IGNORECASE)
# Letters and plain marks with no stop inside: the grammars would change nothing, and cost 30 ms.
_PLAIN = re.compile(r"[A-Za-z' ,;:\-]*[A-Za-z][.!?]?")
_CAPITALS = re.compile(r"\b[A-Z]{2,}\b")
_CLAUSE = re.compile(r"(?<=[,;:.!?—])\s+")


@dataclass(frozen=True)
class Limits:
    """What one piece may hold: the longest a model was trained on, and the marks it was taught to read.

    `letters` true: only A-Z, a-z and , . ? ! ' - : are left of each piece; accents are folded.
    """

    max_words: int = 60
    max_characters: int = 400
    letters: bool = False


def pieces(text: str, limits: Limits) -> Iterator[str]:
    """The text as a model is to read it, in order, every piece speakable and within `limits`."""
    for sentence in sentences(text):
        if not speakable(sentence):
            continue
        spoken = normalise(sentence)
        if limits.letters:
            spoken = fold_to_letters(spoken)
        for piece in _cut(spoken, limits):
            if speakable(piece):
                yield _ended(piece)


def sentences(text: str) -> list[str]:
    """Split after . ! ? … and at blank lines, but not after an abbreviation or an initial."""
    found, start = [], 0
    for match in _END.finditer(text):
        if match.group().startswith(".") and _BEFORE_STOP.search(text, start, match.start()):
            continue
        found.append(text[start : match.end()])
        start = match.end()
    found.append(text[start:])
    return [clean for sentence in found if (clean := " ".join(sentence.split()))]


def normalise(sentence: str) -> str:
    """Numbers, money, dates, times and units written out as they are spoken (NeMo's grammars)."""
    if _PLAIN.fullmatch(sentence) and not _CAPITALS.search(sentence):
        return sentence
    return " ".join(kitten_text_processing.normalize_text(sentence).split())


def warm() -> None:
    """Load the grammars (0.1 s) before the first request needs them."""
    kitten_text_processing.warm()


def fold_to_letters(text: str) -> str:
    """For a model that knows A-Z and , . ? ! ' - : only: fold what has a likeness, drop the rest."""
    text = text.translate(str.maketrans({"’": "'", "‘": "'", "—": ",", "–": ",", ";": ",", "…": ".", "ß": "ss"}))
    text = unicodedata.normalize("NFKD", text)
    text = re.sub(r"[^A-Za-z,.?!'\-: ]", lambda m: "" if unicodedata.combining(m.group()) else " ", text)
    text = _CAPITALS.sub(lambda m: _read_capitals(m.group()), text)
    text = re.sub(r"\s+([,.?!:])", r"\1", text)
    return " ".join(re.sub(r"([,.?!:])(?=[,.?!:])", "", text).split())


def _read_capitals(word: str) -> str:
    """USA is spelt, NATO and HELLO are read."""
    return word.capitalize() if len(word) > 3 else " ".join(word)


def _cut(sentence: str, limits: Limits) -> list[str]:
    """At clause marks where it can, into parts of like length within the limits."""
    if not _too_long(sentence, limits):
        return [sentence]
    parts: list[str] = []
    for clause in _CLAUSE.split(sentence):
        for part in _split_evenly(clause, limits):
            joined = f"{parts[-1]} {part}" if parts else part
            if parts and not _too_long(joined, limits):
                parts[-1] = joined
            else:
                parts.append(part)
    return parts


def _split_evenly(clause: str, limits: Limits) -> list[str]:
    words = [w[i : i + 40] for w in clause.split() for i in range(0, len(w), 40)]  # no word is longer than 40
    pieces_needed = max(-(-len(words) // limits.max_words), -(-len(clause) // (limits.max_characters - 40)))
    size = -(-len(words) // max(1, pieces_needed))
    return [" ".join(words[i : i + size]) for i in range(0, len(words), size)]


def _too_long(text: str, limits: Limits) -> bool:
    return len(text.split()) > limits.max_words or len(text) > limits.max_characters


def _ended(piece: str) -> str:
    """A model cuts its last word where no mark tells it that the sentence ends."""
    piece = piece.strip(" ,;:-—")
    return piece if piece.endswith((".", "!", "?", "…", "。", "！", "？")) else piece + "."
