"""Each rule by an example: what is written, and what the grammars, or the voice, are given in its place."""

import re

import pytest

from misod.text import Limits, pieces
from misod.text.rules import RULES, rewritten
from misod.text.tracked import Tracked

EXAMPLES = {
    "e-mail": ("Mail anna.b@example.co.uk.", "Mail anna dot b at example dot co dot uk."),
    "url": ("See https://me@wiki:80/blog/my-post?q=1#top, then go.", "See wiki slash blog slash my post, then go."),
    "www": ("www.example.aero works", "example dot aero works"),
    "domain": ("Go to example.com/docs/a.html.", "Go to example dot com slash docs slash a."),
    "handle": ("thanks @anna_b", "thanks at anna b"),
    "hashtag": ("#MondayMotivation now", "Monday Motivation now"),
    "path": ("Open ~/notes/a.txt.", "Open home slash notes slash a dot txt."),
    "windows path": (r"C:\Users\me is home", "C colon backslash Users backslash me is home"),
    "dotted name": ("README.md and Node.js", "README dot md and Node dot js"),
    "dot file": ("the .bashrc file", "the dot bashrc file"),
    "timestamp": ("at 2024-03-15T14:30:00Z", "at March 15 2024 at 14:30 UTC"),
    "date with a zero": ("since 2024-03", "since March 2024"),
    "version": ("Version 2.10.3-rc1 and v2", "Version 2 point 10 point 3 rc 1 and version 2"),
    "three parts": ("it is 1.20.3 now", "it is 1 point 20 point 3 now"),
    "phone": ("Call 555-1234.", "Call 5 5 5, 1 2 3 4."),
    "long code": ("ISBN 978-3-16-148410-0", "ISBN 9 7 8, 3, 1 6, 1 4 8 4 1 0, 0"),
    "long number": ("1234567890123456", "1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6"),
    "thousands": ("1 000 000 or 10 000", "1,000,000 or 10,000"),
    "round number": ("10000 people", "10,000 people"),
    "house": ("221B Baker Street", "2 21 B Baker Street"),
    "hexadecimal": ("0x1F", "zero x 1 F"),
    "times": ("open 24/7", "open 24 7"),
    "season": ("in 2023/24", "in 2023 to 24"),
    "feet and inches": ("6'2\" tall", "6 feet 2 inches tall"),
    "feet": ("6′ tall", "6 feet tall"),
    "inches": ("3 in. wide and 5″", "3 inches wide and 5 inches"),
    "ratio": ("won 3:2", "won 3 to 2"),
    "range": ("40%–60% of $5 – $7", "40% to 60% of $5 to $7"),
    "range of words": ("Mon–Fri", "Mon to Fri"),
    "score": ("10-20 people", "10 to 20 people"),
    "subtraction": ("5 - 3", "5 minus 3"),
    "minus": ("−3 or -$5", "minus 3 or minus $5"),
    "scientific": ("6.02e23 or 1E-3", "6.02 times 10 to the power of 23 or 1 times 10 to the power of minus 3"),
    "power": ("x^2 and 2^10", "x squared and 2 to the power of 10"),
    "raised": ("x² and 10⁻³", "x squared and 10 to the power of minus 3"),
    "dollars of": ("US$5", "$5"),
    "money in short": ("$5M, €2bn, $3k", "5 million dollars, 2 billion euros, 3 thousand dollars"),
    "other money": ("₹500", "500 rupees"),
    "cents": ("5¢", "5 cents"),
    "degrees": ("20° C", "20 degrees Celsius"),
    "unit": ("1 GB, 80GB at 90 km/h", "1 gigabyte, 80 gigabytes at 90 kilometers per hour"),
    "times as much": ("10x faster", "10 times faster"),
    "by": ("3 x 4", "3 by 4"),
    "number sign": ("#7", "number 7"),
    "about": ("~50", "about 50"),
    "arrow": ("A -> B => C → D", "A to B to C to D"),
    "arrow back": ("A <- B", "A from B"),
    "arrow both ways": ("A ↔ B", "A and B"),
    "at most": ("x <= 5", "x less than or equal to 5"),
    "at least": ("x >= 5", "x greater than or equal to 5"),
    "not equal": ("x != 5", "x not equal to 5"),
    "equals twice": ("x == 5", "x equals 5"),
    "both": ("a && b", "a and b"),
    "either": ("a || b", "a or b"),
    "equals": ('A="b" and c = d', 'A equals "b" and c equals d'),
    "option": ("misoctl say --json -o a", "misoctl say json o a"),
    "sharp": ("C# or F#", "C sharp or F sharp"),
    "plus plus": ("C++ code", "C plus plus code"),
    "sign": ("Tom & Jerry, 6 ÷ 2 = 3", "Tom and Jerry, 6 divided by 2 equals 3"),
    "symbol": ("≥ 5 and § 3", "greater than or equal to 5 and section 3"),
    "without": ("w/o cheese", "without cheese"),
    "with": ("w/ cheese", "with cheese"),
    "and or": ("and/or", "and or"),
    "slash of numbers": ("the 5th/6th", "the 5th or 6th"),
    "slash": ("he/she", "he slash she"),
    "slash at the end": ("in misod/: the daemon", "in misod slash: the daemon"),
    "backslash": ("a\\b", "a backslash b"),
    "number of": ("No. 5, Fig. 3", "number 5, figure 3"),
    "title": ("Prof. Xu met Gen. Lee", "Professor Xu met General Lee"),
    "doctorate": ("a Ph.D. in it", "a PhD in it"),
    "ruler": ("Henry VIII died", "Henry the eighth died"),
    "numeral": ("Chapter IV", "Chapter 4"),
    "ellipsis inside": ("Wait... what", "Wait, what"),
    "dash": ("word—word -- and – so", "word, word, and, so"),
    "dash alone": ("yes - no", "yes, no"),
    "ellipsis": ("Well....", "Well…"),
    "same mark again": ("What??? No!!!", "What? No!"),
    "scheme": ("ftp:// is old", "is old"),
    "number sign left": ("# c ##", "c"),
    "left over": ("a * b | {c} [d] ~", "a b c d"),
    "long word": ("a" * 50, "a" * 40 + " " + "a" * 10),
    "space before a mark": ("well , yes ( so ) .", "well, yes (so)."),
    "nothing between": ("a, , b", "a, b"),
}


