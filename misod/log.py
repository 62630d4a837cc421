"""The daemon's log: our own rotation, 5 files of 2 MB; on a terminal, on stderr too. Never the user's text."""

import logging
import logging.handlers
import sys
from pathlib import Path

FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


def start_log(path: Path, level: str) -> None:
    """Raises OSError where the log cannot be written."""
    handlers: list[logging.Handler] = [
        logging.handlers.RotatingFileHandler(path, maxBytes=2 << 20, backupCount=4, encoding="utf-8")
    ]
    if sys.stderr.isatty():
        handlers.append(logging.StreamHandler())
    logging.basicConfig(level=level.upper(), format=FORMAT, handlers=handlers, force=True)
