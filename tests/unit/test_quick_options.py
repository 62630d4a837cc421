"""The options of a quick start, and what a receipt of one asks for. tests/daemon/test_quick_start.py has the rest."""

import json

import pytest
from click.testing import CliRunner

from misoctl import receipt
from misoctl.cli import cli
from protocol import errors
from protocol import messages as m


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--quick-start", "--script", "talk.txt"), "--quick-start goes with no --script"),
        (("--quick-start", "--session", "talk", "x"), "--quick-start goes with no --session"),
        (("--quick-start", "--follow"), "--quick-start goes with no --follow"),
        (("--quick-voice", "Bruno", "x"), "--quick-voice is for --quick-start"),
        (("--quick-start", "--quick-voice", "x" * 65, "x"), "a name is 1 to 64 bytes"),
        (("--quick-start", "--quick-voice", "", "x"), "a name is 1 to 64 bytes"),
    ],
)
def test_what_it_does_not_go_with_is_refused_by_name(arguments, line):
    done = CliRunner().invoke(cli, ["say", *arguments])
    assert done.exit_code == errors.USAGE and line in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [((), None), (("--quick-start",), ""), (("--quick-start", "--quick-voice", "Bruno"), "bruno")],
)
def test_the_wire_has_one_field_of_it(arguments, sent, monkeypatch):
    asked = {}
    monkeypatch.setattr("misoctl.saying.run", lambda **given: asked.update(given))
    CliRunner().invoke(cli, ["say", *arguments, "Hello."], catch_exceptions=False)
    assert asked["quick_start"] == sent and not {"quick", "quick_voice"} & asked.keys()


class Sink:
    sha256 = "0" * 64

    def played(self) -> dict:
        return {}


def test_a_receipt_asks_for_a_quick_start_where_there_was_one(tmp_path):
    """And not where there was none, whatever was asked for: only so it gives the same samples again."""
    least = {"str": "x", "bin": b""}
    made = {name: None if v.optional else least.get(v.kind, v.low) for name, v in m.Done.limits().items()}
    empty = dict.fromkeys(("session", "voice", "voice_digest"), "")
    path = tmp_path / "a.json"

    def read(quick_digest: str | None, **options) -> receipt.Replay:
        done = m.Done(**made | empty | {"quick_digest": quick_digest})
        path.write_text(receipt.to_json(done, "Hello.", options, Sink()))
        return receipt.read(str(path))

    wanted = read("1" * 64, quick_start="bruno")
    assert (wanted.quick_digest, wanted.options["quick_start"]) == ("1" * 64, "bruno")
    wanted = read(None, quick_start="bruno")
    assert wanted.quick_digest is None and "quick_start" not in wanted.options
    older = json.loads(path.read_text())
    path.write_text(json.dumps({name: older[name] for name in older if "quick" not in name}))
    assert receipt.read(str(path)).quick_digest is None
