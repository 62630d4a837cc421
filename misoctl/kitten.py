"""The options of `say` that KittenTTS 2 alone takes. Of them, misod refuses what its engine does not have."""

import click

from misoctl.options import number, whole

TITLE = "KittenTTS 2 only"


def _switch(flags: str, name: str, text: str):
    return click.option(flags, name, default=None, help=text)


OPTIONS = (
    number("--repetition-penalty", "repetition_penalty", 1, 5, "So much less likely is what was drawn before; 1: no."),
    whole("--repetition-window", "repetition_window", 0, 4096, "Of the last N tokens, 25 a second; 0: of all."),
    number("--run-penalty", "run_penalty", 0, 10, "The same for each time that one token came again."),
    whole("--run-grace", "run_grace", 1, 1000, "Times in a row before --run-penalty."),
    _switch("--use-emotion/--no-emotion", "use_emotion", "By default where TEXT has expression tags."),
    _switch(
        "--use-reference-prompt/--no-reference-prompt",
        "use_reference",
        "Whether it is given the voice's recording to go on from, or the voice's traits alone.",
    ),
    whole(
        "--chunk-chars", "chunk_chars", 150, 2000, "Read at most so many characters at once; the first piece is short."
    ),
    whole("--chunk-min-chars", "chunk_min_chars", 0, 150, "And at least so many."),
    number("--chunk-gap", "gap_s", 0, 5, "Silence between two such pieces.", "SECONDS"),
    click.option("--decoder", metavar="NAME", help="default, or student_w4: smaller, and a little worse."),
)


def options(command):
    for option in reversed(OPTIONS):
        command = option(command)
    return command
