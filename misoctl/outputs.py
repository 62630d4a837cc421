"""Where the speech goes, as it was asked for: a player, a file, standard output, and a file of each part."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import click

from misoctl.formats import format_of, open_output
from misoctl.playing.options import Play
from misoctl.receipt import Hashed

if TYPE_CHECKING:
    from misoctl.parts import Parts


@dataclass(frozen=True)
class Outputs:
    """`data`: the option that has standard output for its own; "": none. Raises UsageError or, of a format, Failure."""

    output: str | None = None
    kind: str | None = None
    raw: bool = False
    data: str = ""
    stems: str | None = None
    sentences: str | None = None

    def __post_init__(self):
        if self.raw and self.kind not in (None, "raw"):
            raise click.UsageError("--raw is --format raw: give one of them")
        if self.kind and not (self.target or self.stems or self.sentences):
            raise click.UsageError("--format is for -o FILE, -o - and --split-sentences")
        if self.target == "-" and self.data:
            raise click.UsageError(
                f"{self.data} and the speech cannot both have standard output: give -o a file, or leave it out"
            )
        _ = self.format

    @property
    def target(self) -> str | None:
        """As -o; None: a player."""
        return "-" if self.raw and self.output is None else self.output

    @property
    def format(self) -> str:
        if self.kind or self.raw:
            return self.kind or "raw"
        return format_of(self.target) if self.target else "wav"

    @contextmanager
    def open(self, play: Play, names: list[str] | None = None) -> Iterator[Hashed]:
        """Opened before anything is spoken; closed on every way out, on all but one with whole=False.

        `names`: who speaks each turn.
        """
        parts = self._parts(names)
        player = play.open(self.target)
        sink = Hashed(player or open_output(self.target, self.format), parts, player)
        try:
            yield sink
            sink.close(whole=True)
        except BaseException:  # also Ctrl-C while the player plays what it still has
            sink.close(whole=False)
            raise

    def _parts(self, names: list[str] | None) -> "list[Parts]":
        if not (self.stems or self.sentences):
            return []
        from misoctl.parts import Sentences, Stems

        parts: list[Parts] = [Stems(self.stems, names, self.format)] if self.stems else []
        return [*parts, Sentences(self.sentences, self.format)] if self.sentences else parts
