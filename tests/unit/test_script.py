"""Scripts: as people write them, and as the engine reads them."""

import pytest

from misoctl.script import parse
from misod.text import Limits, Reader, Script, Turn, turns
from protocol import errors
from protocol.errors import Failure

WRITTEN = """# a scene
anna: Is anybody there?

[3] Nobody but me.
Ben O'Neil: And me.   # said aloud, for it is no comment here


anna: Good.
"""


def test_names_get_the_speakers_that_no_number_takes_as_they_come():
    script = parse("[1] a\nx: b\ny: c\nx: d\n[0] e", "s.txt")
    assert script.text.split("\n") == ["[1] a", "[2] b", "[3] c", "[2] d", "[0] e"]
    assert script.names == ["1", "x", "y", "x", "0"]


def test_comments_are_dropped_and_blank_lines_kept():
    script = parse(WRITTEN, "s.txt")
    assert script.names == ["anna", "3", "Ben O'Neil", "anna"]
    assert script.text.split("\n")[:4] == [
        "[0] Is anybody there?",
        "",
        "[3] Nobody but me.",
        script.text.split("\n")[3],
    ]
    assert script.text.split("\n")[4:] == ["", "", "[0] Good."]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("anna: yes\nno tag here", "s.txt:2"),
        ("anna:", "s.txt:1"),
        ("\n\n[100] x", "s.txt:3"),
        ("[0]", "s.txt:1"),
        ("anna: ...", "s.txt:1"),
        ("# nothing\n\n", "no line to speak"),
        ("\n".join(f"voice{'x' * (n // 26)}{chr(97 + n % 26)}: hi" for n in range(101)), "more than 100"),
    ],
)
def test_a_line_that_is_no_turn_is_named(text, where):
    with pytest.raises(Failure, match=where) as caught:
        parse(text, "s.txt")
    assert caught.value.exit_code == errors.BAD_DATA


def test_the_engine_reads_what_the_client_writes():
    text = parse(WRITTEN, "s.txt").text
    read = turns(text)
    assert [(turn.number, turn.speaker) for turn in read] == [(0, 0), (1, 3), (2, 1), (3, 0)]
    assert all(text[turn.start :].startswith(turn.text) for turn in read)
    pauses = [turn.pause_s for turn in read]
    assert pauses[0] == 0 and pauses[3] > pauses[1] > pauses[2] > 0


@pytest.mark.parametrize("text", ["", "hello", "[0] hello\nhello", "[0] ...", "[0]"])
def test_what_the_client_would_not_write_is_refused(text):
    with pytest.raises(ValueError, match="script"):
        turns(text)


def test_pieces_come_turn_after_turn_with_spans_of_the_whole_text():
    text = "[0] One two. Three.\n\n[1] 4 words."
    script, got = Script(turns(text), lambda part: Reader(part, Limits())), []
    while following := script.next():
        got.append(following)
    assert [(turn.speaker, piece.text) for turn, piece in got] == [(0, "One two."), (0, "Three."), (1, "four words.")]
    for _, piece in got:
        for start, end, source_start, source_end in piece.spans:
            assert text[source_start:source_end] in (piece.text[start:end], "4")
    script.close()


def test_one_speaker_is_a_script_of_one_turn():
    script = Script([Turn(0, 7, "Hello there.")], lambda part: Reader(part, Limits()))
    turn, piece = script.next()
    assert (turn.speaker, piece.text, script.next(), script.unread) == (7, "Hello there.", None, 0)
