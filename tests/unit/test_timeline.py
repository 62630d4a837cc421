"""When each word is heard: shared out over a piece's sound; and what of a piece is shown where."""

import struct

import pytest

from misoctl.highlight import shown
from misoctl.screen import cells, wrapped
from misoctl.timeline import LETTERS_A_SECOND, Timeline, Word
from protocol import messages as m

LOUD, QUIET = struct.pack("<h", 9000) * 2400, bytes(4800)  # 0.1 s each


def piece(number: int, spoken: str, source: int | None = 0) -> m.Piece:
    """Its words where they are in the text from `source` on; None: not known."""
    spans, at = b"", 0
    for word in spoken.split() if source is not None else ():
        spans += struct.pack("<4I", at, at + len(word), source + at, source + at + len(word))
        at += len(word) + 1
    return m.Piece(id=1, number=number, sentence=number, spoken=spoken, spans=spans)


def write(line: Timeline, *frames: bytes) -> None:
    for frame in frames:
        line.take(m.Pcm(id=1, seq=0, rate=24_000, turn=0, data=frame))


def words(line: Timeline, until_s: float) -> list[str]:
    return [x.piece.spoken[slice(*x.spoken)] if isinstance(x, Word) else "done" for x in line.heard(until_s)]


def done() -> m.Done:
    least = {"str": "x", "bin": b""}
    limits = m.Done.limits().items()
    return m.Done(**{name: None if x.optional else least.get(x.kind, x.low) for name, x in limits})


def test_a_piece_is_shared_out_over_its_sound_and_not_over_the_silence_around_it():
    line = Timeline()
    line.begin("abcd efgh.")
    line.take(piece(0, "abcd efgh."))
    write(line, QUIET, QUIET, *[LOUD] * 10, QUIET, QUIET)
    line.take(done())
    assert words(line, 0.19) == []
    assert words(line, 0.21) == ["abcd"]
    assert words(line, 0.69) == [] and words(line, 0.71) == ["efgh."]  # 5 of 10 letters into 1 s
    assert words(line, 1.39) == [] and words(line, 1.41) == ["done"]


def test_of_what_was_cut_no_more_is_heard_and_the_next_goes_on_from_there():
    line = Timeline()
    line.begin("abcd efgh.")
    line.take(piece(0, "abcd efgh."))
    write(line, *[LOUD] * 10)
    line.take(done())
    assert words(line, 0.3) == ["abcd"]
    line.cut(0.3)
    line.begin("efgh.")
    assert line.take(piece(0, "efgh.")).start_s == 0.3
    write(line, LOUD)
    line.take(done())
    assert words(line, 0.39) == ["efgh."] and words(line, 9) == ["done"]


def test_what_is_not_all_here_is_paced_by_the_piece_before():
    line = Timeline()
    line.begin("aaaa bbbb. cccc dddd.")
    line.take(piece(0, "aaaa bbbb."))
    write(line, LOUD)
    assert words(line, 4.9 / LETTERS_A_SECOND) == ["aaaa"]  # as fast as most speak
    write(line, *[LOUD] * 19)  # it took 2 s
    line.take(piece(1, "cccc dddd.", 11))
    write(line, LOUD)
    assert words(line, 2.05) == ["bbbb.", "cccc"]
    assert words(line, 2.95) == [] and words(line, 3.05) == ["dddd."]


def test_every_word_is_heard_once_and_in_order_though_it_is_asked_late():
    line = Timeline()
    line.begin("one two. three.")
    line.take(piece(0, "one two."))
    write(line, *[LOUD] * 5)
    line.take(piece(1, "three.", 9))
    write(line, LOUD, LOUD)
    line.take(done())
    assert words(line, 9.0) == ["one", "two.", "three.", "done"] and words(line, 9.0) == []


def test_where_no_source_is_known_the_spoken_words_are_still_told():
    line = Timeline()
    line.begin("5 cats")
    begun = line.take(piece(0, "five cats.", None))
    assert [word.source for word in begun.words] == [None, None]
    assert shown(begun) == ("five cats.", {(0, 4): (0, 4), (5, 10): (5, 10)})


def test_what_a_terminal_would_obey_is_not_shown():
    line = Timeline()
    line.begin("a\x1b[2J\tb\n\nc")
    spans = struct.pack("<12I", 0, 1, 0, 1, 2, 3, 6, 7, 4, 5, 9, 10)
    begun = line.take(m.Piece(id=1, number=0, sentence=0, spoken="a b c", spans=spans))
    text, places = shown(begun)
    assert text == "a[2J b c"
    assert {text[a:b] for a, b in places.values()} == {"a", "b", "c"}


@pytest.mark.parametrize(
    ("text", "width", "rows"),
    [
        ("the cat sat", 7, ["the cat", "sat"]),
        ("the cat sat", 6, ["the", "cat", "sat"]),
        ("abcdefgh", 3, ["abc", "def", "gh"]),
        ("a bcdefg h", 4, ["a", "bcde", "fg h"]),
        ("猫が座る", 4, ["猫が", "座る"]),
        ("猫", 1, ["猫"]),
        ("e\u0301e\u0301 x", 3, ["e\u0301e\u0301", "x"]),
        ("", 5, [""]),
        ("ab ", 2, ["ab", ""]),
    ],
)
def test_rows_are_no_wider_than_the_terminal(text, width, rows):
    assert [text[a:b] for a, b in wrapped(text, width)] == rows
    assert all(cells(row) <= max(width, 2) for row in rows)
