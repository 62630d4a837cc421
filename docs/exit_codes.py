"""docs/exit-codes.md: the one table of protocol/errors.py."""

from protocol import errors

HEAD = """\
# Exit codes

Of `misoctl` and of `misod`, made from `protocol/errors.py` by `python -m docs.render`. What went wrong is one line on
standard error, with what to do next; 65 to 78 are near those of `sysexits.h`.

| code | meaning |
| ---: | --- |
"""
ERRORS = """
## Errors on the wire

What misod answers a request with ([protocol/README.md](../protocol/README.md)), and what misoctl makes of it. One that
misoctl does not know, of a newer misod, is 70.

| error | code | what to do |
| --- | ---: | --- |
"""


def page() -> str:
    codes = [f"| {code} | {text} |\n" for code, text in errors.EXIT_CODES.items()]
    wire = [f"| `{name}` | {entry.exit_code} | {entry.next_step} |\n" for name, entry in errors.ERRORS.items()]
    return HEAD + "".join(codes) + ERRORS + "".join(wire)
