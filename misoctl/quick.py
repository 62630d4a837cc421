"""The options of a quick start: the first sentence by KittenTTS 2, while the model makes the rest."""

from collections.abc import Callable
from functools import wraps

import click

from misoctl.options import short_name

beside_option = click.option(
    "--quick-start", "quick", is_flag=True, help="Have kitten ready beside it, for `say --quick-start`."
)


def _lower(ctx, param, name: str | None) -> str | None:
    name = short_name(ctx, param, name)
    return name and name.lower()


def quick_options(verb: Callable) -> Callable:
    """--quick-start and --quick-voice; the verb is given them as `quick_start`, as the wire has it."""

    @wraps(verb)
    def with_quick(*arguments, quick, quick_voice, **given):
        if quick_voice and not quick:
            raise click.UsageError("--quick-voice is for --quick-start")
        for other in ("script", "session", "follow"):
            if quick and given[other] not in (None, False):
                raise click.UsageError(f"--quick-start goes with no --{other}")
        return verb(*arguments, quick_start=(quick_voice or "") if quick else None, **given)

    for option in (
        click.option("--quick-voice", metavar="NAME", callback=_lower, help="Which of kitten's voices says it."),
        click.option("--quick-start", "quick", is_flag=True, help="Kitten says the first sentence, the model goes on."),
    ):
        with_quick = option(with_quick)
    return with_quick
