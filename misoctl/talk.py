"""What a person is told while a verb works: lines on stderr."""

import click


def tell(line: str) -> None:
    click.echo(f"misoctl: {line}", err=True)


def hush(line: str) -> None:
    """tell, under -q."""
