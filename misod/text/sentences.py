"""Where sentences end: after . ! ? and …, but not after an abbreviation, an initial or inside a number."""

import re
from collections.abc import Iterator

# A full stop after these does not end a sentence; after the second kind it does where a capital follows; after
# the third it does unless a number follows.
_TITLES = set("Mr Mrs Ms Dr Prof St Gen Col Lt Sgt Rev Hon Capt Gov Sen Rep vs approx e.g i.e cf viz".split())
_AT_THE_END_TOO = set("Jr Sr Inc Ltd Co Corp etc a.m p.m Ave Blvd Rd dept est Ph.D".split())
_BEFORE_NUMBERS = set("No no Nos Fig fig Vol vol Ch Sec pp Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec".split())
_INITIALS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")  # U.S: its last stop ends a sentence where one of these follows
_STARTERS = set("A An And As At But For He How I If In It My No On Our She So That The There They This We What".split())
# Only a whole run of marks is tried, and never given back in parts: 60,000 full stops take no time.
_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’»)\]]*+(?=\s)|[。！？]|\n\s*\n|\n(?=[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t])")
_WORD = re.compile(r"[^\s\"'“‘(\[\-]*$")
_UNIT = re.compile(r"\d\s?(?:in|ft|oz|lbs?|yds?|sq|min|secs?|hrs?)$")  # 3 in. wide
_NUMBERED = re.compile(r"(?:^|\n)\s*\d{1,3}$")


def bounds(text: str) -> Iterator[tuple[int, int]]:
    """(start, end) of each sentence that holds more than spaces, in order."""
    start = 0
    for match in _END.finditer(text):
        if _goes_on(text, match):
            continue
        if text[start : match.end()].strip():
            yield start, match.end()
        start = match.end()
    if text[start:].strip():
        yield start, len(text)


def _goes_on(text: str, mark: re.Match) -> bool:
    """Whether the sentence goes on after this mark."""
    after = text[mark.end() : mark.end() + 8].lstrip("\"'“‘( \t\n")[:1]
    if mark.group() in ("...", "…"):  # Well... perhaps.
        return after.islower()
    if mark.group() != ".":  # "Stop!" he said.
        return mark.group()[-1:] in "\"'”’)]" and after.islower()
    if _NUMBERED.search(text, max(0, mark.start() - 6), mark.start()):  # 2. the second item
        return True
    if after.islower() and _UNIT.search(text, max(0, mark.start() - 8), mark.start()):
        return True
    word = _WORD.search(text[max(0, mark.start() - 12) : mark.start()]).group()
    if word in _AT_THE_END_TOO:
        return not after.isupper()
    if word in _BEFORE_NUMBERS:
        return after.isdigit()
    if _INITIALS.fullmatch(word) and word not in _TITLES:
        return re.match(r"\s*(\w*)", text[mark.end() : mark.end() + 12])[1] not in _STARTERS
    return word in _TITLES or (len(word) == 1 and word.isalpha())
