"""Manual pages from the click trees: one of misoctl, one of each verb, one of `misod serve`. No date, so no churn."""

import inspect
from collections.abc import Iterable

import click

from misoctl.cli import cli
from misoctl.options import Sectioned
from misod.cli import main as misod
from protocol import errors

FILES = [
    ("~/Library/Application Support/miso", "The home on macOS: config.toml, models, voices, the socket."),
    ("~/.local/share/miso", "The home on Linux."),
    ("~/Library/Logs/miso, ~/.local/state/miso/log", "misod.log, of 2 MB, and four older ones."),
]
ENVIRONMENT = [
    ("MISO_HOME", "Another home, with everything in it, logs too."),
    ("MISO_...", "A setting of misod where misoctl starts it: MISO_MAX_ROWS is max_rows. See misoctl-config(1)."),
    ("MISO_HTTP_TOKEN", "The token that misoctl-http(1) takes."),
    ("MISO_TRANSCRIBER_MODEL", "As --transcriber of misoctl-learn(1)."),
    ("NO_COLOR", "If set, nothing is coloured. In a pipe nothing is."),
]


def pages() -> dict[str, str]:
    """File name -> page."""
    root = click.Context(cli, info_name="misoctl")
    common = {
        "EXIT STATUS": _list((str(code), text) for code, text in errors.EXIT_CODES.items()),
        "FILES": _list(FILES),
        "ENVIRONMENT": _list(ENVIRONMENT),
    }
    made = {"misoctl.1": _page(root, common)}
    for verb in _below(root):
        made[f"misoctl-{verb.info_name}.1"] = _page(verb, {"EXIT STATUS": ["See misoctl(1)."]})
    serve = click.Context(misod.commands["serve"], click.Context(misod, info_name="misod"), "serve")
    made["misod-serve.1"] = _page(serve, common)
    return made


def _page(context: click.Context, more: dict[str, list[str]]) -> str:
    name = context.command_path.replace(" ", "-")
    summary, parts = _parts(context)
    if context.parent is None:
        parts["VERBS"] = _list((f"misoctl-{verb.info_name}(1)", _parts(verb)[0]) for verb in _below(context))
    elif verbs := _below(context):
        parts["VERBS"] = [line for verb in verbs for line in _subsection(verb)]
    lines = [f'.TH {name.upper()} 1 "" miso', ".SH NAME", f"{_plain(name)} \\- {_plain(summary.rstrip('.'))}"]
    for title, body in (parts | more).items():
        lines += [f".SH {title}", *body]
    return "\n".join(lines) + "\n"


def _subsection(verb: click.Context) -> list[str]:
    summary, parts = _parts(verb)
    return [
        f".SS {_plain(verb.command_path)}",
        _plain(summary),
        *(x for body in parts.values() for x in (".PP", *body)),
    ]


def _parts(context: click.Context) -> tuple[str, dict[str, list[str]]]:
    """The summary, and what else --help says, by heading."""
    summary, *paragraphs = inspect.cleandoc(context.command.help).split("\n\n")
    examples = [line for text in paragraphs if text.startswith("\b") for line in text.splitlines()[1:]]
    told = [" ".join(text.split()) for text in paragraphs if not text.startswith("\b")]
    usage = " ".join(context.command.collect_usage_pieces(context))
    command = context.command
    options = [
        record
        for param in command.params
        if isinstance(param, click.Option) and (record := param.get_help_record(context))
    ]
    sections = command.in_sections(context) if isinstance(command, Sectioned) else {"Options": options}
    parts = {
        "SYNOPSIS": [f"\\fB{_plain(context.command_path)}\\fP {_plain(usage)}"],
        "EXAMPLES": [".nf", *map(_plain, examples), ".fi"] if examples else [],
        "DESCRIPTION": [line for text in told for line in (".PP", _plain(text))],
        **{title.upper(): _list(records) for title, records in sections.items()},
    }
    return " ".join(summary.split()), {title: lines for title, lines in parts.items() if lines}


def _below(context: click.Context) -> list[click.Context]:
    commands = getattr(context.command, "commands", {})
    return [click.Context(verb, context, name) for name, verb in sorted(commands.items())]


def _list(records: Iterable[tuple[str, str]]) -> list[str]:
    return [line for term, text in records for line in (".TP", f"\\fB{_plain(term)}\\fP", _plain(text))]


def _plain(text: str) -> str:
    """Text, whatever it is: roff obeys a backslash, and a dot or a quote where a line begins."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return f"\\&{text}" if text.startswith((".", "'")) else text
