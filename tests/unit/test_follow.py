"""Lines of standard input, as --follow takes them."""

import os

import pytest

from misoctl.follow import TOGETHER_BYTES, Lines, split
from protocol import messages as m

MOST = m.MAX_TEXT_BYTES


def lines(*writes: bytes) -> tuple[list[str], list[str]]:
    """All texts of a pipe into which that was written before anything was read, and what was told."""
    ours, theirs = os.pipe()
    for data in writes:
        os.write(theirs, data)
    os.close(theirs)
    told: list[str] = []
    reader = Lines(ours, told.append)
    reader.thread.join(10)
    return list(reader), told


@pytest.mark.parametrize(
    ("chunks", "expected"),
    [
        ([b"a\nb\n"], [b"a", b"b"]),
        ([b"a\nb"], [b"a", b"b"]),
        ([b"a", b"b\n", b"\n", b"c"], [b"ab", b"", b"c"]),
        ([], []),
        ([b"a" * MOST + b"\n", b"b\n"], [b"a" * MOST, b"b"]),
        ([b"a" * MOST, b"a\n", b"b\n"], [None, b"b"]),
        ([b"a" * MOST] * 3 + [b"\nb"], [None, b"b"]),
        ([b"a" * (MOST + 1)], [None]),
    ],
    ids=range(8),
)
def test_lines_are_cut_at_their_ends_and_none_is_held_that_is_too_long(chunks, expected):
    assert list(split(iter(chunks))) == expected


def test_lines_that_wait_are_one_text_and_what_cannot_be_spoken_is_left_out():
    texts, told = lines(b"one\n---\n\n  \ntwo\r\n\x1b[31mthree\x1b[0m\n", b"10 %\r50 %\r100 %\nlast")
    assert texts == ["one\n\ntwo\n\nthree\n\n100 %\n\nlast"] and told == []


def test_what_is_no_text_is_told_and_the_rest_is_spoken():
    texts, told = lines(b"one\ntw\xff\nthree\n")
    assert texts == ["one\n\nthree"]
    assert told == ["line 2 is not UTF-8 (byte 2 is 0xff): left out"]


def test_no_more_is_joined_than_one_request_should_have():
    line = b"word " * 60 + b"\n"
    texts, _ = lines(line * 40)
    assert all(len(text) < TOGETHER_BYTES for text in texts)
    assert 6 <= len(texts) <= 8 and "".join(texts).count("word") == 40 * 60


def test_a_line_is_there_while_the_pipe_is_still_open():
    ours, theirs = os.pipe()
    texts = iter(Lines(ours, print))
    for line in (b"one\n", b"two\n"):
        os.write(theirs, line)
        assert next(texts) == line.decode().strip()
    os.write(theirs, b"thr")
    os.close(theirs)
    assert list(texts) == ["thr"]
