"""How freely a request is spoken: presets, what is asked one by one, and a temperature that falls."""

import pytest

from misod.style import FIELDS, PRESETS, Style, chosen
from protocol import messages as m


def test_a_preset_is_taken_whole_and_what_is_asked_takes_its_place():
    assert chosen(PRESETS, None, {}) == PRESETS["natural"]
    assert chosen(PRESETS, "stable", {"top_k": 5, "top_p": None}).top_k == 5
    assert chosen(PRESETS, "stable", {"top_k": 5}).min_p == PRESETS["stable"].min_p


def test_a_temperature_that_is_asked_for_stays():
    assert PRESETS["stable"].min_temperature is not None
    warm = chosen(PRESETS, "stable", {"temperature": 0.8})
    assert {warm.temperature_at(frame) for frame in (0, 10, 1000)} == {0.8}
    falling = chosen(PRESETS, "stable", {"temperature": 0.8, "min_temperature": 0.2})
    assert falling.temperature_at(0) == 0.8 and falling.temperature_at(10_000) == pytest.approx(0.2)


def test_a_falling_temperature_has_come_63_percent_of_the_way_after_its_frames():
    style = Style(temperature=1.0, top_k=1, min_temperature=0.5, decay_frames=20)
    assert style.temperature_at(20) == pytest.approx(0.5 + 0.5 / 2.718281828)
    falls = [style.temperature_at(frame) for frame in range(200)]
    assert falls == sorted(falls, reverse=True)
    assert Style(temperature=0.3, top_k=1, min_temperature=0.5).temperature_at(9) == 0.3


def test_the_wire_knows_every_number_of_a_style_and_all_presets_are_within_it():
    for message in (m.Say, m.Done):
        assert set(FIELDS) <= message.limits().keys()
    for style in PRESETS.values():
        for name in FIELDS:
            value, limit = getattr(style, name), m.Done.limits()[name]
            assert value is None or limit.low <= value <= limit.high, name
