"""How far a long piece of work is: a bar on a terminal, a line each tenth of the way on a pipe, nothing when quiet."""

import shutil
import time
from collections.abc import Callable
from typing import TextIO

REDRAW_S = 0.1
RATE_WINDOW_S = 10.0
NARROWEST_BAR, WIDEST_BAR = 10, 30  # columns; a narrower one is left away

Clock = Callable[[], float]


class Progress:
    """Counts bytes up to `total`. Use as a context manager: leaving it ends the line, whatever the reason."""

    def __init__(self, label: str, total: int, stream: TextIO | None, done: int = 0, clock: Clock = time.monotonic):
        self.label, self.total, self.done = label, max(total, 1), done
        self._stream, self._clock = stream, clock
        self._terminal = stream is not None and stream.isatty()
        self._samples = [(clock(), done)]  # of the last seconds: time, bytes
        self._drawn_s = float("-inf")
        self._told = done * 10 // self.total  # tenths

    def __enter__(self) -> "Progress":
        self._draw()
        return self

    def __exit__(self, *_) -> None:
        self._draw()
        if self._terminal:
            self._stream.write("\n")
            self._stream.flush()

    def add(self, count: int) -> None:
        """`count` bytes more; less than nothing where some must be done again."""
        self.done += count
        now = self._clock()
        if now - self._samples[-1][0] >= REDRAW_S:
            self._samples.append((now, self.done))
            while now - self._samples[0][0] > RATE_WINDOW_S and len(self._samples) > 2:
                self._samples.pop(0)
        if not self._terminal or now - self._drawn_s >= REDRAW_S:
            self._drawn_s = now
            self._draw()

    def rate(self) -> float:
        """Bytes a second, lately."""
        (then, before), now = self._samples[0], self._clock()
        return (self.done - before) / (now - then) if now > then else 0.0

    def line(self, columns: int) -> str:
        """One line of at most `columns`."""
        share = min(self.done / self.total, 1.0)
        rate = self.rate()
        left = duration((self.total - self.done) / rate) + " left" if rate > 0 and share < 1 else ""
        of = f"{size(self.done)} of {size(self.total)}"
        speed = f"{size(rate)}/s" if rate > 0 else ""
        told = "  ".join(part for part in (of, speed, left) if part)
        width, bar = min(columns - len(self.label) - len(told) - 10, WIDEST_BAR), ""
        if self._terminal and width >= NARROWEST_BAR:
            bar = f"[{'#' * int(share * width):<{width}}] "
        return f"{self.label} {bar}{share:4.0%}  {told}"[:columns]

    def _draw(self) -> None:
        if self._stream is None:
            return
        if self._terminal:
            columns = shutil.get_terminal_size().columns - 1
            self._stream.write(f"\r{self.line(columns)}\x1b[K")
            self._stream.flush()
        elif (tenths := self.done * 10 // self.total) > self._told:
            self._told = tenths
            self._stream.write(f"{self.line(100)}\n")
            self._stream.flush()


def size(count: float) -> str:
    """As people say it: 16.4 GB, 385 MB, 6.4 MB, 22 KB."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= factor:
            digits = 1 if unit == "GB" or count < 10 * factor else 0
            return f"{count / factor:.{digits}f} {unit}"
    return f"{count:.0f} bytes"


def duration(seconds: float) -> str:
    """45 s, 3 min 20 s, 2 h 5 min."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
