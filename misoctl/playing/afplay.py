"""macOS's afplay, which does not read standard input: it plays temporary files, a piece of the speech each."""

import subprocess
import tempfile
import time
from pathlib import Path

from misoctl.playing.children import Watcher, kill_group, start_program
from misoctl.playing.pauses import PAUSE_MS, Pauses
from misoctl.sink import wav_header
from protocol import errors
from protocol.errors import Failure

BETWEEN_MS = 150.0  # from one piece's end to the next one's first sound, until it was measured


class AfPlay:
    """The first piece is heard while the next is made. stop is called by another thread than the rest."""

    tick_s = 0.02  # how often to see whether the piece that plays is over

    def __init__(self, path: str):
        self._path = path
        self.underruns, self.gap_s = 0, 0.0
        self._child: subprocess.Popen | None = None
        self._directory: tempfile.TemporaryDirectory | None = None
        self._watcher: Watcher | None = None
        self._stopped = self._rests = False
        self._between_ms = BETWEEN_MS
        self._count = 0

    def open(self, rate_hz: int) -> None:
        self._rate_hz, self._pauses = rate_hz, Pauses(rate_hz)
        try:
            self._directory = tempfile.TemporaryDirectory(prefix="miso-")
        except OSError as error:
            raise _no_room(error, error.filename or "a temporary file") from None
        self._watcher = Watcher(self._directory.name)
        self._over_s: float | None = None  # when a piece was, and none was there to follow

    def write(self, pcm: bytes) -> None:
        self._rests = False
        self._pauses.add(pcm)
        self.tick()

    def rest(self) -> None:
        """One speech ends here: it is heard to its end, and that nothing follows at once is no underrun."""
        self._rests = True
        self._pauses.cut_here()
        self.tick()

    def tick(self) -> None:
        """Play the next piece, if none plays and one is there."""
        if self._child and self._child.poll() is None:
            return
        self._ended()
        if piece := self._pauses.take(False, self._between_ms):
            self._start(piece)

    def stop(self) -> None:
        """Silence at once."""
        self._stopped = True
        if child := self._child:
            kill_group(child)

    def finish(self) -> None:
        """Once all is played."""
        self._wait()
        if not self._stopped and (piece := self._pauses.take(True, self._between_ms)):
            self._start(piece)
            self._wait()

    def end(self) -> None:
        """Nothing of it is left, however it went."""
        self.stop()
        if self._watcher:
            self._watcher.close()
        if self._directory:
            self._directory.cleanup()

    def _wait(self) -> None:
        if self._child:
            self._child.wait()
        self._ended()

    def _start(self, piece: bytes) -> None:
        if self._over_s is not None:
            self._count_gap(time.monotonic() - self._over_s)
        self._count += 1
        self._file = Path(self._directory.name) / f"{self._count}.wav"
        try:
            self._file.write_bytes(wav_header(self._rate_hz, len(piece)) + piece)
        except OSError as error:
            raise _no_room(error, self._file) from None
        self._child = start_program([self._path, str(self._file)], stdin=subprocess.DEVNULL, stderr=None)
        self._watcher.watch(self._child)
        if self._stopped:  # meanwhile
            kill_group(self._child)
        self._began_s, self._lasts_s, self._over_s = time.monotonic(), len(piece) / 2 / self._rate_hz, None

    def _ended(self) -> None:
        """See to the piece that is over, if one is."""
        if self._child is None:
            return
        code, self._child = self._child.returncode, None
        self._watcher.forget()
        self._file.unlink(missing_ok=True)
        over_s = time.monotonic()
        self._over_s = None if self._rests else over_s
        if code and not self._stopped:
            raise Failure(errors.IO_ERROR, f"afplay failed with code {code}", "use -o FILE, or another --player")
        took_ms = 1000 * (over_s - self._began_s - self._lasts_s)
        self._between_ms = min(max(0.0, took_ms), PAUSE_MS)

    def _count_gap(self, gap_s: float) -> None:
        if gap_s > 2 * self.tick_s:
            self.underruns += 1
            self.gap_s += gap_s


def _no_room(error: OSError, name: Path | str) -> Failure:
    return Failure(errors.IO_ERROR, f"writing {name}: {error.strerror}", "free some space, or set TMPDIR")
