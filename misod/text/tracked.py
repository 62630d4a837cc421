"""Text that knows where it came from: every character carries the part of the original that it stands for."""

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import chain

# (start, end, source_start, source_end): text[start:end] stands for source[source_start:source_end]
Span = tuple[int, int, int, int]
_SPACES = re.compile(r"\s+")
_WORD = re.compile(r"\S+")
_GROUP = re.compile(r"\\(\d)")


class Tracked:
    """`text`, and for each of its characters the source characters starts[i]..ends[i] that it stands for."""

    __slots__ = ("ends", "starts", "text")

    def __init__(self, text: str, starts: list[int], ends: list[int]):
        self.text, self.starts, self.ends = text, starts, ends

    @classmethod
    def of(cls, text: str, offset: int = 0) -> "Tracked":
        """The original itself, or a part of it that begins at `offset`."""
        size = len(text)
        return cls(text, list(range(offset, offset + size)), list(range(offset + 1, offset + size + 1)))

    @classmethod
    def join(cls, parts: Iterable["Tracked"]) -> "Tracked":
        """Parts in order with a space between; it stands for what the part before it ends with."""
        joined = cls("", [], [])
        for part in parts:
            if joined.text and part.text:
                joined = joined + part._instead(" ", joined.starts[-1], joined.ends[-1])
            joined = joined + part
        return joined

    def __add__(self, other: "Tracked") -> "Tracked":
        return Tracked(self.text + other.text, self.starts + other.starts, self.ends + other.ends)

    def __getitem__(self, part: slice) -> "Tracked":
        return Tracked(self.text[part], self.starts[part], self.ends[part])

    def __len__(self) -> int:
        return len(self.text)

    @staticmethod
    def _instead(text: str, start: int, end: int) -> "Tracked":
        return Tracked(text, [start] * len(text), [end] * len(text))

    def stands_for(self, start: int, end: int) -> tuple[int, int]:
        """The source of text[start:end], which holds at least one character."""
        return min(self.starts[start:end]), max(self.ends[start:end])

    def sub(self, pattern: re.Pattern, new: str | Callable[[re.Match], str]) -> "Tracked":
        """re.sub. `\\0` to `\\9` in `new` keep the group's own places; all else stands for the whole match.

        What a function returns is a template too.
        """
        parts, done = [], 0
        for match in pattern.finditer(self.text):
            start, end = match.span()
            parts.append(self[done:start])
            template = new if isinstance(new, str) else new(match)
            # what is put between two characters stands for the one before it
            source = self.stands_for(*(start, end) if end > start else (max(0, start - 1), max(1, start)))
            for text, group in _template(template):
                parts.append(self._instead(text, *source) if group is None else self[slice(*match.span(group))])
            done = end
        return self.chain([*parts, self[done:]]) if parts else self

    def each(self, new: Callable[[str], str]) -> "Tracked":
        """Each character by what `new` makes of it: none, one or several."""
        made = [new(c) for c in self.text]
        starts = [s for s, text in zip(self.starts, made, strict=True) for _ in text]
        ends = [e for e, text in zip(self.ends, made, strict=True) for _ in text]
        return Tracked("".join(made), starts, ends)

    def words(self) -> "Tracked":
        """With one space between words and none around them."""
        start, end = len(self.text) - len(self.text.lstrip()), len(self.text.rstrip())
        return self[start:end].sub(_SPACES, " ") if end > start else self[:0]

    def spans(self, source: str) -> tuple[Span, ...]:
        """One for each word, or for each run of words that stand for the same or overlapping source.

        `source` is the whole original: spaces at the ends of its parts are not counted in.
        """
        spans: list[Span] = []
        for word in _WORD.finditer(self.text):
            start, end = word.span()
            first, last = self.stands_for(start, end)
            if spans and first < spans[-1][3]:
                before = spans.pop()
                start, first, last = before[0], min(first, before[2]), max(last, before[3])
            spans.append((start, end, first, last))
        return tuple((start, end, *_trimmed(source, first, last)) for start, end, first, last in spans)

    @staticmethod
    def chain(parts: list["Tracked"]) -> "Tracked":
        return Tracked(
            "".join(p.text for p in parts),
            list(chain.from_iterable(p.starts for p in parts)),
            list(chain.from_iterable(p.ends for p in parts)),
        )


def _trimmed(source: str, start: int, end: int) -> tuple[int, int]:
    part = source[start:end]
    if not part.strip():
        return start, end
    return start + len(part) - len(part.lstrip()), end - len(part) + len(part.rstrip())


@lru_cache(maxsize=1024)
def _template(template: str) -> list[tuple[str, int | None]]:
    """As (literal, None) and ("", group)."""
    parts = _GROUP.split(template)
    return [("", int(part)) if i % 2 else (part, None) for i, part in enumerate(parts) if part]
