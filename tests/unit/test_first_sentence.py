"""A text is parted after its first sentence only where both parts are read as they were together."""

import pytest

from misod.text import WHOLE, Manner, first_sentence, pieces

PARTED = {
    "One. Two.": "One.",
    "Mr. Smith went. He did.": "Mr. Smith went.",
    '"Stop!" he said. Then he left.': '"Stop!" he said.',
    "**One.** **Two.** Three.": "**One.**",
    "**One. Two.** Three.": "**One.",
    "He `said. That` is. So.": "He `said. That` is.",
    "_One._ Two.": "_One._",
    "# Title\n\nText here. More.": "# Title",
    "1. One\n2. Two": "1. One",
    "<p>One.</p><p>Two <b>x</b>.</p>": "<p>One.",
    "...\n\nOne. Two.": "...\n\nOne.",
    "[a link. And more](https://a.b) ends. Two.": "[a link. And more](https://a.b) ends.",
}


@pytest.mark.parametrize("text", PARTED)
def test_the_first_sentence_ends_where_a_reader_would_say(text):
    cut, _ = first_sentence(text, Manner())
    assert text[:cut].strip() == PARTED[text]


CODE = "```\nmake it. so\nor not\n```\nText. **More** of it."
TABLE = "| a | b |\n|---|---|\n| c | d |\n\nEnd."


@pytest.mark.parametrize("text", [*PARTED, CODE, TABLE])
def test_both_parts_are_read_as_they_were_together(text):
    cut, _ = first_sentence(text, Manner())
    assert 0 < cut < len(text)
    assert read(text[:cut]) + read(text[cut:]) == read(text)


def read(text: str) -> list[str]:
    return [piece.text for piece in pieces(text, WHOLE)]


@pytest.mark.parametrize("text", ["One", "Only one sentence, of some length.", "**One.**", "One. ..."])
def test_of_one_sentence_there_is_no_rest(text):
    assert first_sentence(text, Manner()) == (len(text), 0.0)


def test_where_nothing_can_be_said_there_is_none_and_a_pause_is_told():
    assert first_sentence("<!-- One. Two. -->", Manner()) is None
    assert [first_sentence(text, Manner())[1] for text in ("# A\n\nB.", "A.\n\nB.", "A. B.")] == [0.5, 0.4, 0.0]


def test_as_it_is_written_marks_are_words():
    assert first_sentence("# One. Two", Manner(normalize=False)) == (6, 0.0)


def test_a_long_text_is_not_read_to_its_end(monkeypatch):
    read = []
    monkeypatch.setattr("misod.text.first.speakable", lambda text: read.append(text) or True)
    first_sentence("It rains. It pours.\n\n" * 2000, Manner())
    assert len(read) < 200
