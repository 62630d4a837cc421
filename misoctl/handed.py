"""Verbs that misod has too: misoctl reads the command line and becomes misod, which has what the work needs."""

import os
import sys
from typing import NoReturn

import click

from misoctl.options import json_option, quiet_option
from protocol.errors import near
from protocol.exits import Verbs
from protocol.words import PULLABLE


def hand_over(*arguments: str) -> NoReturn:
    """-P: not a misod that lies in the caller's directory."""
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None: closed
        stream.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "misod.handed", *arguments])


class Handed(click.Command):
    """Once its arguments are found good, they go there as they are."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        ctx.meta["arguments"] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> NoReturn:
        hand_over(*ctx.command_path.split()[1:], *ctx.meta["arguments"])


SETTINGS = (
    "model",
    "keep_alive_s",
    "max_rows",
    "max_requests",
    "step_timeout_s",
    "drain_s",
    "memory_gb",
    "prefix_gb",
    "prefix_disk_gb",
    "same_s",
    "log_level",
    "player",
    "device",
    "volume",
    "lead_in_ms",
)


def _known(_ctx, _param, model: str) -> str:
    """A misspelt name is no download: refused here, before anything is started."""
    if model in PULLABLE:
        return model
    raise click.BadParameter(f"there is no model {model!r} to pull: {near(model, PULLABLE)}")


@click.command(cls=Handed)
@click.argument("model", default="miso", callback=_known)
@click.option(
    "--precision",
    type=click.Choice(("q4-d3", "q4", "mixed", "q8", "bf16")),
    help="Bits of the weights; by default the best that this machine's memory allows.",
)
@click.option(
    "--embeddings", type=click.Choice(("q8", "bf16")), help="Of the embeddings; by default bf16 with bf16, else q8."
)
@click.option(
    "--from",
    "origin",
    metavar="DIR|REPO",
    help="A directory that has the files, for which no network is used; or another repository that miso knows.",
)
@click.option("--keep", is_flag=True, help="Keep what was downloaded once the model is made.")
@quiet_option
@json_option
def pull(**_) -> None:
    """Download MODEL (miso or kitten), convert it for this machine, check it.

    \b
      misoctl pull
      misoctl pull miso --precision q4
      misoctl pull kitten
      misoctl pull --from mlx-community/MisoLabs-MisoTTS-bf16   # half as much
      misoctl pull --from ~/Downloads/MisoTTS                   # no network

    Says first how much that is and what room it takes. Stopped at any point, the same command goes on from there.
    """


@click.command("list", cls=Handed)
@json_option
def list_(**_) -> None:
    """The models that are here; * is the one that speaks.

    \b
      misoctl list
      misoctl list --json
    """


@click.command(cls=Handed)
@click.argument("model")
@json_option
def show(**_) -> None:
    """What MODEL is made of: precision, sizes, digest, source, licence.

    \b
      misoctl show nano
      misoctl show miso --json
    """


@click.command(cls=Handed)
@click.argument("model")
@quiet_option
def rm(**_) -> None:
    """Remove MODEL from this machine. nano comes with miso and stays.

    \b
      misoctl rm miso
    """


@click.command(cls=Handed)
@click.argument("model")
@quiet_option
def verify(**_) -> None:
    """Read all of MODEL and compare it with what was written; exit 65 where a file differs.

    \b
      misoctl verify miso
    """


MODEL_VERBS = (pull, list_, show, rm, verify)


@click.command(cls=Handed)
@click.option("--json", "as_json", is_flag=True, help="As a JSON list of {name, state, detail, cure}.")
def doctor(**_) -> None:
    """Check this machine, the models and the daemon.

    \b
      misoctl doctor
      misoctl doctor --json | jq '.[] | select(.state != "ok")'

    Each line is ok, warn or fail, with the cure below it; exit 1 if one is fail. Nothing is changed or started.
    """


@click.command()
@click.argument("text", nargs=-1)
@click.option("-f", "--file", "source", metavar="FILE", help="Read the text from FILE; - is standard input.")
@click.option("--json", "as_json", is_flag=True, help="As a JSON list of {text, spans, pause_s, unread, sentence}.")
@click.option(
    "--emoji", type=click.Choice(["drop", "name"]), default="drop", show_default=True, help="Say their names?"
)
@click.option("--letters", is_flag=True, help="As the bundled voice reads it: letters and plain marks only.")
def normalize(text, source, as_json: bool, emoji: str, letters: bool) -> None:
    """Show what would be spoken of TEXT, or of what is piped in, one sentence a line. Nothing is spoken.

    \b
      misoctl normalize 'It cost $5.3 billion.'
      misoctl normalize -f letter.md --json | jq '.[].text'

    A span is [start, end, source_start, source_end], in characters: of the line, and of the text it stands for.
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


@click.group(cls=Verbs, invoke_without_command=True)
@json_option
@click.pass_context
def config(ctx, as_json) -> None:
    """The settings: each with its value and where that is from.

    \b
      misoctl config
      misoctl config set keep_alive_s 3600
      misoctl config edit

    A flag of `misod serve` goes before a MISO_* variable, that before config.toml, that before the default.
    """
    if ctx.invoked_subcommand is None:
        hand_over("config", *["--json"] * as_json)


@config.command("set", cls=Handed)
@click.argument("key")
@click.argument("value")
@quiet_option
def set_(**_) -> None:
    """Write one setting into config.toml; the rest of the file stays as it is.

    \b
      misoctl config set max_rows 4
      misoctl config set model nano
    """


@config.command(cls=Handed)
def path(**_) -> None:
    """Where config.toml is, or would be.

    \b
      cat "$(misoctl config path)"
    """


@config.command(cls=Handed)
def edit(**_) -> None:
    """Open config.toml in $VISUAL or $EDITOR, and check what was written.

    \b
      misoctl config edit
      EDITOR="code --wait" misoctl config edit
    """
