"""Settings: flag > MISO_* variable > config.toml > default. Read and written here and nowhere else."""

import json
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from protocol import settings
from protocol.errors import did_you_mean, near
from protocol.paths import make_directories
from protocol.settings import ConfigError, Playing, parsed, read_toml, setting, variable

LEVELS = ("debug", "info", "warning", "error")
NO_SETTINGS = ("MISO_HOME", "MISO_HTTP_TOKEN", "MISO_TRANSCRIBER_MODEL")  # variables that misoctl reads


@dataclass(frozen=True)
class Settings:
    model: str = setting("auto", "Model to speak with; auto takes the best one present (miso, else nano).")
    keep_alive_s: float = setting(1800.0, "Seconds without a request after which the weights are freed.", 0.1, 1e8)
    max_rows: int = setting(8, "Requests that speak at the same time.", 1, 64)
    max_requests: int = setting(64, "Requests that may wait or speak; one more is told `busy`.", 1, 4096)
    step_timeout_s: float = setting(10.0, "A step that takes longer is a hang: misod exits 70.", 1, 3600)
    drain_s: float = setting(15.0, "Seconds that speaking requests get to finish at shutdown.", 0, 3600)
    memory_gb: float = setting(0.0, "Resident memory at which misod exits 70; 0 is 90 % of the machine.", 0, 1e6)
    prefix_gb: float = setting(1.0, "Memory for what the model has read of voices and dialogues.", 0, 1e6)
    prefix_disk_gb: float = setting(4.0, "Disk for what models have read of voices.", 0, 1e6)
    same_s: float = setting(5.0, "Seconds in which a text that was heard is not said again by the same --app.", 0, 3600)
    log_level: str = setting("info", "debug, info, warning or error.", choices=LEVELS)


OURS = tuple(f.name for f in fields(Settings))
KNOWN = {f.name: f for f in (*fields(Settings), *fields(Playing))}  # of one file: what misoctl plays with, too


def load_settings(config: Path, flags: Mapping[str, object], environ: Mapping[str, str] = os.environ) -> Settings:
    """`flags` holds only what was given on the command line. Raises ConfigError."""
    table = read_toml(config)
    for line in unknown_keys(config, table):
        raise ConfigError(line)
    return Settings(
        **{name: value for name, value, _ in settings.origins(fields(Settings), config, flags, environ, table)}
    )


def origins(config: Path, environ: Mapping[str, str], table: dict) -> Iterator[tuple]:
    """(name, value, where from) of each setting, misoctl's too; `table`: read_toml of `config`. Raises ConfigError."""
    return settings.origins(KNOWN.values(), config, {}, environ, table)


def unknown_keys(config: Path, table: dict) -> Iterator[str]:
    """A line for each key of the file that is no setting."""
    for key in sorted(table.keys() - KNOWN.keys()):
        yield f"{config}: unknown setting {key!r}; {near(key, KNOWN)}"


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Names that would be ignored without a word (ollama #4973)."""
    known = {*NO_SETTINGS, *map(variable, KNOWN)}
    yield from sorted(name for name in environ if name.startswith("MISO_") and name not in known)


def meant(unknown: str) -> str:
    """What to do about an unknown variable."""
    known = [*NO_SETTINGS, *map(variable, KNOWN)]
    cutoff = 0.7  # all of them begin alike
    return did_you_mean(unknown, known, cutoff) or f"`unset {unknown}`; `misoctl config` lists the settings"


def write_setting(config: Path, name: str, text: str) -> None:
    """Put one setting into the file; its other lines stay as they are. Raises ConfigError, or OSError."""
    if name not in KNOWN:
        raise ConfigError(f"unknown setting {name!r}; {near(name, KNOWN)}")
    value = parsed(KNOWN[name], text, name)
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
    lines += [f"# misoctl reads {', '.join(f.name for f in fields(Playing))} each time it plays."]
    for f in KNOWN.values():
        lines += ["", f"# {f.metadata['help']}", f"# {f.name} = {json.dumps(f.default)}"]
    return "\n".join(lines) + "\n"


def _same(text: str, table: dict) -> bool:
    try:
        return tomllib.loads(text) == table
    except ValueError:
        return False
