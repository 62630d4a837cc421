"""The README's lines are what CI runs and what the package declares."""

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]


def shell_blocks() -> list[str]:
    return re.findall(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)


def test_ci_runs_exactly_the_readmes_test_line():
    (line,) = [block.strip() for block in shell_blocks() if "pytest" in block]
    assert line in (ROOT / ".ci" / "run").read_text().splitlines()


def test_every_file_the_readme_links_to_is_there():
    links = re.findall(r"\]\(([^)]+)\)", (ROOT / "README.md").read_text())
    assert links and all((ROOT / link).exists() for link in links)


def test_everything_that_is_installed_is_pinned_in_the_constraints():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = project["dependencies"] + project["optional-dependencies"]["dev"]
    names = {re.match(r"[\w-]+", line).group() for line in wanted if "darwin" not in line}
    pinned = {line.split("==")[0] for line in (ROOT / "constraints.txt").read_text().splitlines()}
    assert names <= pinned
