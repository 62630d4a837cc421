"""misoctl doctor: becomes `misod doctor`, for the answers need MLX."""

import click

from misoctl.handed import Handed


@click.command(cls=Handed)
@click.option("--json", "as_json", is_flag=True, help="As a JSON list of {name, state, detail, cure}.")
def doctor(**_) -> None:
    """Check this machine, the models and the daemon.

    Each line is ok, warn or fail, with the cure below it; exit 1 if one is fail. Nothing is changed or started.

    \b
      misoctl doctor
      misoctl doctor --json | jq '.[] | select(.state != "ok")'
    """
