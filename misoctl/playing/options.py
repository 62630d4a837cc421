"""What may be asked of playing on the command line, and of what is asked the player."""

import functools
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

import click

from misoctl.options import number
from misoctl.talk import hush
from protocol.errors import near
from protocol.settings import PLAYERS, Playing, load_playing

if TYPE_CHECKING:
    from misoctl.player import Player

FLAGS = tuple(f.name for f in fields(Playing))


class _Players(click.Choice):
    def convert(self, value: str, param, ctx) -> str:
        if value not in self.choices:
            self.fail(f"there is no player {value!r}: {near(value, self.choices)}", param, ctx)
        return value


OPTIONS = (
    click.option("--player", type=_Players(("auto", *PLAYERS)), help="The player; by default the first one here."),
    click.option("--device", metavar="NAME", help="Where to play: a name or number that `misoctl devices` lists."),
    number("--volume", "volume", 0, 1, "How loud; 1 is as it was made."),
    number(
        "--lead-in", "lead_in_ms", 0, 5000, "Silence before the first word, for an output that wakes up slowly.", "MS"
    ),
    number(
        "--prebuffer", "prebuffer_s", 0, 1200,
        "Hold this much speech before it starts; by default as much as there must be to play without a gap.", "SECONDS",
    ),
    click.option("--no-prebuffer", "prebuffer_s", flag_value=0.0, type=float, help="Start with the first sound."),
)  # fmt: skip


@dataclass(frozen=True)
class Play:
    """What was asked for; None where nothing was."""

    flags: dict[str, object]
    prebuffer_s: float | None = None
    tell: Callable[[str], None] = hush

    def telling(self, tell: Callable[[str], None]) -> "Play":
        return replace(self, tell=tell)

    def open(self, output: str | None) -> "Player | None":
        """None where the speech goes to `output`. Raises Failure, UsageError."""
        if output is None:
            from misoctl.player import open_player
            from protocol.paths import find_paths

            return open_player(load_playing(find_paths().config, self.flags), self.prebuffer_s, self.tell)
        given = [name for name, value in (self.flags | {"prebuffer_s": self.prebuffer_s}).items() if value is not None]
        if given:
            flag = given[0].removesuffix("_ms").removesuffix("_s").replace("_", "-")
            raise click.UsageError(f"--{flag} is for playing: a file or a pipe holds the speech as it was made")
        return None


def play_options(verb: Callable) -> Callable:
    """Gives `verb` these options, all in one argument: `play`."""

    @functools.wraps(verb)
    def with_play(*args, prebuffer_s, **given) -> None:
        flags = {name: given.pop(name) for name in FLAGS}
        return verb(*args, play=Play(flags, prebuffer_s), **given)

    for option in reversed(OPTIONS):
        with_play = option(with_play)
    return with_play
