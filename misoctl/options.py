"""Options that verbs share, and what they are called; at --help nothing else of them is loaded."""

from collections.abc import Callable
from functools import wraps

import click

FORMATS = ("wav", "flac", "ogg", "opus", "mp3", "raw")
OUTPUT_HELP = "Write a file, its format by its name: .wav, .flac, .ogg, .opus, .mp3; - is standard output."


ATEMPO = "`misoctl say -o - TEXT | ffplay -nodisp -autoexit -af atempo=1.25 -i -`"


def no_rate(_ctx, _param, value: str | None) -> None:
    """`say` of macOS has it. docs/say.md: why this one has not."""
    if value is not None:
        raise click.UsageError(f"-r is not there yet: no library that fits stretches speech as it comes; {ATEMPO} does")


def output_options(verb: Callable) -> Callable:
    """-o, --format and --raw; the verb is given them as `where`, for Outputs."""

    @wraps(verb)
    def with_where(*arguments, output, kind, raw, **given):
        return verb(*arguments, where={"output": output, "kind": kind, "raw": raw}, **given)

    for option in (
        click.option("--raw", is_flag=True, help="Bare samples (s16le, mono), to standard output if there is no -o."),
        click.option("--format", "kind", type=click.Choice(FORMATS), help="The format, whatever FILE is called."),
        click.option("-o", "--output", metavar="FILE", help=OUTPUT_HELP),
    ):
        with_where = option(with_where)
    return with_where
