"""Markdown and HTML as plain speech: what is read, in which sentences, with which pauses."""

import pytest

from misod.text import Limits, Manner, pieces
from misod.text.blocks import HEADING_S, ITEM_S, PARAGRAPH_S

WIDE = Limits()


def said(written: str, **manner) -> list[str]:
    return [piece.text for piece in pieces(written, WIDE, Manner(**manner))]


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("# A heading\nThe text.", ["A heading.", "The text."]),
        ("### Closed ###", ["Closed."]),
        ("Underlined\n==========\nText", ["Underlined.", "Text."]),
        ("- milk\n* eggs\n+ bread\n• tea", ["milk.", "eggs.", "bread.", "tea."]),
        ("- [ ] to do\n- [x] done", ["to do.", "done."]),
        ("1. one thing\n2) another", ["one, one thing.", "two, another."]),
        ("- an item\n  that goes on\n\nText", ["an item that goes on.", "Text."]),
        ("> quoted\n> words\n>> deeper", ["quoted words deeper."]),
        ("above\n\n---\n\n* * *\n\nbelow", ["above.", "below."]),
        ("| Name | Age |\n|:-----|----:|\n| Ann | old |", ["Name, Age.", "Ann, old."]),
        ("Name | Age\n--- | ---\nAnn | old\n\nText", ["Name, Age.", "Ann, old.", "Text."]),
        ("```py\nprint_all(x)\n# done\n```\nAfter.", ["print all x.", "done.", "After."]),
        ("~~~\n* star\n~~~\nAfter.", ["star.", "After."]),
        ("Use `do_it()` and ``x`` now.", ["Use do it() and x now."]),
        ("A [link](http://x.com/(a)b 'title') and [ref][1].\n\n[1]: http://y.com", ["A link and ref."]),
        ("![A cat](cat.png) sat.", ["A cat sat."]),
        ("A note[^1].\n\n[^1]: The note.", ["A note.", "The note."]),
        ("<http://x.com> or <a@x.org>", ["x dot com or a at x dot org."]),
        (
            "**Bold**, *it*, ***both***, __b__, _i_, ~~gone~~, un*frigging*real",
            ["Bold, it, both, b, i, gone, unfriggingreal."],
        ),
        (r"\*not bold\* and \# no heading", ["not bold and no heading."]),
        ("<p>One</p><p>Two <b>bo</b>ld</p>Three<br/>Four", ["One.", "Two bold.", "Three.", "Four."]),
        ("<h1 class='x'>Head</h1><ul><li>a b<li>c d</ul>", ["Head.", "a b.", "c d."]),
        ("a <!-- not\n\nthis --> b <script>no()</script><style>\n* {}</style> c", ["a b c."]),
        ("an <!-- unclosed comment", ["an unclosed comment."]),
        ("&lt;&amp;&nbsp;caf&eacute; &#65;&#x42; &nosuch;", ["café AB and nosuch."]),
        ("<img src='x' alt=\"A dog\"> barks", ["A dog barks."]),
        ("a < b and vector<int>", ["a less than b and vector int."]),
        ("<a href='http://x.com/y?z'>here</a>, there", ["here, there."]),
    ],
)
def test_markup(written, spoken):
    assert said(written) == spoken


@pytest.mark.parametrize(
    ("written", "dropped", "named"),
    [
        ("Launch 🚀 now", ["Launch now."], ["Launch rocket now."]),
        ("👍🏽 ok ❤️", ["ok."], ["thumbs up sign ok heavy black heart."]),
        ("Go 🇫🇷!", ["Go!"], ["Go F R!"]),
        ("🎉", [], ["party popper."]),
        (":-) well :D", ["well."], ["well."]),
        ("1️⃣ first", ["one first."], ["one first."]),
    ],
)
def test_emoji_are_dropped_or_named(written, dropped, named):
    assert said(written) == dropped
    assert said(written, emoji="name") == named


@pytest.mark.parametrize(
    ("written", "spoken"),
    [
        ("soft\u00adhyphen zero\u200bwidth \u202eturned\u202c \ufeffbom", ["softhyphen zerowidth turned bom."]),
        ("bell\x07 nul\x00 esc\x1b[0m tab\tnbsp\u00a0end", ["bell nul esc tab nbsp end."]),
        ("e\u0301te\u0301", ["été."]),
        ("“It’s” ‘so’ «fine»", ['"It\'s" \'so\' "fine".']),
        ("one\r\n\r\ntwo\u2029three", ["one.", "two three."]),
        ("𝐛𝐨𝐥𝐝 ｆｕｌｌ ﬁne ℃", ["bold full fine degree C."]),
        ("half \ud83d surrogate", ["half surrogate."]),
        ("٣ ５ १", ["three five one."]),
        ("STOP, I SAID. NASA said so.", ["Stop, I said.", "NASA said so."]),
    ],
)
def test_characters(written, spoken):
    assert said(written) == spoken


def test_pauses_follow_the_last_sentence_of_what_they_part():
    written = "# Head\nOne. Two.\n\n- item one here. And more.\n- item two\n\nEnd. *** !!!"
    told = [(piece.text, piece.pause_s) for piece in pieces(written, WIDE)]
    assert told == [
        ("Head.", HEADING_S),
        ("One.", 0.0),
        ("Two.", PARAGRAPH_S),
        ("item one here.", 0.0),
        ("And more.", ITEM_S),
        ("item two.", ITEM_S),
        ("End.", 0.0),
    ]


def test_without_normalising_a_text_is_read_as_it_is_but_for_what_nobody_sees():
    written = "# Head\nIt *costs* $5,\u200b v2.\n\nSee https://x.com."
    told = [(piece.text, piece.pause_s) for piece in pieces(written, WIDE, Manner(normalize=False))]
    assert told == [("# Head It *costs* $5, v2.", PARAGRAPH_S), ("See https://x.com.", 0.0)]


@pytest.mark.parametrize(
    "written",
    "<!--¦<script>¦<p ¦<b a=¦[¦![](¦`¦`a¦&¦|¦| ¦> ¦#¦1. ¦- ¦<¦\\¦_a¦*a ¦e\u0301¦\u0316\u0301¦\n¦\r¦.¦x.¦()¦**a".split(
        "¦"
    ),
)
def test_60000_marks_take_no_time(written):
    """What is quadratic would show as a test that hangs."""
    assert next(pieces(written * (60_000 // len(written.encode())) + "\n\nend", WIDE)).text
