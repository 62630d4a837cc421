"""Single characters: what is not seen is dropped, what has one proper form is given it, emoji go or are named."""

import re
import unicodedata

from misod.text.tracked import Tracked

DROP, NAME = "drop", "name"

# Soft hyphens, joiners, directions, variation selectors, tags, what is no character at all.
_UNSEEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164\ufe00-\ufe0f"
    "\ufeff\uffa0\ufff9-\uffff\U000e0000-\U000e01ef\ud800-\udfff\ue000-\uf8ff\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]"
)
_COLOUR = re.compile(r"\x1b\[[0-9;]{0,30}[A-Za-z]")  # of a terminal
_SPACE = re.compile("[\t\x0b\x0c\u00a0\u1680\u2000-\u200a\u202f\u205f\u3000]")
_LINE_END = re.compile("\r\n?|[\x85\u2028\u2029]")
_QUOTES = {ord(c): "'" for c in "‘’‛ʼ"} | {ord(c): '"' for c in "“”„‟«»"}
_JAMO = re.compile("[\u1160-\u11ff]")  # vowels and ends of Korean syllables, which NFC joins though they are no marks
_MOST_MARKS = 30  # on one letter: Unicode's stream-safe form

_EMOJI = re.compile(
    "[\U0001f000-\U0001f0ff\U0001f1e6-\U0001f64f\U0001f680-\U0001faff\u2300-\u23ff\u2460\u2600-\u27bf\u2b00-\u2bff"
    "\u3030\u303d\u3297\u3299\u20e3]"
)
_STYLED = re.compile("[\ufb00-\ufb06\uff01-\uff5e\u2100-\u214f\U0001d400-\U0001d7ff]")
_SKIN = frozenset("🏻🏼🏽🏾🏿\u20e3")
_EMOTICON = re.compile(r"(?<!\S)[:;=][-o']?[()DPp/|\[\]*](?=\s|[.,!?]|$)")
_FLAG_LETTER = 0x1F1E6  # A


def tidy(text: Tracked, emoji: str) -> Tracked:
    """NFC, digits 0-9, plain spaces; nothing unseen; emoji dropped, or named where `emoji` is "name"."""
    text = _composed(text)
    if not text.text.isascii():
        # before the joiners of emoji go, for nothing else tells a family from three people
        text = text.sub(_EMOJI, lambda m: _emoji(m.group(), emoji))
        text = text.each(_plain)
    return seen(text).sub(_EMOTICON, "")


def straight_quotes(text: Tracked) -> Tracked:
    return text if text.text.isascii() else text.each(lambda c: _QUOTES.get(ord(c), c))


def seen(text: Tracked) -> Tracked:
    """All that a text needs which is otherwise to be read as it is."""
    return text.sub(_COLOUR, "").sub(_LINE_END, "\n").sub(_UNSEEN, "").sub(_SPACE, " ")


def _composed(text: Tracked) -> Tracked:
    """NFC. A letter stands for itself and its marks."""
    if unicodedata.is_normalized("NFC", text.text):
        return text
    parts, start = [], 0
    for i in range(1, len(text) + 1):
        if i == len(text) or not (unicodedata.combining(text.text[i]) or _JAMO.match(text.text[i])):
            letter = unicodedata.normalize("NFC", text.text[start : min(i, start + _MOST_MARKS)])
            first, last = text.stands_for(start, i)
            parts.append(Tracked(letter, [first] * len(letter), [last] * len(letter)))
            start = i
    return Tracked.chain(parts)


def _plain(c: str) -> str:
    """Digits of any script as 0-9; letters in bold, in full width or joined as plain ones."""
    if c.isdecimal():
        return str(unicodedata.decimal(c))
    return unicodedata.normalize("NFKC", c) if _STYLED.match(c) else c


def _emoji(c: str, how: str) -> str:
    if c.isalnum():  # a digit in a circle
        return f" {unicodedata.normalize('NFKC', c)} "
    if how != NAME or c in _SKIN:
        return " "
    if _FLAG_LETTER <= ord(c) < _FLAG_LETTER + 26:
        return f" {chr(ord('A') + ord(c) - _FLAG_LETTER)} "
    return f" {unicodedata.name(c, '').lower()} "
