"""misod normalize: what would be spoken of a text, and where each word of it comes from."""

import json
import sys
from dataclasses import asdict

import click

from misod.commands import print_data
from protocol import errors
from protocol.errors import Failure


@click.command()
@click.option("--json", "as_json", is_flag=True, help="As a JSON list of {text, spans, pause_s, unread}.")
@click.option("--emoji", type=click.Choice(["drop", "name"]), default="drop", show_default=True)
@click.option("--letters", is_flag=True, help="As the bundled voice reads it: letters and plain marks only.")
def normalize(as_json: bool, emoji: str, letters: bool) -> None:
    """Print what would be spoken of standard input, one sentence a line."""
    from misod.text import WHOLE, Limits, Manner, pieces

    print_data()
    data = sys.stdin.buffer.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"standard input is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}"
        raise Failure(errors.BAD_DATA, f"{message}; convert it with `iconv -t utf-8`") from None
    limits = Limits(WHOLE.max_words, WHOLE.max_characters, letters=letters)
    told = pieces(text, limits, Manner(emoji=emoji, at_once=False))
    if as_json:
        click.echo(json.dumps([asdict(piece) for piece in told], ensure_ascii=False))
        return
    for piece in told:
        click.echo(piece.text)
