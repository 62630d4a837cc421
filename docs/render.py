"""Writes what in this repository is made from the code: `python -m docs.render`. A test holds each file to it."""

from pathlib import Path, PurePosixPath

from docs import exit_codes, man, performance
from misoctl.launchd import Launchd
from protocol.paths import AGENT_LABEL, Paths

ROOT = Path(__file__).parents[1]


def files() -> dict[str, str]:
    """Path in the repository -> text."""
    manual = {f"docs/man/{name}": page for name, page in man.pages().items()}
    pages = {"docs/exit-codes.md": exit_codes.page(), "docs/performance.md": performance.page()}
    return {f"launchd/{AGENT_LABEL}.plist": plist(), **pages, **manual}


def plist() -> str:
    """The login agent of a user named you, with miso in a pipx environment."""
    you = PurePosixPath("/Users/you")
    home = Path(you / "Library/Application Support/miso")
    paths = Paths(home=home, run=home / "run", logs=Path(you / "Library/Logs/miso"))
    return Launchd(paths, Path(you), f"{you}/.local/pipx/venvs/miso-speech/bin/python", {}).render().decode()


def main() -> None:
    for stale in {str(path.relative_to(ROOT)) for path in ROOT.glob("docs/man/*.1")} - set(files()):
        (ROOT / stale).unlink()
    for name, text in files().items():
        (ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / name).write_text(text)


if __name__ == "__main__":
    main()
