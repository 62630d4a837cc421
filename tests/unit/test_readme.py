"""The README's lines are what CI runs and what the package declares."""

import re
import tomllib
from pathlib import Path

import pytest

from misoctl.cli import cli

ROOT = Path(__file__).parents[2]


def shell_blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_ci_runs_exactly_the_readmes_test_line():
    (line,) = [block.strip() for block in shell_blocks() if "pytest" in block]
    assert line in (ROOT / ".ci" / "run").read_text().splitlines()


PAGES = [*(ROOT / name / "README.md" for name in (".", "protocol", "training")), *ROOT.glob("docs/**/*.md")]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_file_a_page_links_to_is_there(page):
    text = re.sub(r"```.*?```|`[^`]*`", "", page.read_text(), flags=re.DOTALL)  # code links to nothing
    links = re.findall(r"\]\(([^)\s]+)\)", text)
    near = [link.partition("#")[0] for link in links if "://" not in link]
    assert [link for link in near if not (page.parent / link).exists()] == []


def test_the_readme_leads_to_every_page():
    linked = {(ROOT / link).resolve() for link in re.findall(r"\]\(([^)#\s]+)\)", (ROOT / "README.md").read_text())}
    assert sorted(page for page in ROOT.glob("docs/*.md") if page not in linked) == []


def test_the_readme_is_a_front_page():
    assert len((ROOT / "README.md").read_text().splitlines()) < 110


def test_each_verb_and_option_of_the_readme_is_one():
    """As misoctl itself reads them; what follows a pipe or a comment is another's."""
    lines = [line.split("#")[0] for block in shell_blocks() for line in block.splitlines()]
    commands = [found for line in lines for found in re.findall(r"misoctl ([a-z]+)([^|&)]*)", line)]
    assert len({verb for verb, _ in commands}) > 8
    for verb, rest in commands:
        known = {option for each in cli.commands[verb].params for option in each.opts}
        quoted = re.sub(r"\"[^\"]*\"", "", rest)
        assert set(re.findall(r"(?<= )-[-a-z]+", quoted)) <= known, (verb, rest)


def test_everything_that_is_installed_is_pinned_in_the_constraints():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.match(r"[\w-]+", line).group() for line in wanted if "darwin" not in line}
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert names <= pinned
