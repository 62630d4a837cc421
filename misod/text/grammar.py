"""What the grammars (kitten-text-processing, NeMo's; child.py) are asked, and their answers put back in place.

They take 2 to 20 ms a character, plain words too: so they see only the words that hold something to expand and
their neighbours, RUN_CHARACTERS at most at a time, and what they answered is remembered.
"""

import re
from collections import OrderedDict
from collections.abc import Iterator
from difflib import SequenceMatcher

from misod.text.tracked import Tracked

RUN_CHARACTERS = 60
_BEFORE, _AFTER = 1, 2  # neighbours that change how a number is read: "March 15", "5.3 billion dollars"
_WORD = re.compile(r"\S+")
# Letters, and marks around them. A stop after a word that is not the sentence's last is an abbreviation's.
_PLAIN = re.compile(r"[\"'(\[—–-]*+[^\W\d_]++(?:['’—–-][^\W\d_]++)*+'?[\"')\],;:!?…—–-]*+|[,;:!?—–\"'()…-]++")
_PLAIN_LAST = re.compile(rf"(?:{_PLAIN.pattern})[.!?\"')\]]*+")
_WRITTEN_SHORT = re.compile(r"(?:vs|etc|e\.g|i\.e|[ap]\.m|Mr|Mrs|Ms|Dr|St)\b\.?", re.IGNORECASE)
_NUMBER = re.compile("[\\d\u00b2\u00b3\u00b9\u00bc-\u00be\u2070-\u2089\u2150-\u218b\u2460-\u249b]")
_ROMAN = re.compile(r"[IVX]{2,}")
_EDGE = re.compile(r"^\W+|\W+$")


def runs(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of what the grammars are to see of a sentence, in order, none longer than it must be."""
    words = [word.span() for word in _WORD.finditer(text)]
    wanted = [False] * len(words)
    for i, (start, end) in enumerate(words):
        if _expands(text[start:end], i == len(words) - 1):
            for near in range(max(0, i - _BEFORE), min(len(words), i + _AFTER + 1)):
                wanted[near] = True
    first = None
    for i in range(len(words) + 1):
        while first is not None and (
            i == len(words) or not wanted[i] or words[i][1] - words[first][0] > RUN_CHARACTERS
        ):
            last = i - 1 if i == len(words) or not wanted[i] else _clause_end(text, words, first, i - 1)
            yield words[first][0], words[last][1]
            first = last + 1 if last + 1 < i else None
        if i < len(words) and wanted[i] and first is None:
            first = i


def _clause_end(text: str, words: list[tuple[int, int]], first: int, last: int) -> int:
    """The last word of words[first..last] that ends a clause; the last of all where none does."""
    return next((i for i in range(last, first, -1) if text[words[i][1] - 1] in ",;:"), last)


def _expands(word: str, is_last: bool) -> bool:
    if _NUMBER.search(word):
        return True
    if _PLAIN.fullmatch(word) or (is_last and _PLAIN_LAST.fullmatch(word)):
        bare = _EDGE.sub("", word)
        return bool(_ROMAN.fullmatch(bare)) or (bool(_WRITTEN_SHORT.fullmatch(bare)) and (is_last or bare == "vs"))
    return any(c.isalnum() or c in "$€£¥%+" for c in word)


def aligned(run: Tracked, said: str) -> Tracked:
    """The answer to a run with its places: word for word where words stayed, else the whole of what was rewritten."""
    if said == run.text:
        return run
    old = [word.span() for word in _WORD.finditer(run.text)]
    new = [word.span() for word in _WORD.finditer(said)]
    match = SequenceMatcher(None, [run.text[a:b] for a, b in old], [said[a:b] for a, b in new], autojunk=False)
    parts: list[Tracked] = []
    for how, a, b, c, d in match.get_opcodes():
        if how == "equal":
            parts.append(run[old[a][0] : old[b - 1][1]].words())
        elif how == "delete":
            _widen(parts, run, old[a][0], old[b - 1][1])
        else:
            near = old[a:b] or old[max(0, a - 1) : a] or old[:1]
            first, last = run.stands_for(near[0][0], near[-1][1])
            text = said[new[c][0] : new[d - 1][1]]
            parts.append(Tracked(text, [first] * len(text), [last] * len(text)))
    return Tracked.join(parts)


def _widen(parts: list[Tracked], run: Tracked, start: int, end: int) -> None:
    """Words that were dropped stay with the one before them."""
    if parts:
        last = run.stands_for(start, end)[1]
        kept = parts[-1]
        parts[-1] = Tracked(kept.text, kept.starts, [*kept.ends[:-1], max(last, kept.ends[-1])])


class Answers:
    """The last runs asked, and what they were read as: so many, of so many bytes in all."""

    def __init__(self, most: int = 2000, most_bytes: int = 400_000):
        self._most, self._most_bytes, self._bytes = most, most_bytes, 0
        self._kept: OrderedDict[str, str] = OrderedDict()

    def get(self, run: str) -> str | None:
        if run in self._kept:
            self._kept.move_to_end(run)
        return self._kept.get(run)

    def put(self, run: str, said: str) -> None:
        if run in self._kept:
            return
        self._kept[run] = said
        self._bytes += _size(run, said)
        while len(self._kept) > self._most or self._bytes > self._most_bytes:
            self._bytes -= _size(*self._kept.popitem(last=False))


def _size(run: str, said: str) -> int:
    return len(run.encode(errors="replace")) + len(said.encode(errors="replace"))
