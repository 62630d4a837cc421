"""The options of `say` that KittenTTS 2 alone takes, in a section of their own in --help. misod refuses the rest."""

import click

from misoctl.handed import finite

TITLE = "KittenTTS 2 only"


class Option(click.Option):
    """One of that section."""


class Say(click.Command):
    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, in two sections."""
        sections: dict[str, list] = {"Options": [], TITLE: []}
        for param in self.get_params(ctx):
            if isinstance(param, click.Option) and (record := param.get_help_record(ctx)):
                sections[TITLE if isinstance(param, Option) else "Options"].append(record)
        for title, records in sections.items():
            with formatter.section(title):
                formatter.write_dl(records)


def _float(flag: str, name: str, low: float, high: float, text: str):
    return click.option(flag, name, cls=Option, type=click.FloatRange(low, high), callback=finite, help=text)


def _int(flag: str, name: str, low: int, high: int, text: str):
    return click.option(flag, name, cls=Option, type=click.IntRange(low, high), help=text)


def _switch(flags: str, name: str, text: str):
    return click.option(flags, name, cls=Option, default=None, help=text)


OPTIONS = (
    _float("--repetition-penalty", "repetition_penalty", 1, 5, "So much less likely is what was drawn before; 1: no."),
    _int("--repetition-window", "repetition_window", 0, 4096, "Of the last N tokens, 25 a second; 0: of all."),
    _float("--run-penalty", "run_penalty", 0, 10, "The same for each time that one token came again."),
    _int("--run-grace", "run_grace", 1, 1000, "Times in a row before --run-penalty."),
    _switch("--use-emotion/--no-emotion", "use_emotion", "By default where TEXT has expression tags."),
    _switch(
        "--use-reference-prompt/--no-reference-prompt",
        "use_reference",
        "Whether it is given the voice's recording to go on from, or the voice's traits alone.",
    ),
    _int(
        "--chunk-chars", "chunk_chars", 150, 2000, "Read at most so many characters at once; the first piece is short."
    ),
    _int("--chunk-min-chars", "chunk_min_chars", 0, 150, "And at least so many."),
    _float("--chunk-gap", "gap_s", 0, 5, "Seconds of silence between two such pieces."),
    click.option("--decoder", cls=Option, metavar="NAME", help="default, or student_w4: smaller, and a little worse."),
)


def options(command):
    for option in reversed(OPTIONS):
        command = option(command)
    return command
