"""What each verb says of itself: --help with an example before all else, and a manual page that troff can read."""

import inspect
import re
import shutil
import subprocess

import click
import pytest

from docs import man
from misoctl.cli import cli
from protocol import errors

PAGES = man.pages()


def tree(command: click.Command, path: str = "misoctl"):
    yield path, command
    for name, verb in getattr(command, "commands", {}).items():
        yield from tree(verb, f"{path} {name}")


VERBS = [pytest.param(path, command, id=path) for path, command in tree(cli)]


@pytest.mark.parametrize(("path", "command"), VERBS)
def test_help_begins_with_a_summary_and_an_example(path, command):
    summary, examples, *_ = [*inspect.cleandoc(command.help).split("\n\n"), ""]
    assert summary.endswith((".", ";")) and examples.startswith("\b\n  ")
    assert path in examples
    assert all(len(line) < 80 for line in examples.splitlines())


@pytest.mark.parametrize(("path", "command"), VERBS)
def test_help_cuts_nothing_off_and_lists_options_among_options_only(path, command):
    said = command.get_help(click.Context(command, info_name=path, terminal_width=80, max_content_width=80))
    listed = said.partition("\nCommands:")[2] + said.partition("\nOptions:")[2]
    assert not re.search(r"\.\.\.$|^  \[", listed, re.MULTILINE)


@pytest.mark.parametrize(("path", "command"), VERBS)
def test_every_option_says_what_it_is_for(path, command):
    options = [param for param in command.params if isinstance(param, click.Option)]
    assert all(option.help and option.help.endswith((".", "?")) for option in options)


def test_every_verb_has_a_page_and_every_page_its_verb():
    assert PAGES.keys() == {f"misoctl-{name}.1" for name in cli.commands} | {"misoctl.1", "misod-serve.1"}


def test_the_table_has_every_code_there_is():
    named = {value for name, value in vars(errors).items() if name.isupper() and type(value) is int}
    assert named - {errors.SIGNALLED} == set(errors.EXIT_CODES)
    assert {entry.exit_code for entry in errors.ERRORS.values()} <= set(errors.EXIT_CODES)


def test_the_page_of_misoctl_has_every_exit_code():
    assert all(f".TP\n\\fB{code}\\fP\n" in PAGES["misoctl.1"] for code in errors.EXIT_CODES)


@pytest.mark.skipif(not shutil.which("groff"), reason="no groff here")
@pytest.mark.parametrize("name", PAGES)
def test_troff_reads_the_page_without_a_warning(name):
    command = ["groff", "-man", "-ww", "-Tutf8", "-P-c"]
    done = subprocess.run(command, input=PAGES[name].encode(), capture_output=True, timeout=60, check=True)
    assert not done.stderr
    said = re.sub(".\b", "", done.stdout.decode())  # bold is struck twice
    assert "NAME" in said and "\\" not in said


def test_what_roff_would_obey_is_shown_as_it_is():
    assert man._plain(".so /etc/passwd") == "\\&.so /etc/passwd"
    assert man._plain("'quoted' \\n -x") == "\\&'quoted' \\en \\-x"


@pytest.mark.parametrize("command", [pytest.param(cli, id="verbs"), pytest.param(cli.commands["say"], id="say")])
def test_each_section_has_names_that_there_are_and_none_is_in_two(command):
    known = cli.commands.keys() if command is cli else {param.name for param in command.params}
    named = [name for names in command.sections.values() for name in names]
    assert known >= set(named) and len(named) == len(set(named))
