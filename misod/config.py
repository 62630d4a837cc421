"""Settings: flag > MISO_* variable > config.toml > default. Read and written here and nowhere else."""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

from protocol.errors import BAD_CONFIG, Failure, did_you_mean, near
from protocol.paths import make_directories

NO_SETTINGS = ("MISO_HOME", "MISO_TRANSCRIBER_MODEL")  # variables that misoctl reads


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
    same_s: float = _setting(
        5.0, "Seconds in which a text that was heard is not said again by the same --app.", 0, 3600
    )
    log_level: str = _setting("info", "debug, info, warning or error.")


def variable(name: str) -> str:
    """The environment name of a setting."""
    return f"MISO_{name.upper()}"


def load_settings(config: Path, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Settings:
    """`flags` holds only what was given on the command line. Raises ConfigError."""
    table = read_toml(config)
    for line in unknown_keys(config, table):
        raise ConfigError(line)
    return Settings(**{name: value for name, value, _ in origins(config, flags, environ, table)})


def origins(config: Path, flags: Mapping[str, object], environ: Mapping[str, str], table: dict) -> Iterator[tuple]:
    """(name, value, where from) of each setting; `table` is read_toml of `config`. Raises ConfigError."""
    for f in fields(Settings):
        if flags.get(f.name) is not None:
            origin = f"--{f.name.replace('_', '-')}"
            yield f.name, _parsed(f, flags[f.name], origin), origin
        elif environ.get(variable(f.name)):  # set to nothing is not set
            yield f.name, _parsed(f, environ[variable(f.name)], variable(f.name)), variable(f.name)
        elif f.name in table:
            yield f.name, _parsed(f, table[f.name], f"{f.name} in {config}"), f"{config}"
        else:
            yield f.name, f.default, "default"


def unknown_keys(config: Path, table: dict) -> Iterator[str]:
    """A line for each key of the file that is no setting."""
    names = [f.name for f in fields(Settings)]
    for key in sorted(table.keys() - set(names)):
        yield f"{config}: unknown setting {key!r}; {near(key, names)}"


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Names that would be ignored without a word (ollama #4973)."""
    known = {*NO_SETTINGS, *(variable(f.name) for f in fields(Settings))}
    yield from sorted(name for name in environ if name.startswith("MISO_") and name not in known)


def meant(unknown: str) -> str:
    """What to do about an unknown variable."""
    known = [*NO_SETTINGS, *(variable(f.name) for f in fields(Settings))]
    cutoff = 0.7  # all of them begin alike
    return did_you_mean(unknown, known, cutoff) or f"`unset {unknown}`; `misoctl config` lists the settings"


def write_setting(config: Path, name: str, text: str) -> None:
    """Put one setting into the file; its other lines stay as they are. Raises ConfigError, or OSError."""
    known = {f.name: f for f in fields(Settings)}
    if name not in known:
        raise ConfigError(f"unknown setting {name!r}; {near(name, known)}")
    value = _parsed(known[name], text, name)
    table = read_toml(config)
    before = config.read_text("utf-8") if table or config.exists() else ""
    line = f"{name} = {json.dumps(value, ensure_ascii=False) if isinstance(value, str) else value}"
    old_line = re.compile(rf"^{name}\s*=[^#\n]*?(\s*#.*)?$", re.MULTILINE)
    after, found = old_line.subn(lambda old: line + (old[1] or ""), before, count=1)
    if not found:
        after = before + "\n" * (before[-1:] not in ("", "\n")) + line + "\n"
    if not _same(after, table | {name: value}):
        raise ConfigError(f"{config}: cannot change the line of {name}; `misoctl config edit`")
    write_file(config, after)


def write_file(config: Path, text: str) -> None:
    """Whole or not at all; one that is a link elsewhere stays one."""
    make_directories(config.parent)
    target = config.resolve()
    partial = target.with_name(f".{target.name}.partial")
    partial.write_text(text, "utf-8")
    partial.replace(target)


def template() -> str:
    """A config.toml with nothing in it but what could be."""
    lines = ["# misod reads this when it starts: `misoctl service restart`, or `misoctl stop` and then say something."]
    for f in fields(Settings):
        lines += ["", f"# {f.metadata['help']}", f"# {f.name} = {json.dumps(f.default)}"]
    return "\n".join(lines) + "\n"


def _same(text: str, table: dict) -> bool:
    try:
        return tomllib.loads(text) == table
    except ValueError:
        return False


def read_toml(path: Path) -> dict:
    """What the file says; nothing where it is not there. Raises ConfigError."""
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
