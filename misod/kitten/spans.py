"""What of a text each spoken word stands for. kittenml's normaliser does not say: words are found again."""

import re
from difflib import SequenceMatcher

_WORD = re.compile(r"\S+")
_EDGES = re.compile(r"^\W+|\W+$")

Span = tuple[int, int, int, int]  # start and end in what is spoken, start and end in the text


def spans(spoken: str, text: str) -> list[Span]:
    """A word that was written out, or in, stands for all that is between its neighbours that were found."""
    (ours, at), (theirs, source) = _words(spoken), _words(text)
    found: list[Span] = []
    for kind, i, j, k, end in SequenceMatcher(None, ours, theirs).get_opcodes():
        for word in range(i, j) if end > k else ():
            first = k + word - i if kind == "equal" else k
            last = first if kind == "equal" else end - 1
            found.append((*at[word], source[first][0], source[last][1]))
    return found


def _words(text: str) -> tuple[list[str], list[tuple[int, int]]]:
    """Each without its marks, and where it is."""
    matches = list(_WORD.finditer(text))
    return [_EDGES.sub("", match[0]).casefold() for match in matches], [match.span() for match in matches]