def test_every_rule_has_its_example():
    assert [rule.name for rule in RULES] == list(EXAMPLES)


@pytest.mark.parametrize(("written", "given"), EXAMPLES.values(), ids=EXAMPLES.keys())
def test_rule(written, given):
    assert rewritten(Tracked.of(written)).text == given


@pytest.mark.parametrize("name", EXAMPLES)
def test_without_the_rule_its_example_comes_out_otherwise(name, monkeypatch):
    """None is there for nothing."""
    written, given = EXAMPLES[name]
    monkeypatch.setattr("misod.text.rules.RULES", tuple(rule for rule in RULES if rule.name != name))
    assert rewritten(Tracked.of(written)).text != given


STAYS = [
    "the 9-year-old, well-known co-op",
    "192.168.0.1 and 25.12.2024 and 3.14",
    "10:30 and 9:00-11:00",
    "U.S. and e.g. this, a.m. or p.m.",
    "Windows 11 has a V8 engine",
    "COVID-19 and F-16 and GPT-4o",
    "100K and 5G and 3D and 4K",
    "5 km², 100%, the 1980s, $5.3 and €20",
    "1/2 cup and 2/3",
    "90210 and 007",
    "A/C",
    "I am, he is; they were!",
    "In part I agree, and the Part I like is old-fashioned, isn't it?",
]


@pytest.mark.parametrize("written", STAYS)
def test_what_the_grammars_read_rightly_is_left_to_them(written):
    assert rewritten(Tracked.of(written)).text == written


SPOKEN = [
    ("Version 2.10.3 is out.", "Version two point ten point three is out."),
    ("I live at 221B Baker Street.", "I live at two twenty one B Baker Street."),
    ("It made $5.3 billion.", "It made five point three billion dollars."),
    ("It was 40–60°C.", "It was forty to sixty degrees Celsius."),
    ("½ cup of 2 GB at 60 fps", "one half cup of two gigabytes at sixty frames per second."),
    ("On 2024-03-15T14:30:00Z.", "On march fifteenth twenty twenty four at fourteen thirty UTC."),
    ("On 2024-03-15.", "On march fifteenth twenty twenty four."),
    ("See https://example.com/blog?x=1.", "See example dot com slash blog."),
    ("10000 people paid $100K.", "ten thousand people paid one hundred thousand dollars."),
    ("World War II and Henry VIII", "World War two and Henry the eighth."),
    ("A 5 ft 10 in. man runs 100 m.", "A five feet ten inches man runs one hundred meters."),
]


@pytest.mark.parametrize(("written", "said"), SPOKEN)
def test_rules_and_grammars_together(written, said):
    assert [piece.text for piece in pieces(written, Limits())] == [said]


@pytest.mark.parametrize("c", [*"*#_`~|<>\\^{}[]/&@.-:;!?,=+$%°²x0aA \u00e9\u4e00"])
@pytest.mark.parametrize("glue", ["", " ", "a", "1"])
def test_2000_of_one_mark_take_no_time(c, glue):
    """What the slowest rule would do on such a block would show as a test that hangs."""
    written = Tracked.of(((c + glue) * 2000)[:2000])
    assert not re.search(r"[*#]|://", rewritten(written).text)
