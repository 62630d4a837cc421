"""Verbs that misod has too: misoctl reads the command line and becomes misod, which does the work."""

import os
import sys
from typing import NoReturn

import click


def hand_over(verb: str, *arguments: str) -> NoReturn:
    """-P: not a misod that lies in the caller's directory."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed
        stream.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "misod", verb, *arguments])


class Handed(click.Command):
    """Once its arguments are found good, they go there as they are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["arguments"] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> NoReturn:
        hand_over(self.name, *ctx.meta["arguments"])
