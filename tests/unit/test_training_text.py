"""The training text keeps to what the voice may read. The recipe's other steps need torch and a GPU."""

import random
import re

import pytest

from training.everyday import everyday
from training.text import MAX_CHARS, MAX_WORDS, clean, five_grams, words

ALLOWED = re.compile(r"[A-Za-z ,.?!'\-:]+[.?!]")


def test_everyday_lines_are_many_and_within_what_a_piece_may_hold():
    lines = {clean(line) for line in everyday(random.Random(3), 2000)} - {None}
    assert len(lines) > 1500
    assert all(ALLOWED.fullmatch(x) and len(words(x)) <= MAX_WORDS and len(x) <= MAX_CHARS for x in lines)


@pytest.mark.parametrize("line", ["Room 12 is free.", "e.g. this", "a_b (c)", "word " * (MAX_WORDS + 1), "", "naïve"])
def test_a_line_that_holds_more_than_letters_and_plain_marks_is_left_out(line):
    assert clean(line) is None


def test_titles_quotes_and_dashes_are_written_as_they_are_read():
    assert clean('"Mr. Knightley--come in," she said') == "Mister Knightley, come in, she said."


def test_a_test_sentence_in_other_clothes_shares_five_words_in_a_row():
    held_out = "The birch canoe slid on the smooth planks."
    assert five_grams("I saw that the birch canoe slid on.") & five_grams(held_out)
    assert not five_grams("A canoe of birch went by.") & five_grams(held_out)
