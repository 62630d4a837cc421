"""The rules, in the order they are tried on a sentence: addresses, numbers, then words and signs.

What the grammars (kitten-text-processing) get right is not here. tests/unit/test_rules.py has an example of each.
"""

import re

from misod.text import addresses, numbers
from misod.text.rule import Rule, rule
from misod.text.tracked import Tracked

_SIGNS = dict(
    zip(
        "÷±×=&<>≤≥≠∞§©√∑∆",
        "divided by|plus or minus|times|equals|and|less than|greater than|less than or equal to|"
        "greater than or equal to|not equal to|infinity|section|copyright|root of|sum of|delta".split("|"),
        strict=True,
    )
)
_ABBREVIATIONS = {
    "Prof.": "Professor", "Gen.": "General", "Col.": "Colonel", "Lt.": "Lieutenant", "Sgt.": "Sergeant",
    "Rev.": "Reverend", "Hon.": "Honorable", "Capt.": "Captain", "Gov.": "Governor", "Sen.": "Senator",
    "Rep.": "Representative", "Jr.": "Junior", "Sr.": "Senior", "Inc.": "Incorporated", "Corp.": "Corporation",
    "Ltd.": "Limited", "Co.": "Company", "approx.": "approximately", "dept.": "department", "est.": "estimated",
    "cf.": "compare", "viz.": "namely", "Ave.": "Avenue", "Blvd.": "Boulevard", "Mt.": "Mount",
}  # fmt: skip
_BEFORE_NUMBERS = {
    "No.": "number", "no.": "number", "Nos.": "numbers", "Fig.": "figure", "fig.": "figure", "Figs.": "figures",
    "Vol.": "volume", "vol.": "volume", "Ch.": "chapter", "Sec.": "section", "pp.": "pages", "p.": "page",
}  # fmt: skip
_NUMERALS = "I II III IV V VI VII VIII IX X XI XII XIII XIV XV XVI XVII XVIII XIX XX XXI XXII XXIII".split()
_ORDINALS = (
    "first second third fourth fifth sixth seventh eighth ninth tenth eleventh twelfth thirteenth fourteenth fifteenth "
    "sixteenth seventeenth eighteenth nineteenth twentieth twenty-first twenty-second twenty-third"
).split()
_RULERS = "Henry|Louis|Edward|George|James|Charles|Elizabeth|Richard|William|Philip|Frederick|Catherine|Francis|Paul"
_RULERS += "|Alexander|Nicholas|Peter|Pius|Leo|Gregory|Benedict|Napoleon|Ramses|Mary|Victor Emmanuel"
_PARTS = "Chapter|Part|Act|Book|Volume|War|Phase|Type|Section|Article|Title|Appendix|Scene|Bowl|Mark|Class|Level|Grade"


def _either(names) -> str:
    return "|".join(map(re.escape, names))


def _sign(match: re.Match) -> str:
    return f" {_SIGNS[match.group().strip()]} "


