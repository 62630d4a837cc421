"""`misod doctor`: what this machine and this home are fit for, a line each, with the cure.

It changes nothing on disk and starts no daemon; MLX is tried in a child. Where a check goes: machine.py, place.py,
models.py, sound.py; each is a function from a Site to a Finding, listed in the tables below.
"""

import json
import os
import platform
import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial

import click

from misod.doctor import machine, models, place, sound
from misod.doctor.finding import FAIL, OK, WARN, Finding, Site, fail
from misod.weights.budget import PRECISIONS
from protocol import errors
from protocol.paths import find_paths

Check = Callable[[Site], Finding]

MACHINE = (machine.chip, machine.system, machine.memory)
MAC = (machine.wired_limit, place.login_agent)
ENGINE = (machine.mlx, machine.bandwidth)
HOME = (
    machine.disk,
    machine.open_files,
    place.home,
    place.run_directory,
    place.logs,
    place.config,
    place.variables,
    place.socket,
    place.daemon,
)
SPEECH = (models.spoken, models.unfinished, sound.player)

COLOURS = {OK: "green", WARN: "yellow", FAIL: "red"}
INDENT = 21  # where details begin: a state, a name, and two spaces after each


def report(as_json: bool) -> int:
    """Print every finding; -> the exit code."""
    findings = []
    for finding in examine():
        findings.append(finding)
        if not as_json:
            _say("\n".join(_lines(finding, shown_before=findings[:-1])))
    _say(json.dumps([asdict(each) for each in findings]) if as_json else _summary(findings))
    return errors.FAILED if any(each.state == FAIL for each in findings) else errors.OK


def examine() -> Iterator[Finding]:
    """Each as it is known: MLX takes two seconds."""
    try:
        site = Site(find_paths(), os.environ, sys.platform, platform.machine())
    except errors.UnsafePath as error:  # every other line would be of a home that is not there
        yield fail("home", error.message, error.next_step)
        return
    for check in checks(site):
        yield check(site)


def checks(site: Site) -> list[Check]:
    fits = [partial(machine.fit, precision=precision) for precision in PRECISIONS]
    whole = [partial(models.whole, name=name, directory=here) for name, here in models.here(site.paths).items()]
    return [*MACHINE, *(MAC if site.mac else ()), *ENGINE, *fits, *HOME, *whole, *SPEECH]


def _lines(finding: Finding, shown_before: list[Finding]) -> Iterator[str]:
    """Wrapped on a terminal; a cure is not said twice in a row."""
    state = click.style(f"{finding.state:<4}", fg=COLOURS[finding.state]) if _colours() else f"{finding.state:<4}"
    first, *more = _wrapped(finding.detail)
    yield f"{state}  {finding.name:<13}  {first}"
    for line in more:
        yield " " * INDENT + line
    if finding.cure and not (shown_before and shown_before[-1].cure == finding.cure):
        for line in _wrapped(f"-> {finding.cure}"):
            yield " " * INDENT + line


def _wrapped(text: str) -> list[str]:
    """Paths stay whole. A pipe gets one line."""
    text = " ".join(text.split())  # an error that was quoted may have lines of its own
    if not sys.stdout.isatty():
        return [text]
    width = max(20, shutil.get_terminal_size().columns - INDENT)
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)


def _colours() -> bool:
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _summary(findings: list[Finding]) -> str:
    count = {state: sum(each.state == state for each in findings) for state in COLOURS}
    return f"{len(findings)} check{'s' * (len(findings) > 1)}: {count[OK]} ok, {count[WARN]} warn, {count[FAIL]} fail"


def _say(text: str) -> None:
    coding = sys.stdout.encoding
    click.echo(text.encode(coding, "replace").decode(coding))  # a file's name may be any bytes
