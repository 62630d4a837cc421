"""Settings: flag > MISO_* variable > config.toml > default. Read here and nowhere else."""

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path


class ConfigError(Exception):
    """A setting is wrong: the message says which, where it came from and what it may be."""


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
        elif variable(name) in environ:
            values[name] = _parsed(f, environ[variable(name)], variable(name))
        elif name in table:
            values[name] = _parsed(f, table[name], f"{name} in {config}")
    return Settings(**values)


def _read_toml(path: Path) -> dict:
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:  # TOMLDecodeError and UnicodeDecodeError are ValueErrors
        raise ConfigError(f"{path}: {error}") from None


def _parsed(setting, value: object, origin: str):
    """`value` as the setting's type and within its range."""
    kind, low, high = type(setting.default), setting.metadata["low"], setting.metadata["high"]
    try:
        if isinstance(value, bool):
            raise ValueError
        number = kind(value)
    except (TypeError, ValueError):
        raise ConfigError(f"{origin}: {value!r} is not {'a number' if kind is not str else 'text'}") from None
    if setting.name == "log_level" and number not in ("debug", "info", "warning", "error"):
        raise ConfigError(f"{origin}: {value!r} is not debug, info, warning or error")
    if low is not None and not low <= number <= high:
        raise ConfigError(f"{origin}: {number:g} is not within {low:g}..{high:g}")
    return number