WORDS = (
    rule("arrow", r"\s?(?:[-=]{1,3}>|[→⇒⟶➜])\s?", " to ", ">→⇒⟶➜"),
    rule("arrow back", r"\s?(?:<-{1,3}|[←⇐⟵])\s?(?=\s|\w)", " from ", "<←⇐⟵"),
    rule("arrow both ways", r"\s?[↔⇔]\s?", " and ", "↔⇔"),
    rule("at most", r"\s?<=\s?", " less than or equal to ", "<"),
    rule("at least", r"\s?>=\s?", " greater than or equal to ", ">"),
    rule("not equal", r"\s?!=\s?", " not equal to ", "!"),
    rule("equals twice", r"\s?={2,3}\s?(?=\w)", " equals ", "="),
    rule("both", r"\s?&&\s?", " and ", "&"),
    rule("either", r"\s?\|\|\s?", " or ", "|"),
    rule("equals", r"\s?=\s?(?=[\w\"'$({.\[\-])", " equals ", "="),
    rule("option", r"(?<!\S)--?(?=[A-Za-z])", "", "-"),
    rule("sharp", r"\b([A-G])#(?!\w)", r"\1 sharp", "#"),
    rule("plus plus", r"(?<=\w)\+\+(?!\w)", " plus plus", "+"),
    rule("sign", r"(?<=\w)\s?[÷±×=&]\s?(?=\w)|±(?=\d)|(?<=\d)[<>](?=\d)|(?<=\w )[<>](?= \w)", _sign, "÷±×=&<>"),
    rule("symbol", r"\s?[≤≥≠∞§©√∑∆]\s?", _sign, "≤≥≠∞§©√∑∆"),
    rule("without", r"(?<![\w/])[wW]/o(?![\w/])", "without", "/"),
    rule("with", r"(?<![\w/])[wW]/\s?(?=[A-Za-z])", "with ", "/"),
    rule("and or", r"\b([aA]nd)/(or)\b", r"\1 \2", "/"),
    rule("slash of numbers", r"(?<=\d[a-z]{2})\s?/\s?(?=\d)", " or ", "/"),
    rule("slash", r"(?!(?<=\bA)/C\b)(?:(?<=[^\W\d_])\s?/\s?(?=\w)|(?<=\w)\s?/\s?(?=[^\W\d_]))", " slash ", "/"),
    rule("slash at the end", r"(?<=\w)/(?=[\s,.:;!?)\"']|$)", " slash", "/"),
    rule("backslash", r"(?<=\w)\\(?=\w)", " backslash ", "\\"),
    rule("number of", rf"(?<![\w.])({_either(_BEFORE_NUMBERS)})\s?(?=\d)", lambda m: f"{_BEFORE_NUMBERS[m[1]]} ", "."),
    rule("title", rf"(?<![\w.])({_either(_ABBREVIATIONS)})(?=\s+[^\s])", lambda m: _ABBREVIATIONS[m[1]], "."),
    rule("doctorate", r"\bPh\.\s?D\b\.?", "PhD", "."),
    rule(
        "ruler",
        rf"\b({_RULERS}) ({'|'.join(_NUMERALS[1:])})\b",
        lambda m: rf"\1 the {_ORDINALS[_NUMERALS.index(m[2])]}",
        "IVX",
    ),
    rule(
        "numeral",
        rf"\b({_PARTS}) ({_either(_NUMERALS)})\b(?<! I(?= ))",
        lambda m: rf"\1 {_NUMERALS.index(m[2]) + 1}",
        "IVX",
    ),
    rule("ellipsis inside", r"\s?(?<![.…])(?:\.{3}|…)[.…]*+\s?(?=[\w\"'(])", ", ", ".…"),
    rule("dash", r"\s*(?:—|--+|\s–\s)\s*", ", ", "—-–"),
    rule("dash alone", r"(?<=[^\s,;:])\s+-+\s+(?=\S)", ", ", "-"),
    rule("ellipsis", r"\.{2,}", "…", "."),
    rule("same mark again", r"([!?,;:…])\1+", r"\1", "!?,;:…"),
    rule("scheme", r"\b[A-Za-z]{1,10}://+", " "),
    rule("number sign left", r"#+", " ", "#"),
    rule("left over", r"[*`~|<>\\^{}\[\]_\x00-\x1f\x7f]+|//+|(?<!\w)&(?!\w)|[™®•·‣◦¶†‡]+", " "),
    rule("long word", r"(\S{40})(?=\S)", r"\1 "),  # no model says one, and the grammars take seconds over it
    rule("space before a mark", r"(?<=[\w%)\"'])\s+(?=[,.!?;:)](?:[\s,.!?;:)]|$))|(?<=\()\s+", ""),
    rule("nothing between", r"([,;:])(?:\s*[,;:])+", r"\1", ",;:"),
)

# Of this no rule would change anything: words, commas, an end.
_PLAIN = re.compile(r"(?:[A-Z]?[a-z']{1,39}+(?![a-z'])(?:,? |-)?|[IA] )*+(?:(?<![ \-])[.!?])?")
RULES: tuple[Rule, ...] = addresses.RULES + numbers.RULES + WORDS


def rewritten(sentence: Tracked) -> Tracked:
    """The sentence with no mark in it that the grammars, or a voice, would misread."""
    if _PLAIN.fullmatch(sentence.text):
        return sentence
    for each in RULES:
        if not each.needs or not _nothing_of(each.needs, sentence.text):
            sentence = sentence.sub(each.pattern, each.new)
    return sentence.words()


def _nothing_of(needs: str, text: str) -> bool:
    return not any(c in text for c in needs)
