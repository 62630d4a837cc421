"""Settings: flag > MISO_* variable > config.toml > default. Read here and nowhere else."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from protocol.errors import BAD_CONFIG, Failure


class ConfigError(Failure):
    """A setting is wrong: the message says which, where it came from and what it may be."""

    def __init__(self, message: str):
        super().__init__(BAD_CONFIG, message)


def _setting(default, help_text: str, low: float | None = None, high: float | None = None):
    return field(default=default, metadata={"help": help_text, "low": low, "high": high})


@dataclass(frozen=True)
class Settings:
    model: str = _setting("auto", "Model to speak with; auto takes the best one present (miso, else nano).")
    keep_alive_s: float = _setting(1800.0, "Seconds without a request after which the weights are freed.", 0.1, 1e8)
    max_rows: int = _setting(8, "Requests that speak at the same time.", 1, 64)
    max_requests: int = _setting(64, "Requests that may wait or speak; one more is told `busy`.", 1, 4096)
    step_timeout_s: float = _setting(10.0, "A step that takes longer is a hang: misod exits 70.", 1, 3600)
    drain_s: float = _setting(15.0, "Seconds that speaking requests get to finish at shutdown.", 0, 3600)
    memory_gb: float = _setting(0.0, "Resident memory at which misod exits 70; 0 is 90 % of the machine.", 0, 1e6)
    prefix_gb: float = _setting(1.0, "Memory for what the model has read of voices and dialogues.", 0, 1e6)
    prefix_disk_gb: float = _setting(4.0, "Disk for what models have read of voices.", 0, 1e6)
    log_level: str = _setting("info", "debug, info, warning or error.")


def variable(name: str) -> str:
    """The environment name of a setting."""
    return f"MISO_{name.upper()}"


def load_settings(config: Path, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Settings:
    """`flags` holds only what was given on the command line. Raises ConfigError."""
    table = _read_toml(config)
    known = {f.name: f for f in fields(Settings)}
    if unknown := table.keys() - known.keys():
        raise ConfigError(f"{config}: unknown setting {min(unknown)!r}; there are {', '.join(known)}")
    values = {}
    for name, f in known.items():
        if flags.get(name) is not None:
            values[name] = _parsed(f, flags[name], f"--{name.replace('_', '-')}")
        elif environ.get(variable(name)):  # set to nothing is not set
            values[name] = _parsed(f, environ[variable(name)], variable(name))
        elif name in table:
            values[name] = _parsed(f, table[name], f"{name} in {config}")
    return Settings(**values)


def _read_toml(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}") from None
    except ValueError as error:  # TOMLDecodeError and UnicodeDecodeError are
        raise ConfigError(f"{path}: {error}") from None


def _parsed(setting, value: object, origin: str):
    """`value` as the setting's type and within its range."""
    kind, low, high = type(setting.default), setting.metadata["low"], setting.metadata["high"]
    parsed = _converted(kind, value)
    if parsed is None:
        wanted = {int: "a whole number", float: "a number", str: "text"}[kind]
        raise ConfigError(f"{origin}: {value!r} is not {wanted}")
    if setting.name == "log_level" and parsed not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"{origin}: {value!r} is not debug, info, warning or error")
    if low is not None and not low <= parsed <= high:
        raise ConfigError(f"{origin}: {value!r} is not within {low:.9g}..{high:.9g}")
    return parsed


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
