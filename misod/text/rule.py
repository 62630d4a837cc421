"""One rule of rewriting: what is written, and how it is said."""

import re
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Rule:
    r"""`needs`: cheap to look for; without one of these characters in a sentence the pattern is not tried.

    `new`: a template of Tracked.sub, or what makes one. A function never returns a backslash of the text's own.
    """

    name: str
    pattern: re.Pattern
    new: str | Callable[[re.Match], str]
    needs: str = ""


def rule(name: str, pattern: str, new: str | Callable[[re.Match], str], needs: str = "") -> Rule:
    return Rule(name, re.compile(pattern), new, needs)
