"""What Tab offers: click's own, and names of voices, models, settings and files.

Names are read from the folders that misod keeps them in, the one list that is never out of date: no daemon is asked.
"""

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from misoctl.handed import SETTINGS
from protocol.exits import Elsewhere
from protocol.words import PULLABLE

Names = Callable[[], Iterator[str]]
VARIABLE = "_MISOCTL_COMPLETE"  # the shell's question
BUNDLED, SUFFIX = "nano", ".safetensors"


def voices() -> Iterator[str]:
    from protocol.paths import find_paths

    kept = _within(find_paths().voices)
    yield from (name.removesuffix(SUFFIX) for name in kept if name.endswith(SUFFIX))


def models() -> Iterator[str]:
    from protocol.paths import find_paths

    yield BUNDLED
    yield from _within(find_paths().models)


def _within(directory: Path) -> list[str]:
    try:
        return [name for name in os.listdir(directory) if not name.startswith(".")]
    except OSError:  # none yet
        return []


FILES = ("clip", "file", "like", "output", "receipt", "script", "source", "text_file", "token_file")
FOLDERS = ("origin", "sentences", "stems")
NAMES: dict[str, Names] = {"voice": voices, "model": models, "key": lambda: iter(SETTINGS)}  # by what a verb calls it
PLACES: dict[str, Names] = {  # where that says too little
    "misoctl pull model": lambda: iter(PULLABLE),
    "misoctl forget name": voices,
    "misoctl voices show name": voices,
    "misoctl voices export name": voices,
}


def attach(command: click.Command, path: str = "misoctl") -> None:
    """Teach the tree its names; in a process that only answers Tab: no value is looked at, so no daemon is asked."""
    for param in command.params:
        param.callback = None
        if param.name in FILES or param.name in FOLDERS:
            kind = "file" if param.name in FILES else "dir"
            param.shell_complete = lambda _ctx, typed, kind=kind: [CompletionItem(typed, type=kind)]
        elif names := PLACES.get(f"{path} {param.name}", NAMES.get(param.name)):
            param.shell_complete = lambda _ctx, typed, names=names: _matching(names, typed)
    below = getattr(command, "commands", {})
    if isinstance(below, Elsewhere):  # the one verb that is asked about is soon there, all are not
        below.loaded = lambda name, verb: attach(verb, f"{path} {name}")
        return
    for name, verb in below.items():
        attach(verb, f"{path} {name}")


def _matching(names: Names, typed: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in sorted(set(names())) if name.startswith(typed)]


def script(shell: str, program: click.Command) -> str:
    """What `shell` is to read to complete `misoctl`."""
    from click.shell_completion import get_completion_class

    return get_completion_class(shell)(program, {}, "misoctl", VARIABLE).source()


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "fish", "zsh"]))
def completion_verb(shell) -> None:
    """Print what SHELL must read to complete verbs, options, voices, models and files.

    \b
      eval "$(misoctl completion bash)"       # in ~/.bashrc; bash 4.4 or newer
      eval "$(misoctl completion zsh)"        # in ~/.zshrc, after compinit
      misoctl completion fish | source        # in ~/.config/fish/config.fish
    """
    click.echo(script(shell, click.get_current_context().find_root().command))
