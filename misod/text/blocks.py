"""A document to the runs of text in it: paragraphs, headings, list items, rows of tables, lines of code.

Lazily, a line at a time; a paragraph longer than MAX_CHARACTERS comes in parts.
Inside a code fence each line is read as it stands; the fence's own lines are not read.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from misod.text.tracked import Tracked

MAX_CHARACTERS = 2000
PARAGRAPH_S, HEADING_S, ITEM_S = 0.4, 0.5, 0.2  # pauses after these, beyond what the voice makes of a full stop

_LINE = re.compile(r"[^\n]*\n|[^\n]+")
_HEADING = re.compile(r"[ ]{0,3}#{1,6}(?:[ ]+|$)")
_CLOSING = re.compile(r"[ ]#+[ ]*$")
_UNDERLINE = re.compile(r"[ ]{0,3}(?:=+|-{2,})[ ]*$")
_RULE = re.compile(r"[ ]{0,3}(?:(?:\*[ ]*){3,}|(?:-[ ]*){3,}|(?:_[ ]*){3,}|(?:=[ ]*){3,}|(?:~[ ]*){3,})$")
_ITEM = re.compile(r"[ ]*(?:[-*+•‣◦·][ ]+(?:\[[ xX]\][ ]+)?|(\d{1,9})([.)])[ ]+)(?=\S)")
_QUOTE = re.compile(r"[ ]{0,3}>[> ]*")
_FENCE = re.compile(r"[ ]*(`{3,}|~{3,})")
_ROW_MARKS = re.compile(r"[ ]*\|?[ :|-]*-[ :|-]*$")
_CELL = re.compile(r"[ ]*\|[ ]*")
_DEFINITION = re.compile(r"[ ]{0,3}\[[^\]^]{1,100}\]:[ ]*\S+(?:[ ]+[\"'(].*)?$")
_FOOTNOTE = re.compile(r"[ ]{0,3}\[\^[^\]]{1,100}\]:[ ]*")

# of HTML: what ends a run of text, and what is not text at all
_UNSPOKEN = re.compile(r"<!--|<(script|style|template|noscript|svg)(?=[\s>])", re.IGNORECASE)
_HTML_BLOCK = re.compile(
    r"<(?:br|hr)\s?/?>|</?(?:p|div|ul|ol|li|dl|dt|dd|table|thead|tbody|tr|td|th|section|article|header|footer|main|nav"
    r"|aside|blockquote|pre|figure|figcaption|h[1-6]|form|fieldset|body|html|head|title)(?:\s[^<>]{0,300})?>",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Block:
    """One run of text; `pause_s`: what to wait after it. `code`: to be read as it stands."""

    text: Tracked
    pause_s: float = 0.0
    code: bool = False


def blocks(text: str) -> Iterator[Block]:
    scanner, fence = _Scanner(), ""
    for line in _lines(text):
        bare = line.text.rstrip()
        mark = _FENCE.match(bare)
        if not fence:
            yield from scanner.line(line)
            fence = mark[1] if mark else ""
        elif mark and bare.strip().startswith(fence) and not bare.strip(" `~"):
            fence = ""
        elif bare:
            yield Block(line, 0.0, code=True)
    yield from scanner.end(0.0)


class _Scanner:
    """Holds the lines of a paragraph or an item until another thing begins."""

    def __init__(self):
        self._held: list[Tracked] = []
        self._pause_s, self._in_table = PARAGRAPH_S, False

    def line(self, line: Tracked) -> Iterator[Block]:
        if quote := _QUOTE.match(line.text):
            line = line[quote.end() :]
        bare = line.text.rstrip()
        kind = _kind(bare, bool(self._held), self._in_table)
        if kind == "more":
            yield from self._more(line.sub(_FOOTNOTE, ""))
            return
        if self._held and kind == "row marks" and "|" in self._held[-1].text:
            self._held[-1] = _row(self._held[-1])  # a table's head that does not begin with a mark
        yield from self.end(HEADING_S if kind == "underline" else self._pause_s)
        self._in_table = kind in ("row", "row marks")
        if kind == "heading":
            yield from _parts([line[_HEADING.match(bare).end() :].sub(_CLOSING, "")], HEADING_S)
        elif kind == "row":
            yield Block(_row(line), ITEM_S)
        elif kind == "item":
            self._held, self._pause_s = [_item(line)], ITEM_S

    def _more(self, line: Tracked) -> Iterator[Block]:
        self._in_table = False
        self._held.append(line)
        if sum(map(len, self._held)) > MAX_CHARACTERS:
            *whole, rest = _slices(Tracked.chain(self._held))
            yield from (Block(part) for part in whole)
            self._held = [rest]

    def end(self, pause_s: float) -> Iterator[Block]:
        yield from _parts(self._held, pause_s)
        self._held, self._pause_s = [], PARAGRAPH_S


def paragraphs(text: str) -> Iterator[Block]:
    """What blank lines part, with every mark left in."""
    held: list[Tracked] = []
    for line in (part for found in _LINE.finditer(text) for part in _line(text, *found.span())):
        if line.text.strip():
            held.append(line)
        if not line.text.strip() or sum(map(len, held)) > MAX_CHARACTERS:
            yield from _parts(held, PARAGRAPH_S)
            held = []
    yield from _parts(held, 0.0)


def _kind(bare: str, follows: bool, in_table: bool) -> str:
    """What a line is. `more`: text, which goes on with the paragraph or item before it, or begins one."""
    if not bare or _FENCE.match(bare) or _DEFINITION.match(bare):
        return "gap"
    if _HEADING.match(bare):
        return "heading"
    if follows and _UNDERLINE.match(bare):
        return "underline"
    if "|" in bare and _ROW_MARKS.match(bare):
        return "row marks"
    if bare.lstrip().startswith("|") or (in_table and "|" in bare):
        return "row"
    if _RULE.match(bare):
        return "gap"
    return "item" if _ITEM.match(bare) else "more"


def _parts(lines: list[Tracked], pause_s: float) -> Iterator[Block]:
    if lines:
        *whole, last = _slices(Tracked.chain(lines))
        yield from (Block(part) for part in whole)
        yield Block(last, pause_s)


def _slices(text: Tracked) -> list[Tracked]:
    """At most MAX_CHARACTERS each: cut after a sentence where one ends, else between words, else anywhere."""
    slices = []
    while len(text) > MAX_CHARACTERS:
        window = text.text[:MAX_CHARACTERS]
        ends = [window.rfind(mark) + 1 for mark in (". ", ".\n", "! ", "? ", "。")]
        at = max(ends) or max(window.rfind(" "), window.rfind("\n")) + 1 or MAX_CHARACTERS
        slices.append(text[:at])
        text = text[at:]
    return [*slices, text]


def _item(line: Tracked) -> Tracked:
    """Without its mark; a numbered item reads its number."""
    return line.sub(re.compile(f"^{_ITEM.pattern}"), lambda m: r"\1, " if m[1] else "")


def _row(line: Tracked) -> Tracked:
    inside = line.words()
    inside = inside[inside.text.startswith("|") : len(inside) - inside.text.endswith("|")]
    return inside.sub(_CELL, ", ")


def _lines(text: str) -> Iterator[Tracked]:
    """Each with its line end. HTML's blocks are lines of their own; its comments, scripts and styles are left out."""
    if "<" not in text:
        for line in _LINE.finditer(text):
            yield from _line(text, line.start(), line.end())
        return
    for start, end in _outside(text):
        for line in _LINE.finditer(text, start, end):
            done = line.start()
            for tag in _HTML_BLOCK.finditer(text, line.start(), line.end()):
                if text[done : tag.start()].strip():
                    yield from _line(text, done, tag.start())
                yield Tracked("", [], [])  # a gap, which ends the paragraph before it
                done = tag.end()
            if done < line.end() and (done == line.start() or text[done : line.end()].strip()):
                yield from _line(text, done, line.end())


def _line(text: str, start: int, end: int) -> Iterator[Tracked]:
    """A line of any length, in parts that are no work to hold."""
    for part in range(start, end, MAX_CHARACTERS):
        yield Tracked.of(text[part : min(end, part + MAX_CHARACTERS)], part)


def _outside(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of what is outside comments, scripts and styles. One that is not closed is text."""
    done, unclosed = 0, set()
    for mark in _UNSPOKEN.finditer(text):
        closing = f"</{mark[1].lower()}" if mark[1] else "-->"
        if mark.start() < done or closing in unclosed:
            continue
        at = re.compile(closing, re.IGNORECASE).search(text, mark.end())
        if not at:
            unclosed.add(closing)  # looked for once: 10,000 of them take no longer than one
            continue
        yield done, mark.start()
        after = text.find(">", at.start())
        done = after + 1 if after >= 0 else len(text)
    yield done, len(text)
