"""misod: `misod serve` runs the daemon in the foreground, for launchd and for a look at what it does."""

import faulthandler
import logging
import os
import sys
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

import misod
from misod import commands
from misod.config import ConfigError, Settings, load_settings, variable
from misod.doctor import doctor
from misod.log import start_log
from misod.normalize import normalize
from misod.runtime import AlreadyRunning, TooFewFiles, secure
from protocol import errors
from protocol.paths import find_paths

if TYPE_CHECKING:  # numpy's 40 ms: `list` and its like go without
    from misod.engine import Engine, PrefixRoom


def _settings_help() -> str:
    """One line a setting: name, environment name, default, meaning."""
    lines = ["\b", "Settings, each by flag, else environment, else config.toml, else default:"]
    for f in fields(Settings):
        lines.append(f"  --{f.name.replace('_', '-'):<16} {variable(f.name):<20} {f.default}")
        lines.append(f"      {f.metadata['help']}")
    lines.append("  MISO_HOME moves everything: config.toml, models, logs, the socket.")
    return "\n".join(lines)


@click.group(cls=commands.Verbs, epilog=_settings_help(), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(misod.__version__, prog_name="misod")
def main() -> None:
    """The miso daemon: keeps a speech model warm and speaks for misoctl."""


for verb in (doctor, normalize, *commands.VERBS):
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
@_with_settings
def serve(**flags) -> None:
    """Run in the foreground until SIGTERM or `misoctl stop`."""
    from misod.engine import open_engine

    leave(run(flags, open_engine))


def run(flags: dict, opener: Callable[[Path, int, "PrefixRoom"], "Engine"]) -> int:
    """The daemon, start to end; the exit code. `opener` makes the engine of a model's directory."""
    faulthandler.enable()
    home = None
    try:
        paths = find_paths()
        home = paths.home
        settings = load_settings(paths.config, flags)
        lock = secure(paths)  # held until the process ends
        start_log(paths.log, settings.log_level)
    except AlreadyRunning as error:
        return _refuse(errors.TRY_AGAIN, f"{error}; `misoctl stop` ends it")
    except ConfigError as error:
        return _refuse(errors.BAD_CONFIG, str(error))
    except TooFewFiles as error:
        return _refuse(errors.OS_LIMIT, str(error))
    except errors.UnsafePath as error:
        return _refuse(errors.NO_PERMISSION, str(error))
    except OSError as error:
        return _refuse(*errors.of_file(error, home))
    from misod.engine import Models, PrefixRoom, model_directory
    from misod.server import Server  # zmq after the file limit is raised
    from misod.weights.models import mend

    def find(name: str) -> Path:
        mend(paths.models)
        return model_directory(name or settings.model, paths.models)

    prefixes = PrefixRoom(int(settings.prefix_gb * 1e9), paths.prefixes, int(settings.prefix_disk_gb * 1e9))
    models = Models(find, lambda directory: opener(directory, settings.max_rows, prefixes))
    return Server(settings, paths, lock, models).run()


def leave(code: int) -> NoReturn:
    """End without C++ destructors: MLX's abort the process, for its streams belong to the worker's thread."""
    logging.shutdown()
    os._exit(code)


def _refuse(code: int, why: str) -> int:
    print(f"misod: {why}", file=sys.stderr)
    return code
