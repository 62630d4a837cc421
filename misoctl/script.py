"""A script for several speakers, as people write it, to the form the wire takes."""

import re
from dataclasses import dataclass

from protocol import errors
from protocol import messages as m
from protocol.errors import Failure

_TURN = re.compile(r"\s*(?:\[(\d{1,2})\]|([^\W\d][\w .'-]{0,30}):)\s+(\S.*)")
MAX_SPEAKERS = 100


@dataclass(frozen=True)
class Script:
    """`text`: for the wire. `names`: who speaks each turn, as the script calls them."""

    text: str
    names: list[str]


def parse(text: str, name: str) -> Script:
    """Names get the speakers 0, 1, 2, ... that no number takes, as they come. Raises Failure naming the line."""
    lines, speakers, names = [], {}, []
    parsed = [_parsed(line, f"{name}:{number}") for number, line in enumerate(text.splitlines(), 1)]
    taken = {int(turn[0]) for turn in parsed if turn and turn[0].isdigit()}
    free = (number for number in range(MAX_SPEAKERS) if number not in taken)
    for turn in parsed:
        if turn is None:
            lines.append("")
        elif turn[1]:
            label, words = turn
            if label not in speakers:
                speakers[label] = int(label) if label.isdigit() else next(free, None)
            if speakers[label] is None:
                raise Failure(errors.BAD_DATA, f"{name} has more than {MAX_SPEAKERS} speakers", "split it")
            names.append(label)
            lines.append(f"[{speakers[label]}] {words}")
    if not names:
        raise Failure(errors.BAD_DATA, f"{name} has no line to speak", "write `[0] words` or `anna: words`")
    return Script("\n".join(lines), names)


def _parsed(line: str, where: str) -> tuple[str, str] | None:
    """(who, words); None: a blank line; ("", ""): a comment."""
    if not line.strip():
        return None
    if line.lstrip().startswith("#"):
        return "", ""
    turn = _TURN.fullmatch(line.rstrip())
    if not turn or not m.speakable(turn[3]):
        raise Failure(errors.BAD_DATA, f"{where}: no turn", "write `[0] words` or `anna: words`; # begins a comment")
    return turn[1] or turn[2].strip(), turn[3]
