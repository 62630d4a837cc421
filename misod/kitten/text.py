"""A text without the marks of its writing, and a spoken text to pieces that the model says steadily."""

from misod.text import blocks, markup
from misod.text.cut import Limits, cut, ended
from misod.text.sentences import bounds
from misod.text.tracked import Tracked
from protocol.messages import speakable

FIRST, LEAST = 150, 60  # characters


def without_marks(text: str) -> str:
    """Markdown and HTML as words: a star is no asterisk. Expression tags are neither, and stay."""
    lines = (markup.without_marks(block.text) for block in blocks.blocks(text))
    return " ".join(ended(line.words()).text for line in lines if speakable(line.text))


def pieces(spoken: str, longest: int, least: int = LEAST) -> list[str]:
    """Sentences packed to at most `longest` characters, the first to FIRST so that it is heard soon.

    Longer ones read as rushed, and below `least` the model does not come to an end: such a one joins its neighbour.
    """
    spoken, parts = spoken.strip(), []
    if spoken[-1:].isalnum():
        spoken += "."
    for start, end in bounds(spoken):
        limits = Limits(1_000_000, longest if parts else FIRST)
        parts += [_closed(part.text) for part in cut(Tracked.of(spoken[start:end].strip()), limits)]
    packed: list[str] = []
    for part in filter(speakable, parts):
        most = longest if len(packed) > 1 else FIRST
        if packed and (len(packed[-1]) + len(part) < most or len(packed[-1]) < least):
            packed[-1] += " " + part
        else:
            packed.append(part)
    if len(packed) > 1 and len(packed[-1]) < least:
        last = packed.pop()
        packed[-1] += " " + last
    return packed


def _closed(part: str) -> str:
    """A part that a long sentence was cut into may end in a word: with no mark the model does not know it is over."""
    return part + "," if part[-1:].isalnum() else part
