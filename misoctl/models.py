"""The verbs for models."""

import click

from misoctl.handed import Handed

PULLABLE = ("miso", "kitten")


def _known(_ctx, _param, model: str) -> str:
    """A misspelt name is no download: refused here, before anything is started."""
    if model in PULLABLE:
        return model
    import difflib  # 5 ms

    close = difflib.get_close_matches(model, PULLABLE, n=1, cutoff=0.5)
    cure = f"did you mean {close[0]}?" if close else f"there is {', '.join(PULLABLE)}"
    raise click.BadParameter(f"there is no model {model!r} to pull: {cure}")


json_option = click.option("--json", "as_json", is_flag=True, help="As JSON, on standard output.")
quiet_option = click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")


@click.command(cls=Handed)
@click.argument("model", default="miso", callback=_known)
@click.option(
    "--precision",
    type=click.Choice(("q4", "mixed", "q8", "bf16")),
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
    """Download MODEL (miso), convert it for this machine, check it.

    Says first how much that is and what room it takes. Stopped at any point, the same command goes on from there.

    \b
      misoctl pull
      misoctl pull miso --precision q4
      misoctl pull --from mlx-community/MisoLabs-MisoTTS-bf16   # half as much
      misoctl pull --from ~/Downloads/MisoTTS                   # no network
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


VERBS = (pull, list_, show, rm, verify)
