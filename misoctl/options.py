"""Options that verbs share, and what they are called; at --help nothing else of them is loaded."""

import math
from collections.abc import Callable
from functools import wraps
from typing import ClassVar

import click

FORMATS = ("wav", "flac", "ogg", "opus", "mp3", "raw")
OUTPUT_HELP = "Write a file, its format by its name: .wav, .flac, .ogg, .opus, .mp3; - is standard output."
ATEMPO = "`misoctl say -o - TEXT | ffplay -nodisp -autoexit -af atempo=1.25 -i -`"
MAX_NAME_BYTES = 64  # of an app's or a voice's on the wire
KEEP_HELP = "Seconds without a request after which the model is freed, from now on."

json_option = click.option("--json", "as_json", is_flag=True, help="As JSON, on standard output.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")


def finite(_ctx, param: click.Parameter, value: float | None) -> float | None:
    """NaN is neither below nor above a range, so click lets it through."""
    if value is not None and math.isnan(value):
        raise click.BadParameter(f"nan is not in the range {param.type.min:g}<=x<={param.type.max:g}.")
    return value


def short_name(_ctx, _param, name: str | None) -> str | None:
    if name is not None and not 0 < len(name.encode(errors="replace")) <= MAX_NAME_BYTES:
        raise click.BadParameter(f"a name is 1 to {MAX_NAME_BYTES} bytes.")
    return name


def number(flag: str, name: str, low: float, high: float, text: str, metavar: str = "X", **more):
    """An option that takes a float from `low` to `high`."""
    kind = click.FloatRange(low, high)
    return click.option(flag, name, type=kind, callback=finite, metavar=metavar, help=text, **more)


def whole(flag: str, name: str, low: int, high: int, text: str, **more):
    """An option that takes an integer from `low` to `high`."""
    return click.option(flag, name, type=click.IntRange(low, high), metavar="N", help=text, **more)


keep_alive_option = number("--keep-alive", "keep_alive_s", 0.1, 1e8, KEEP_HELP, "SECONDS")


class Sectioned(click.Command):
    """Its options are in sections of --help: `sections` has the title and the names of each, and what is in none of
    them comes under Options.
    """

    sections: ClassVar[dict[str, tuple[str, ...]]] = {}

    def in_sections(self, ctx: click.Context) -> dict[str, list[tuple[str, str]]]:
        """Title to what each option is called and what it is for; hidden ones are left out."""
        title_of = {name: title for title, names in self.sections.items() for name in names}
        found = {title: [] for title in (*self.sections, "Options")}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                found[title_of.get(param.name, "Options")].append(record)
        return {title: records for title, records in found.items() if records}

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, records in self.in_sections(ctx).items():
            with formatter.section(title):
                formatter.write_dl(records)


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
