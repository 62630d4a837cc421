"""Which engine takes which field of `say`: another's is refused by name, both ways, and never for nothing."""

from dataclasses import replace

import pytest

from misod.dialogues import Dialogue
from misod.engine import RowFault, Say
from misod.options import ONLY, check, own
from misod.style import FIELDS
from protocol import messages as m
from protocol.words import KITTENS

KITTEN = [Say(text="Hello.", seed=1, options={name: 1}) for name in KITTENS]
MISO = [
    *(
        Say(text="Hello.", seed=1, sampling={name: 0.5})
        for name in ("min_temperature", "decay_frames", "depth", "guidance")
    ),
    Say(text="[0] Hello.", seed=1, script=True),
    Say(text="Hello.", seed=1, emoji="name"),
    Say(text="Hello.", seed=1, dialogue=Dialogue("talk")),
]


@pytest.mark.parametrize("name", ONLY)
def test_every_field_of_the_table_is_on_the_wire(name):
    assert name in m.Say.limits()


@pytest.mark.parametrize(("says", "takes", "other", "whose"), [(KITTEN, "kitten", "miso", "KittenTTS 2"),
                                                              (MISO, "miso", "kitten", "MisoTTS")])  # fmt: skip
def test_what_one_engine_takes_the_other_refuses_by_name(says, takes, other, whose):
    refused = set()
    for say in says:
        check(say, takes, "one")
        with pytest.raises(RowFault, match=f"another takes no .*: that is for {whose}") as error:
            check(say, other, "another")
        assert error.value.code == "bad_value"
        refused.add(str(error.value).split()[3].rstrip(":"))
    assert refused == {name for name, engine in ONLY.items() if engine == takes}


def test_what_is_not_given_is_refused_by_nobody_and_a_receipt_has_only_what_was_taken():
    for engine in ("miso", "kitten"):
        check(Say(text="Hello.", seed=1, sampling={"temperature": 1.0, "top_k": 3}), engine, "one")
    assert own(FIELDS, "kitten") == {"temperature", "top_k", "top_p", "min_p"} and own(FIELDS, "miso") == set(FIELDS)


def test_a_quick_start_goes_with_no_script_and_no_session():
    for say, other in ((MISO[4], "script"), (MISO[6], "session")):
        with pytest.raises(RowFault, match=f"quick_start goes with no {other}") as error:
            check(replace(say, quick=""), "miso", "one")
        assert error.value.code == "bad_value"
    check(Say(text="Hello.", seed=1, quick=""), "miso", "one")
