"""misoctl normalize: becomes `misod normalize`, for the grammars are misod's."""

import os

import click

from misoctl.handed import hand_over


@click.command()
@click.argument("text", nargs=-1)
@click.option("-f", "--file", "source", metavar="FILE", help="Read the text from FILE; - is standard input.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON list of {text, spans, pause_s, unread}.")
@click.option(
    "--emoji", type=click.Choice(["drop", "name"]), default="drop", show_default=True, help="Say their names?"
)
@click.option("--letters", is_flag=True, help="As the bundled voice reads it: letters and plain marks only.")
def normalize(text, source, as_json: bool, emoji: str, letters: bool) -> None:
    """Show what would be spoken of TEXT, or of what is piped in, one sentence a line. Nothing is spoken.

    A span is [start, end, source_start, source_end], in characters: of the line, and of the text it stands for.

    \b
      misoctl normalize "It cost $5.3 billion."
      misoctl normalize -f letter.md --json | jq '.[].text'
    """
    import tempfile

    from misoctl.speech import read_text

    words = read_text(text, source) or ""
    with tempfile.TemporaryFile() as file:  # no pipe: nobody would be left to write into it
        file.write(words.encode())
        file.seek(0)
        descriptor = os.dup(file.fileno())  # the file's own may be 0, where standard input was closed
    os.dup2(descriptor, 0)
    hand_over("normalize", "--emoji", emoji, *["--json"] * as_json, *["--letters"] * letters)
