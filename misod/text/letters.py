"""For a model that knows A-Z and , . ? ! ' - : only: fold what has a likeness, drop the rest."""

import re
import unicodedata

from misod.text.tracked import Tracked

# What NFKD leaves, of letters and marks that have a likeness.
_LIKENESS = str.maketrans(
    {"’": "'", "‘": "'", "ʼ": "'", "′": "'", "—": ", ", "–": ", ", ";": ",", "…": ".", "ß": "ss", "ẞ": "SS"}
    | {"æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D"}
    | {"ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ı": "i", "&": " and ", "%": " percent", "@": " at "}
    | {"。": ".", "！": "!", "？": "?", "，": ",", "、": ","}
)
_DIGITS = dict(zip("0123456789", "zero one two three four five six seven eight nine".split(), strict=True))
_LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz,.?!'-: ")
_CAPITALS = re.compile(r"\b[A-Z]{2,}\b")
_DASHES = re.compile(r"--+|(?<!\S)-+(?!\S)")
_SPACE_BEFORE_MARK = re.compile(r" ([,.?!:])")
_MARK_BEFORE_MARK = re.compile(r"[,.?!:](?=[,.?!:])")
# Read as words though they are as short as initials are. US, IT, AM and OK are not among them.
_SHORT_WORDS = set(
    "ALL AN AND ANY ARE AS BAD BE BIG BUT BY CAN DAY DID DO DON END FEW FOR GET GO GOT HAD HAS HE HER HEY HI HIM HIS"
    " HOT HOW IF IN IS ITS LET LOW MAN MAY ME MEN MY NEW NO NOR NOT NOW OF OFF OH OLD ON ONE OR OUR OUT OWN PUT RED RUN"
    " SAW SAY SEE SET SHE SIX SO SON TEN THE TO TOO TOP TRY TWO UP USE WAS WAY WE WHO WHY WIN WON YES YET YOU".split()
)


def fold(text: Tracked) -> Tracked:
    if not _LETTERS.issuperset(text.text):
        text = text.each(_letters)
    text = text.sub(_CAPITALS, lambda m: _read_capitals(m.group()))
    text = text.sub(_DASHES, ", ").words().sub(_SPACE_BEFORE_MARK, r"\1")
    return text.sub(_MARK_BEFORE_MARK, "")


def readable(text: str) -> bool:
    """Whether folding leaves a letter."""
    return any(c.isalnum() and (c.isascii() or bool(_letters(c).strip())) for c in text)


def unread(text: str) -> int:
    """How many letters and digits of it have no likeness among the model's."""
    return 0 if text.isascii() else sum(c.isalnum() and not _letters(c).strip() for c in text)


def _letters(c: str) -> str:
    if c in _LETTERS:
        return c
    folded = unicodedata.normalize("NFKD", c.translate(_LIKENESS)).translate(_LIKENESS)
    return "".join(_letter(c) for c in folded)


def _letter(c: str) -> str:
    if c in _LETTERS:
        return c
    if c in _DIGITS:  # the grammars leave few
        return f" {_DIGITS[c]} "
    return "" if unicodedata.combining(c) else " "


def _read_capitals(word: str) -> str:
    """USA is spelt; NATO, HELLO and WHY are read."""
    return word.capitalize() if len(word) > 3 or word in _SHORT_WORDS else " ".join(word)
