"""The ways out of both programs: one line on stderr where something is wrong, and the documented exit code.

No part of the wire, and the one module here that needs click.
"""

import os
import sys
from collections import UserDict
from collections.abc import Callable
from importlib import import_module
from typing import BinaryIO, ClassVar, NoReturn, TextIO

import click

from protocol import errors


class Elsewhere(UserDict):
    """Verbs by name, each as "module:attribute" until it is asked for: `say` waits not for what others load.

    `loaded`: called with each verb's name and itself, when it is.
    """

    loaded: Callable[[str, click.Command], None] | None = None

    def __getitem__(self, name: str) -> click.Command:
        verb = self.data[name]
        if isinstance(verb, str):
            module, _, attribute = verb.partition(":")
            verb = self.data[name] = getattr(import_module(module), attribute)
            if self.loaded:
                self.loaded(name, verb)
        return verb


class Verbs(click.Group):
    """Of a verb that it has not, says which it has."""

    sections: ClassVar[dict[str, tuple[str, ...]]] = {}  # of --help: title to names; the rest are Commands

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple:
        if args[0] not in self.commands and not args[0].startswith("-") and not ctx.resilient_parsing:
            raise click.UsageError(f"No such command {args[0]!r}: {errors.near(args[0], self.commands)}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click does, but in sections, and no summary is cut off."""
        titled = {name for names in self.sections.values() for name in names}
        rest = [name for name in self.list_commands(ctx) if name not in titled]
        for title, names in {**self.sections, "Commands": rest}.items():
            if names:
                with formatter.section(title):
                    formatter.write_dl([(name, self.commands[name].get_short_help_str(200)) for name in names])

    def invoke(self, ctx: click.Context):
        """Of an option that lacks its value, click does not say whose it is."""
        try:
            return super().invoke(ctx)
        except click.UsageError as error:
            name = ctx.invoked_subcommand
            if error.ctx is None and name in self.commands:
                error.ctx = click.Context(self.commands[name], parent=ctx, info_name=name)
            raise


class Program(Verbs):
    """Its verbs raise, this tells: UsageError, Failure, and the OSError of a standard output that takes no more."""

    def main(self, *args, **extra) -> NoReturn:
        line = ""
        try:
            super().main(*args, **extra | {"prog_name": self.name, "standalone_mode": False})
            code = errors.OK
        except click.exceptions.Exit as done:
            code = done.exit_code
        except click.exceptions.NoArgsIsHelpError as error:
            error.ctx.meta["unasked"] = True
            click.echo(error.ctx.get_help(), err=True)
            code = errors.USAGE
        except click.UsageError as error:
            command = error.ctx.command_path if error.ctx else self.name
            code, line = error.exit_code, f"{_told(error)}; see `{command} --help`"
        except errors.Failure as failure:
            code, line = failure.exit_code, str(failure)
        except BrokenPipeError:
            forget(sys.stdout)
            code = errors.BROKEN_PIPE
        except OSError as error:
            forget(sys.stdout)
            code, line = errors.IO_ERROR, f"{error.filename or 'standard output'}: {error.strerror}"
        if line:
            click.echo(f"{self.name}: {line}", err=True)
        sys.exit(code)


def _told(error: click.UsageError) -> str:
    """Of an option that is not there, the nearest, as of a verb."""
    if not isinstance(error, click.NoSuchOption) or error.ctx is None:
        return error.format_message().rstrip(".")
    names = [name for param in error.ctx.command.get_params(error.ctx) for name in (*param.opts, *param.secondary_opts)]
    nearest = errors.did_you_mean(error.option_name, [name for name in names if name.startswith("--")])
    return f"No such option {error.option_name!r}" + (f": {nearest}" if nearest else "")


def forget(out: BinaryIO | TextIO | None) -> None:
    """Point the descriptor at /dev/null: Python's own flush at exit would fail a second time."""
    if out is None:  # closed by the caller
        return
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, out.fileno())
    os.close(null)
