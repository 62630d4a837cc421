"""Which engine takes which field of `say`. One that is another engine's is refused by name, here and nowhere else."""

from collections.abc import Iterable

from misod.engine import RowFault, Say
from protocol.words import KITTENS

NAMES = {"miso": "MisoTTS", "kitten": "KittenTTS 2"}
ONLY = {  # a field that is not here is taken by both
    "min_temperature": "miso",
    "decay_frames": "miso",
    "depth": "miso",
    "guidance": "miso",
    "emoji": "miso",
    "script": "miso",
    "session": "miso",
} | dict.fromkeys(KITTENS, "kitten")


def check(say: Say, engine: str, model: str) -> None:
    """Raises RowFault where the request has what another engine than the model's takes."""
    if say.quick is not None and (say.script or say.dialogue):
        raise RowFault(f"quick_start goes with no {'script' if say.script else 'session'}", "bad_value")
    given = {*say.sampling, *say.options}
    given |= {name for name, has in (("script", say.script), ("session", say.dialogue), ("emoji", say.emoji)) if has}
    if others := sorted(given - own(given, engine)):
        raise RowFault(f"{model} takes no {', '.join(others)}: that is for {NAMES[ONLY[others[0]]]}", "bad_value")


def own(names: Iterable[str], engine: str) -> set[str]:
    """Those of the names that are no other engine's."""
    return {name for name in names if engine not in NAMES or ONLY.get(name, engine) == engine}
