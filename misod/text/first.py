"""Where the first sentence of a text ends, so that what is before and what is after are read as they were together."""

from collections.abc import Iterator
from itertools import islice

from misod.text import blocks
from misod.text.pieces import Manner, sentences
from protocol.messages import speakable

_LOOK = 20  # sentences after the cut that must be read the same: a mark that was cut in two shows in the next few
_TRIES = 3  # sentences that are taken together, where there is no cut between them


def first_sentence(text: str, manner: Manner) -> tuple[int, float] | None:
    """(its end in the text, the pause after it); None where it cannot be parted from the rest.

    Marks of writing may span sentences: a cut in **two. Sentences.** would have the stars read.
    """
    whole = list(islice(_read(text, manner), _TRIES + _LOOK))
    for taken in range(1, min(_TRIES, len(whole)) + 1):
        if taken == len(whole):
            return len(text), 0.0
        end, start, pause_s = whole[taken - 1][1][1], whole[taken][1][0], whole[taken - 1][2]
        for cut in _cuts(text, end, start):
            before = [said for said, _, _ in _read(text[:cut], manner)]
            after = [said for said, _, _ in islice(_read(text[cut:], manner), _LOOK)]
            if before + after == [said for said, _, _ in whole][: len(before) + len(after)] and len(before) == taken:
                return cut, pause_s
    return None


def _cuts(text: str, end: int, start: int) -> list[int]:
    """Behind the sentence, behind the marks that close it, before what opens the next."""
    space = next((at for at in range(end, start) if text[at].isspace()), start)
    return sorted({end, space, start}) if start >= end else []


def _read(text: str, manner: Manner) -> Iterator[tuple[tuple[str, bool], tuple[int, int], float]]:
    """Each sentence that can be said: (its words, whether it is code), (start, end) in the text, the pause after it."""
    for block in blocks.blocks(text) if manner.normalize else blocks.paragraphs(text):
        said = [sentence for sentence in sentences(block, manner) if speakable(sentence.text)]
        for i, sentence in enumerate(said):
            place = sentence.stands_for(0, len(sentence))
            yield (sentence.text, block.code), place, block.pause_s if i == len(said) - 1 else 0.0
