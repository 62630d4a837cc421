"""300 lines nobody wrote for a voice: no crash, nothing speakable lost, no mark spoken, each word's place kept."""

import functools
import re
import unicodedata

import pytest

from misod.text import Limits, Manner, Piece
from misod.text.child import answer
from misod.text.letters import unread
from misod.text.pieces import read

NANO = Limits(max_words=18, max_characters=105, letters=True)
WIDE = Limits()
NEVER = re.compile(r"[*#]|://|asterisk|\bhash\b|slash slash|vertical bar|backtick|tilde")

NUMBERS = """
$5.3 billion|9:30PM|40–60°C|Version 2.10.3|221B|1,234,567.89|-5|−5|+5|5%|5‰|½|3½|1/2|x²|10⁻³|6.02e23|1e400|0x1F|007|
٣٤|५|５|Ⅷ|①|１２３|1st|2nd|3RD|1990s|'90s|2024-03-15|15/03/2024|2024-03-15T14:30:00.123456789+05:30|99:99|25:61|
3:2|1-800-555-1234|+44 20 7946 0958|192.168.0.1|999.999.999.999|1.2.3.4.5.6.7|1..2|1,,2|1,2,3|12345678901234567890|
3.14159265358979323846264338327950288|€1.000,50|US$5|₹500|5¢|$|$$$|$5$|100K|5GB|80 GB/s|90 km/h|5 m²|6'2"|#7|No. 5|
№5|5ª|20° C|5x|3x4|3×4×5|2^10|2**10|2*3*4|10-20|10–20|9-5|2010–2015|50/50|24/7|1 000 000|10 000|0.5.|.5|5.|-.5|1/0|
٪50|१/२
"""
WORDS = """
**bold**|*it*|__b__|_i_|~~gone~~|`code`|``a ` b``|[text](http://x.com)|![alt](a.png)|[ref][1]|[^1]|<b>b</b>|<br>|<b|b>|
&amp;|&lt;b&gt;|&bogus;|&#65;|&#xffffffff;|\\*star\\*|# not a heading|a#b|C#|#tag|#|##|*|**|***|a*b|a * b|2 * 3|@me|a@b|
me@x.org|http://|http://x|https://x.com/?a=1&b=2#c|//x|a//b|ftp://x.y/z|file:///etc/passwd|://|x://y|www.x.com|x.com/a/b|
/usr/bin|~/x|C:\\x|a\\b|\\\\host\\share|a/b/c|and/or|w/o|->|=>|<-|<=|>=|!=|==|&&|a && b|::|a::b|...|…|. . .|—|--|---|–|
well-known|e.g.|i.e.|U.S.|U.S.A|Ph.D.|Dr. No|Mr.|St.|vs.|etc.|a.m.|P.M.|Node.js|README.md|x.y.z|don't|rock'n'roll|'tis|
O'Brien|it’s|“q”|‘q’|«q»|„q“|{a}|[b]|(c)|((d))|<e>|{{f}}|%s|%20|${x}|$(x)|`x|x`|"x|x"|'x|x'|;|:|:)|:-D|?!|!!!|???|¿q?|¡q!|
STOP|STOP NOW PLEASE|NASA|iPhone15|snake_case|camelCase|kebab-case|SCREAMING_CASE|__init__|a_b_c|_|__
"""
SCRIPTS = [
    "Привет мир",
    "Hello мир",
    "日本語のテスト",
    "中文测试。",
    "한국어 시험",
    "\u1112\u1161\u11ab",
    "مرحبا بالعالم",
    "שלום עולם",
    "हिन्दी परीक्षण",
    "ไทยทดสอบ",
    "Ελληνικά και math",
    "Ünïcödé çàfé",
    "Łódź Straße Æsir œuvre þing",
    "ﬁne ﬂow",
    "𝐛𝐨𝐥𝐝 𝓯𝓪𝓷𝓬𝔂",
    "ｆｕｌｌ ｗｉｄｔｈ",
    "ʇxǝʇ",
    "e\u0301te\u0301",
    "a" + "\u0301" * 400,
    "Z\u0334\u0321a\u0335\u0322lgo",
    "\u0301\u0301 start",
    "\u202eright to left\u202c end",
    "\u2066isolated\u2069",
    "zero\u200bwidth\u200djoin",
    "soft\u00adhyphen",
    "\ufeffbom",
    "nul\x00nul",
    "bell\x07\x1b[31mred\x1b[0m",
    "tab\tvt\x0bff\x0c",
    "cr\rlf\nnel\x85ls\u2028ps\u2029end",
    "lone \ud83d high",
    "lone \udc00 low",
    "\U000e0041tag",
    "\uffff\ufffe nonchar",
    "private \ue000 use",
    "🎉party🎉",
    "👨‍👩‍👧 family",
    "🇫🇷 flag",
    "1️⃣ keycap",
    "♥ heart ☂",
    "∑ √2 ≈ 1.4 ∞",
    "½ ⅓ ⅞ cups",
    "™ ® © 2024",
    "a\u0308\u0323b",
    "İstanbul ıI",
    "ǅ ǆ Ǆ",
    "ﷺ word",
    "x\u20ddy",
    "ａｂｃ１２３",
    "\u3000wide space",
]
FRAMES = ["{} at the start", "the end is {}", "between {} words. {}, again!"]
LONG = [
    "a" * 10_000,
    "1" * 2_000,
    "a1" * 700,
    "-a" * 2_000,
    "word " * 400,
    "5 " * 60,
    "a.b" * 700,
    "http://" + "a/" * 900,
]


