"""Dialogues are bounded, in number and in bytes, and never mix two models' codes."""

import numpy as np

from misod.dialogues import MAX_DIALOGUE_BYTES, MAX_DIALOGUES, Dialogues
from misod.engine import Info, Row, Say
from misod.style import Style
from misod.voices import Segment


def segment(text: str, frames: int = 10) -> Segment:
    return Segment(0, text, np.ones((32, frames), np.int32))


def add(dialogues: Dialogues, name: str, model: str, said: list[Segment], dropped: int, began=None, kept="") -> None:
    """What a row has said that began when `began`, or what is there now, was the dialogue."""
    say = Say(text="x", seed=1, dialogue=began or dialogues.get(name))
    row = Row(say=say, style=Style(1.0, 1), said=said, dropped=dropped, kept=kept)
    dialogues.add(Info("miso", model, f"digest of {model}", "cpu"), row)


def texts(dialogues: Dialogues, name: str) -> list[str]:
    return [each.text for each in dialogues.get(name).segments]


def test_what_is_said_follows_what_was_said():
    dialogues = Dialogues(print)
    assert texts(dialogues, "a") == []
    add(dialogues, "a", "miso", [segment("one"), segment("two")], 0)
    add(dialogues, "b", "miso", [segment("other")], 0)
    add(dialogues, "a", "miso", [segment("three")], 0)
    assert texts(dialogues, "a") == ["one", "two", "three"]
    first = {"name": "a", "turns": 3, "seconds": 2.4, "bytes": 3 * 1280 + 11, "model": "miso"}
    assert [each["name"] for each in dialogues.listing()] == ["a", "b"] and dialogues.listing()[0] == first


def test_what_the_model_took_no_longer_is_not_kept():
    dialogues = Dialogues(print)
    add(dialogues, "a", "miso", [segment("one"), segment("two")], 0)
    add(dialogues, "a", "miso", [segment("three")], 2)
    assert texts(dialogues, "a") == ["three"]


def test_the_oldest_whole_segments_leave_where_one_is_too_large():
    dialogues = Dialogues(print)
    for number in range(60):
        add(dialogues, "a", "miso", [segment(f"{number}", frames=100)], 0)
    kept = dialogues.get("a")
    assert MAX_DIALOGUE_BYTES - 12_802 < kept.bytes <= MAX_DIALOGUE_BYTES
    assert texts(dialogues, "a") == [str(number) for number in range(60 - len(kept.segments), 60)]
    add(dialogues, "a", "miso", [segment("alone too large", frames=5000)], 0)
    assert texts(dialogues, "a") == []


def test_of_too_many_the_one_used_least_recently_is_forgotten():
    dialogues = Dialogues(print)
    for number in range(MAX_DIALOGUES):
        add(dialogues, f"d{number}", "miso", [segment("x")], 0)
    add(dialogues, "d0", "miso", [segment("y")], 0)
    add(dialogues, "new", "miso", [segment("z")], 0)
    assert len(dialogues) == MAX_DIALOGUES
    assert texts(dialogues, "d0") == ["x", "y"] and texts(dialogues, "d1") == []


def test_codes_of_two_models_never_meet():
    dialogues = Dialogues(print)
    add(dialogues, "a", "miso", [segment("one")], 0)
    add(dialogues, "a", "nano", [segment("two")], 0)
    assert (texts(dialogues, "a"), dialogues.get("a").model) == (["two"], "nano")


def test_one_or_all_are_forgotten():
    dialogues = Dialogues(print)
    for name in "abc":
        add(dialogues, name, "miso", [segment("x")], 0)
    assert dialogues.forget("a") and not dialogues.forget("a") and len(dialogues) == 2
    assert dialogues.forget("") and len(dialogues) == 0


def test_what_others_said_meanwhile_is_not_taken_for_what_the_model_dropped():
    dialogues = Dialogues(print)
    add(dialogues, "a", "miso", [segment("one"), segment("two")], 0)
    began = dialogues.get("a")
    add(dialogues, "a", "miso", [segment("three")], 2, began)
    add(dialogues, "a", "miso", [segment("four"), segment("five")], 2, began)
    assert texts(dialogues, "a") == ["three", "four", "five"]
    began = dialogues.get("a")
    dialogues.forget("a")
    add(dialogues, "a", "miso", [segment("six"), segment("seven")], 4, began)
    assert texts(dialogues, "a") == ["seven"]


def test_what_was_kept_of_what_is_forgotten_is_dropped():
    dropped = []
    dialogues = Dialogues(dropped.append)
    for number in range(3):
        add(dialogues, "a", "miso", [segment("x")], 0, kept=f"a{number}")
    assert dropped == ["a0", "a1"]
    dialogues.forget("a")
    assert dropped == ["a0", "a1", "a2"]
    for number in range(MAX_DIALOGUES + 1):
        add(dialogues, f"d{number}", "miso", [segment("x")], 0, kept=f"d{number}")
    assert dropped[3:] == ["d0"]
    dialogues.forget("")
    assert dropped[4:] == [f"d{number}" for number in range(1, MAX_DIALOGUES + 1)]
