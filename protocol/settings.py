"""Settings, for both sides: how one is read, and those of the client. misod's own are in misod/config.py.

Flag > MISO_* variable > config.toml > default. The environment and the file are read here and there, and nowhere else.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path

from protocol.errors import BAD_CONFIG, Failure, did_you_mean

PLAYERS = ("sounddevice", "ffplay", "sox", "pw-play", "paplay", "aplay", "afplay")  # the first one here plays


class ConfigError(Failure):
    """A setting is wrong: the message says which, where it came from and what it may be."""

    def __init__(self, message: str):
        super().__init__(BAD_CONFIG, message)


def setting(
    default, help_text: str, low: float | None = None, high: float | None = None, choices: tuple[str, ...] = ()
):
    """A field of a dataclass of settings."""
    return field(default=default, metadata={"help": help_text, "low": low, "high": high, "choices": choices})


@dataclass(frozen=True)
class Playing:
    """How misoctl plays. Files and pipes know nothing of it."""

    player: str = setting(
        "auto", "What `say` plays through; auto takes the first one here.", choices=("auto", *PLAYERS)
    )
    device: str = setting("", "Where that plays to: a device's name or number; `misoctl devices` lists them.")
    volume: float = setting(1.0, "How loud `say` plays, from 0 to 1, which is as it was made.", 0, 1)
    lead_in_ms: float = setting(50.0, "Silence before the first word, while an output wakes up.", 0, 5000)


def load_playing(config: Path, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Playing:
    """`flags` holds None for what was not given. Of the file's other keys misod speaks. Raises ConfigError."""
    return Playing(**{name: value for name, value, _ in origins(fields(Playing), config, flags, environ)})


def variable(name: str) -> str:
    """The environment name of a setting."""
    return f"MISO_{name.upper()}"


def origins(
    table: Iterable[Field],
    config: Path,
    flags: Mapping[str, object],
    environ: Mapping[str, str],
    toml: dict | None = None,
) -> Iterator[tuple[str, object, str]]:
    """(name, value, where from) of each setting in `table`; `toml` is read_toml of `config`. Raises ConfigError."""
    toml = read_toml(config) if toml is None else toml
    for f in table:
        if flags.get(f.name) is not None:
            origin = f"--{f.name.replace('_', '-')}"
            yield f.name, parsed(f, flags[f.name], origin), origin
        elif environ.get(variable(f.name)):  # set to nothing is not set
            yield f.name, parsed(f, environ[variable(f.name)], variable(f.name)), variable(f.name)
        elif f.name in toml:
            yield f.name, parsed(f, toml[f.name], f"{f.name} in {config}"), f"{config}"
        else:
            yield f.name, f.default, "default"


def read_toml(path: Path) -> dict:
    """What the file says; nothing where it is not there. Raises ConfigError."""
    import tomllib  # 6 ms, not needed for --help

    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are
        raise ConfigError(f"{path}: {error}") from None


def parsed(f: Field, value: object, origin: str):
    """`value` as the setting's type, within its range, one of its choices. Raises ConfigError."""
    kind, low, high, choices = type(f.default), f.metadata["low"], f.metadata["high"], f.metadata["choices"]
    made = _converted(kind, value)
    if made is None:
        wanted = {int: "a whole number", float: "a number", str: "text"}[kind]
        raise ConfigError(f"{origin}: {value!r} is not {wanted}")
    if choices and made not in choices:
        near = did_you_mean(made, choices)
        line = f"{origin}: {value!r} is not {', '.join(choices[:-1])} or {choices[-1]}"
        raise ConfigError(f"{line}; {near}" if near else line)
    if low is not None and not low <= made <= high:
        raise ConfigError(f"{origin}: {value!r} is not within {low:.9g}..{high:.9g}")
    return made


def _converted(kind: type, value: object):
    """None where it cannot be. A flag or a variable is text; TOML has types, and 8.5 rows or a model 5 are mistakes."""
    if isinstance(value, str):
        try:
            return kind(value)
        except ValueError:
            return None
    if isinstance(value, bool) or not isinstance(value, (int, float) if kind is float else kind):
        return None
    try:
        return kind(value)
    except OverflowError:  # an integer beyond every float
        return None