def listed(table: str) -> list[str]:
    return [item for line in table.strip().splitlines() for item in line.strip("|").split("|") if item]


def lines() -> list[str]:
    items = listed(NUMBERS) + listed(WORDS)
    framed = [FRAMES[i % len(FRAMES)].replace("{}", item) for i, item in enumerate(items)]
    mixed = [
        f"{SCRIPTS[i % len(SCRIPTS)]} {items[i * 7 % len(items)]}" for i in range(300 - len(framed) - len(SCRIPTS))
    ]
    return framed + SCRIPTS + mixed + LONG


LINES = lines()
# What a listener is not told, by design: queries, where a link leads, tags, what a mark is called, the scheme.
UNSAID = re.compile(
    r"\?a=1\S*|(?<=\])\([^)]*\)|(?<=\])\[[^\]]*\]|\[\^1\]|</?b\b>?|<br>|\b\w+(?=://)|www(?=\.)|&#?\w+;|\x1b\[\d*m|mailto:"
    r"|(?<!\S)[:;]-?D\b|\U000e0041|//x|(?<=/)[a/]{100,}|1️⃣"
)
WORD = re.compile(r"[^\W_]+")


def test_there_are_300_lines_and_more():
    assert len(set(LINES)) >= 300


@pytest.fixture(scope="module")
def told():
    """A line's pieces for both kinds of model; told once."""
    kept = {}

    def tell(line: str, limits: Limits):
        if (line, limits) not in kept:
            kept[line, limits] = list(read_all(line, limits))
        return kept[line, limits]

    return tell


BOTH = pytest.mark.parametrize("limits", [NANO, WIDE], ids=["nano", "wide"])
EACH = pytest.mark.parametrize("line", LINES, ids=lambda s: ascii(s[:24]))


@BOTH
@EACH
def test_line(told, line, limits):
    told_all = told(line, limits)
    made = [piece for piece in told_all if piece.text]
    for piece in made:
        assert piece.text == piece.text.strip() and any(c.isalnum() for c in piece.text)
        assert len(piece.text.split()) <= limits.max_words and len(piece.text) <= limits.max_characters
        assert not NEVER.search(piece.text), piece.text
        assert not limits.letters or re.fullmatch(r"[A-Za-z,.?!'\-: ]+", piece.text)
        check_spans(piece, line)
    missing = lost(line, made)
    if limits.letters:
        foreign = [word for word in missing if unread(unicodedata.normalize("NFC", word))]
        assert sum(piece.unread for piece in told_all) >= sum(
            unread(unicodedata.normalize("NFC", word)) for word in foreign
        )
        missing = [word for word in missing if word not in foreign]
    assert not missing


def check_spans(piece, line: str) -> None:
    """In order, inside the original, and no word of the piece without one."""
    at, source_at = 0, 0
    for start, end, first, last in piece.spans:
        assert start >= at and not piece.text[at:start].strip()
        assert source_at <= first < last <= len(line)
        at, source_at = end, first
    assert not piece.text[at:].strip()


def lost(line: str, made: list) -> list[str]:
    """Words of the original that no span of any piece stands for."""
    unsaid = [match.span() for match in UNSAID.finditer(line)]
    spans = [(first, last) for piece in made for _, _, first, last in piece.spans]
    words = [
        match for match in WORD.finditer(line) if not any(a < match.end() and match.start() < b for a, b in unsaid)
    ]
    return [word[0] for word in words if not any(a < word.end() and word.start() < b for a, b in spans)]


@pytest.mark.parametrize(
    ("line", "count"),
    [("Привет, мир 5!", 9), ("日本語", 3), ("all read", 0), ("naïve ½ ﬁne ٣", 0), ("one мир. two дом. три", 9)],
)
def test_what_the_model_has_no_letters_for_is_counted(line, count):
    assert sum(piece.unread for piece in read_all(line, NANO)) == count


asked_once = functools.cache(answer)  # both kinds of model ask the same


def read_all(line: str, limits: Limits):
    """Every piece, the empty last one too."""
    reading, answers = read(line, limits, Manner()), None
    while True:
        try:
            step = reading.send(answers)
        except StopIteration:
            return
        answers = None
        if isinstance(step, Piece):
            yield step
        else:
            assert "\n" not in "".join(step)  # the child reads a line each
            answers = [asked_once(run) for run in step]
