"""Standard error as a terminal: some rows at its bottom that are rewritten, and lines told above them."""

import os
import sys
import threading
import unicodedata

import click

ESC = "\x1b["


def is_terminal() -> bool:
    """Whether rows can be rewritten there."""
    return sys.stderr is not None and sys.stderr.isatty() and os.environ.get("TERM") not in (None, "", "dumb")


def cells(text: str) -> int:
    """Columns that it takes."""
    return sum(map(_cells_of, text))


def _cells_of(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me", "Cf"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1


def wrapped(text: str, width: int) -> list[tuple[int, int]]:
    """(start, end) of each row of a text without line ends: broken at spaces; a longer word where it must be."""
    rows, start, used, space = [], 0, 0, None
    for i, character in enumerate(text):
        used += _cells_of(character)
        if character == " ":
            space = i
        if used > width and i > start:
            end, following = (space, space + 1) if space is not None else (i, i)
            rows.append((start, end))
            start, space = following, None
            used = cells(text[start : i + 1])
    return [*rows, (start, len(text))]


class Screen:
    """`show` replaces the rows, `tell` goes above them, `settle` leaves them where they are."""

    def __init__(self):
        self._rows: list[str] = []  # as they are seen, without escapes
        self._drawn = ""
        self._lock = threading.RLock()

    @property
    def size(self) -> os.terminal_size:
        try:
            return os.get_terminal_size(sys.stderr.fileno())
        except OSError:
            return os.terminal_size((80, 24))

    def show(self, rows: list[str], drawn: list[str] | None = None) -> None:
        """`drawn`: the same with escapes."""
        with self._lock:
            joined = "\r\n".join(drawn or rows)
            if joined != self._drawn:
                self._write(self._erased() + joined)
                self._rows, self._drawn = rows, joined

    def tell(self, line: str) -> None:
        with self._lock:
            self._write(self._erased())
            click.echo(f"misoctl: {line}", err=True)
            self._write(self._drawn)

    def settle(self, rows: list[str]) -> None:
        with self._lock:
            self._write(self._erased() + "".join(f"{row}\r\n" for row in rows))
            self._rows, self._drawn = [], ""

    def clear(self) -> None:
        self.settle([])

    def _erased(self) -> str:
        """To the first row of what is there, by the width it has now, and all below it gone."""
        if not self._rows:
            return ""
        columns = max(1, self.size.columns)
        above = sum(max(1, -(-cells(row) // columns)) for row in self._rows) - 1
        return "\r" + (f"{ESC}{above}A" if above else "") + f"{ESC}J"

    def _write(self, text: str) -> None:
        if text:
            sys.stderr.write(text)
            sys.stderr.flush()
