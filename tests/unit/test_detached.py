"""--no-wait, where the misoctl that speaks on ends before it was accepted."""

import sys

import pytest

from misoctl import detached


@pytest.mark.parametrize(("end", "code"), [("kill -9 $$", 137), ("exit 66", 66), ("exit 0", 0)])
def test_the_first_exits_as_the_other_did(tmp_path, monkeypatch, end, code):
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\n{end}\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(sys, "argv", ["misoctl", "say", "Hello."])
    with pytest.raises(SystemExit) as ended:
        detached.leave(to_stdout=False)
    assert ended.value.code == code
