"""protocol/README.md is the wire spec for clients in other languages: it and the code say the same, both ways."""

import hashlib
import os
import re
from pathlib import Path

import pytest

from misoctl import client
from misod import router, session
from protocol import codec, errors, paths
from protocol import messages as m

README = Path(codec.__file__).with_name("README.md").read_text()


def section(title: str) -> str:
    return re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", README, re.MULTILINE | re.DOTALL).group(1)


def rows(text: str) -> list[list[str]]:
    """The cells of a table, less its two head lines."""
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def specified(title: str) -> dict[str, list[list[str]]]:
    parts = re.split(r"^### `(\w+)`\n", section(title), flags=re.MULTILINE)[1:]
    return {name: rows(body) for name, body in zip(parts[::2], parts[1::2], strict=True)}


SIDES = {"Messages from the client": m.FROM_CLIENT, "Messages from the daemon": m.FROM_DAEMON}
CASES = [(title, cls) for title, table in SIDES.items() for cls in table.values()]


@pytest.mark.parametrize("title", SIDES)
def test_the_spec_has_every_message_and_no_other(title):
    assert list(specified(title)) == list(SIDES[title])


@pytest.mark.parametrize(("title", "cls"), CASES, ids=lambda c: getattr(c, "__name__", "-"))
def test_the_spec_has_every_field_with_its_range_and_says_what_it_means(title, cls):
    given = specified(title)[cls.t]
    assert given[0] == ["`t`", "str", f'`"{cls.t}"`']
    assert [row[:2] for row in given[1:]] == [[f"`{name}`", str(limit)] for name, limit in cls.limits().items()]
    assert all(len(row) == 3 and row[2] for row in given)


def test_the_spec_has_every_limit():
    values = {name: getattr(m, name) for name in vars(m) if name.isupper() and isinstance(getattr(m, name), int)}
    values |= {"SLOW_S": session.SLOW_S, "PROBE_S": session.PROBE_S}
    given = {row[0].strip("`"): row[1] for row in rows(section("Limits"))}
    assert given.pop("VERSION") == f"{m.VERSION[0]}.{m.VERSION[1]}"
    assert {name: float(value) for name, value in given.items()} == values


def test_the_spec_has_every_error_with_its_exit_code_and_next_step():
    given = rows(section("Errors"))
    assert given == [[f"`{c}`", str(e.exit_code), e.next_step] for c, e in errors.ERRORS.items()]


def test_the_spec_has_every_exit_code():
    assert rows(section("Exit codes of misoctl")) == [[str(c), text] for c, text in errors.EXIT_CODES.items()]
    named = {v for k, v in vars(errors).items() if k.isupper() and type(v) is int and k != "SIGNALLED"}
    assert named == set(errors.EXIT_CODES)
    assert {e.exit_code for e in errors.ERRORS.values()} <= named


def test_every_error_code_that_the_code_raises_is_in_the_table():
    root = Path(codec.__file__).parent.parent
    raised = set()
    for path in [*(root / "protocol").glob("*.py"), *(root / "misod").glob("*.py"), *(root / "misoctl").glob("*.py")]:
        raised |= set(re.findall(r'(?:ProtocolError\(|of_code\(|code=)"(\w+)"', path.read_text()))
    assert {"bad_message", "unknown_type"} <= raised <= errors.ERRORS.keys()


def options_set(module) -> dict[str, str]:
    return dict(re.findall(r"setsockopt\(zmq\.(\w+), (.+)\)", Path(module.__file__).read_text()))


def test_the_spec_has_every_socket_option_that_is_set():
    known = {
        "m.MAX_MESSAGE_BYTES": str(m.MAX_MESSAGE_BYTES),
        "os.getuid()": "own uid",
        "NEVER_MS": str(client.NEVER_MS),
    }
    known["max_rows * m.WINDOW_FRAMES + SPARE_MESSAGES"] = f"max_rows * {m.WINDOW_FRAMES} + {router.SPARE_MESSAGES}"
    given = rows(section("Socket options"))
    for column, module in ((1, router), (2, client)):
        specified_here = {row[0].strip("`"): row[column] for row in given if row[column] != "-"}
        assert specified_here == {name: known.get(value, value) for name, value in options_set(module).items()}
    assert all(len(row) == 4 and row[3] for row in given)


def test_the_example_bytes_are_what_they_say_and_encode_back_to_themselves():
    examples = re.findall(r"^`(\w+\(.*\))`, (\d+) bytes:\n\n((?:    [0-9a-f ]+\n)+)", section("Example"), re.MULTILINE)
    assert [text.split("(")[0] for text, _, _ in examples] == ["Hello", "Welcome"]
    for (text, size, dump), table in zip(examples, (m.FROM_CLIENT, m.FROM_DAEMON), strict=True):
        data = bytes.fromhex(dump)
        message = codec.unpack(data, table)
        assert (repr(message), codec.pack(message), len(data)) == (text, data, int(size))


def test_the_socket_is_where_the_spec_says():
    assert "at most 103 bytes on macOS and 107 on Linux" in README
    assert paths.SUN_PATH_BYTES in (103, 107)
    home = Path("/" + "h" * 200)
    digest = hashlib.sha256(os.fsencode(home)).hexdigest()[:12]
    assert paths.find_paths({"MISO_HOME": str(home)}).socket == Path(f"/tmp/miso-{os.getuid()}-{digest}/misod.sock")
    assert paths.find_paths({"MISO_HOME": "/x"}).socket == Path("/x/run/misod.sock")


def test_the_figures_in_the_prose_are_those_of_the_code():
    prose = " ".join(section("Flow control").split())
    assert f"at most {m.WINDOW_FRAMES} frames ahead" in prose
    assert f"at least each {m.ACK_FRAMES} frames" in prose
    assert f"full for {session.SLOW_S:g} s" in prose
    assert session.PROBE_S == 1
    assert "`progress` comes each second" in prose


def test_the_words_a_field_may_hold_are_in_the_spec():
    """State and end words are open to newcomers, but those there are now are named."""
    source = " ".join(p.read_text() for p in (Path(codec.__file__).parent.parent / "misod").glob("*.py"))
    for word in set(re.findall(r'state="(\w+)"', source)) | {"eos", "cap", "cancelled", "drained", "queued", "parked"}:
        assert f"`{word}`" in README
