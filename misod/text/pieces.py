"""Text to pieces a model can say, lazily: the first is ready before the rest of a long text has been looked at.

Blocks (blocks.py) -> characters and marks (characters.py, markup.py) -> sentences (sentences.py) -> rules
(rules.py) -> grammars (grammar.py) -> the model's letters (letters.py) -> its limits (cut.py).
No step takes long whatever the text is: a step of the engine waits for it, and one of over 10 s ends the daemon.
"""

import re
from collections.abc import Generator, Iterator
from dataclasses import dataclass

from misod.text import blocks, characters, child, grammar, letters, markup, rules
from misod.text.cut import Limits, cut, ended
from misod.text.sentences import bounds
from misod.text.tracked import Span, Tracked
from protocol.messages import speakable

_ASK_CHARACTERS = 45  # of runs, before a piece is made of what is answered: the grammars take half a second for it
_ASK_AT_A_CLAUSE = 25  # from here on a clause's end is good enough
_I = re.compile(r"\bi\b")


@dataclass(frozen=True)
class Piece:
    """`text`: as the model reads it. `spans`: the original's characters that each word of it stands for.

    `pause_s`: to wait after it, beyond what its last mark says. `unread`: letters and digits of the original, since
    the piece before, that the model has none for. A last piece may be empty: only its `unread` counts.
    """

    text: str
    spans: tuple[Span, ...] = ()
    pause_s: float = 0.0
    unread: int = 0
    sentence: int = 0  # which of the text's it is, or is a part of


@dataclass(frozen=True)
class Manner:
    """How to read. `normalize` false: as it is written, but for what no voice could see. `emoji`: "drop" or "name".

    `at_once`: the first piece of a text does not wait for the grammars to be done with the rest of its sentence.
    """

    normalize: bool = True
    emoji: str = characters.DROP
    at_once: bool = True


Ask = tuple[str, ...]  # runs for the grammars; as many answers come back
Reading = Generator[Piece | Ask, list[str] | None, None]


def pieces(text: str, limits: Limits, manner: Manner | None = None) -> Iterator[Piece]:
    """Every piece of the text in order, each speakable and within `limits`; the grammars are asked here and now."""
    reading, answers = read(text, limits, manner or Manner()), None
    while True:
        try:
            step = reading.send(answers)
        except StopIteration:
            return
        answers = None
        if not isinstance(step, Piece):
            answers = [child.answer(run) for run in step]
        elif step.text:
            yield step


def read(text: str, limits: Limits, manner: Manner) -> Reading:
    """Pieces, and between them questions: whoever drives this sends the grammars' answers, or None after a piece."""
    teller = _Teller(text, limits, manner)
    for block in blocks.blocks(text) if manner.normalize else blocks.paragraphs(text):
        found = [(sentence, teller.can_say(sentence)) for sentence in sentences(block, manner)]
        last = max((i for i, (_, can_say) in enumerate(found) if can_say), default=-1)
        for i, (sentence, can_say) in enumerate(found):
            if can_say:
                yield from teller.sentence(sentence, block.pause_s if i == last else 0.0)
            else:
                teller.leave(sentence)
    if teller.unread:
        yield Piece("", unread=teller.unread)


def sentences(block: blocks.Block, manner: Manner) -> Iterator[Tracked]:
    """Each as it is written, but for marks that are not read."""
    text = block.text
    if manner.normalize:
        text = characters.tidy(text, manner.emoji)
        text = characters.straight_quotes(markup.code(text) if block.code else markup.without_marks(text))
    else:
        text = characters.seen(text)
    for start, end in bounds(text.text):
        yield text[start:end].words()


class _Teller:
    """Makes the pieces of one sentence after another."""

    def __init__(self, source: str, limits: Limits, manner: Manner):
        self._source, self._limits, self._manner = source, limits, manner
        self._told = False  # whether there was a piece yet
        self.unread = 0  # not yet told
        self._sentence = -1

    def leave(self, sentence: Tracked) -> None:
        """What of it the model has no letters for is told with the next piece."""
        self.unread += letters.unread(sentence.text) if self._limits.letters else 0

    def can_say(self, sentence: Tracked) -> bool:
        """Asked before the rules and grammars, which would take long over letters that the model has not."""
        return letters.readable(sentence.text) if self._limits.letters else speakable(sentence.text)

    def sentence(self, sentence: Tracked, pause_s: float) -> Reading:
        """Whole where it fits; but see Manner.at_once."""
        self._sentence += 1
        if self._manner.normalize:
            sentence = rules.rewritten(_calm(sentence))
        self.leave(sentence)
        held = sentence[:0]
        batches = _batches(sentence.text) if self._manner.normalize else [(len(sentence), [])]
        done = 0
        for i, (end, runs) in enumerate(batches):
            part = sentence[done:end]
            if runs:
                answers = yield tuple(sentence.text[a:b] for a, b in runs)
                part = _answered(sentence, done, end, runs, answers)
            done, more = end, i < len(batches) - 1
            held = Tracked.join([held, letters.fold(part) if self._limits.letters else part.words()])
            parts = cut(held, self._limits)
            held = parts.pop() if more and (self._told or not self._manner.at_once) else sentence[:0]
            yield from self._pieces(parts, 0.0 if more else pause_s)

    def _pieces(self, parts: list[Tracked], pause_s: float) -> Iterator[Piece]:
        parts = [ended(part) for part in parts if speakable(part.text)]
        for i, part in enumerate(parts):
            after_s = pause_s if i == len(parts) - 1 else 0.0
            yield Piece(part.text, part.spans(self._source), after_s, self.unread, self._sentence)
            self._told, self.unread = True, 0


def _batches(sentence: str) -> list[tuple[int, list[tuple[int, int]]]]:
    """Parts of a sentence, by their ends, each with the runs in it that are asked at once; the last ends it."""
    batches: list[tuple[int, list[tuple[int, int]]]] = []
    asked: list[tuple[int, int]] = []
    for start, end in grammar.runs(sentence):
        asked.append((start, end))
        size = sum(b - a for a, b in asked)
        if size >= _ASK_CHARACTERS or (size >= _ASK_AT_A_CLAUSE and sentence[end - 1] in ",;:"):
            batches.append((end, asked))
            asked = []
    if not batches or asked:
        return [*batches, (len(sentence), asked)]
    return [*batches[:-1], (len(sentence), batches[-1][1])]


def _answered(sentence: Tracked, start: int, end: int, runs: list[tuple[int, int]], answers: list[str]) -> Tracked:
    """sentence[start:end] with each run as the grammars read it."""
    made = sentence[:0]
    for (a, b), said in zip(runs, answers, strict=True):
        made = made + sentence[start:a] + grammar.aligned(sentence[a:b], said)
        start = b
    return made + sentence[start:end]


def _calm(sentence: Tracked) -> Tracked:
    """A sentence in capitals is words, not initials: STOP THE CAR."""
    text = sentence.text
    if not (text.isupper() and any(len(word) > 3 for word in re.findall(r"[A-Z]+", text))):
        return sentence
    return (sentence[:1] + sentence[1:].each(str.lower)).sub(_I, "I")
