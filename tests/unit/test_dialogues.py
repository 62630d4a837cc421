"""Dialogues are bounded, in number and in bytes, and never mix two models' codes."""

import numpy as np

from misod.dialogues import MAX_DIALOGUE_BYTES, MAX_DIALOGUES, Dialogues
from misod.voices import Segment


def segment(text: str, frames: int = 10) -> Segment:
    return Segment(0, text, np.ones((32, frames), np.int32))


def texts(dialogues: Dialogues, name: str) -> list[str]:
    return [each.text for each in dialogues.get(name).segments]


def test_what_is_said_follows_what_was_said():
    dialogues = Dialogues()
    assert texts(dialogues, "a") == []
    dialogues.add("a", "miso", "1", [segment("one"), segment("two")], 0)
    dialogues.add("b", "miso", "1", [segment("other")], 0)
    dialogues.add("a", "miso", "1", [segment("three")], 0)
    assert texts(dialogues, "a") == ["one", "two", "three"]
    first = {"name": "a", "turns": 3, "seconds": 2.4, "bytes": 3 * 1280 + 11, "model": "miso"}
    assert [each["name"] for each in dialogues.listing()] == ["a", "b"] and dialogues.listing()[0] == first


def test_what_the_model_took_no_longer_is_not_kept():
    dialogues = Dialogues()
    dialogues.add("a", "miso", "1", [segment("one"), segment("two")], 0)
    dialogues.add("a", "miso", "1", [segment("three")], 2)
    assert texts(dialogues, "a") == ["three"]


def test_the_oldest_whole_segments_leave_where_one_is_too_large():
    dialogues = Dialogues()
    for number in range(60):
        dialogues.add("a", "miso", "1", [segment(f"{number}", frames=100)], 0)
    kept = dialogues.get("a")
    assert MAX_DIALOGUE_BYTES - 12_802 < kept.bytes <= MAX_DIALOGUE_BYTES
    assert texts(dialogues, "a") == [str(number) for number in range(60 - len(kept.segments), 60)]
    dialogues.add("a", "miso", "1", [segment("alone too large", frames=5000)], 0)
    assert texts(dialogues, "a") == []


def test_of_too_many_the_one_used_least_recently_is_forgotten():
    dialogues = Dialogues()
    for number in range(MAX_DIALOGUES):
        dialogues.add(f"d{number}", "miso", "1", [segment("x")], 0)
    dialogues.add("d0", "miso", "1", [segment("y")], 0)
    dialogues.add("new", "miso", "1", [segment("z")], 0)
    assert len(dialogues) == MAX_DIALOGUES
    assert texts(dialogues, "d0") == ["x", "y"] and texts(dialogues, "d1") == []


def test_codes_of_two_models_never_meet():
    dialogues = Dialogues()
    dialogues.add("a", "miso", "1", [segment("one")], 0)
    dialogues.add("a", "nano", "2", [segment("two")], 0)
    assert (texts(dialogues, "a"), dialogues.get("a").model) == (["two"], "nano")


def test_one_or_all_are_forgotten():
    dialogues = Dialogues()
    for name in "abc":
        dialogues.add(name, "miso", "1", [segment("x")], 0)
    assert dialogues.forget("a") and not dialogues.forget("a") and len(dialogues) == 2
    assert dialogues.forget("") and len(dialogues) == 0
