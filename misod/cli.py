"""misod: `misod serve` runs the daemon in the foreground, for launchd and for a look at what it does."""

import faulthandler
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

import misod
from misod import commands
from misod.config import Settings, load_settings, meant, unknown_variables, variable
from protocol import errors
from protocol.exits import Program
from protocol.paths import find_paths

if TYPE_CHECKING:  # numpy's 40 ms: `list` and its like go without
    from misod.engine import Engine, PrefixRoom


@click.group("misod", cls=Program, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(misod.__version__, prog_name="misod")
def main() -> None:
    """The miso daemon: keeps a speech model warm and speaks for misoctl."""


for verb in commands.VERBS:
    main.add_command(verb)


def _with_settings(command):
    for f in reversed(fields(Settings)):
        option = f"--{f.name.replace('_', '-')}"
        text = f"{f.metadata['help']} [{variable(f.name)}; default {f.default}]"
        command = click.option(option, f.name, default=None, metavar=type(f.default).__name__.upper(), help=text)(
            command
        )
    return command


@main.command()
@click.option("--agent", is_flag=True, help="For launchd: exit 0 unless a restart may help.")
@_with_settings
def serve(agent: bool, **flags) -> None:
    """Run in the foreground until SIGTERM or `misoctl stop`.

    \b
      misod serve
      misod serve --model nano --log-level debug

    Each setting is a flag, else a variable of the environment, else a line of config.toml, else its default.
    MISO_HOME moves everything: config.toml, models, logs, the socket.
    """
    from misod.engine import open_engine

    code = run(flags, open_engine)
    leave(errors.OK if agent and code != errors.SOFTWARE else code)  # launchd would try a wrong setting for ever


def run(flags: dict, opener: Callable[[Path, int, "PrefixRoom"], "Engine"]) -> int:
    """The daemon, start to end; the exit code. `opener` makes the engine of a model's directory."""
    from misod.log import start_log
    from misod.runtime import room_bytes, secure

    faulthandler.enable()
    home = None
    try:
        paths = find_paths()
        home = paths.home
        settings = load_settings(paths.config, flags)
        for name in unknown_variables(os.environ):  # misoctl hands this on to whoever it started us for
            print(f"misod: {name} means nothing to miso; {meant(name)}", file=sys.stderr, flush=True)
        lock = secure(paths)  # held until the process ends
        start_log(paths.log, settings.log_level)
    except errors.Failure as failure:
        return _refuse(failure)
    except OSError as error:
        return _refuse(errors.of_file(error, home))
    from misod.engine import Models, PrefixRoom, find_model
    from misod.server import Server  # zmq after the file limit is raised

    prefixes = PrefixRoom(int(settings.prefix_gb * 1e9), paths.prefixes, int(settings.prefix_disk_gb * 1e9))
    models = Models(
        lambda name: find_model(name or settings.model, paths.models),
        lambda directory: opener(directory, settings.max_rows, prefixes),
        lambda: room_bytes(settings.memory_gb),
    )
    return Server(settings, paths, lock, models).run()


def leave(code: int) -> NoReturn:
    """End without C++ destructors: MLX's abort the process, for its streams belong to the worker's thread."""
    import logging

    logging.shutdown()
    os._exit(code)


def _refuse(why: errors.Failure) -> int:
    print(f"misod: {why}", file=sys.stderr)
    return why.exit_code
