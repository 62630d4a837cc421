"""A player program that reads samples, or a WAV, from its standard input."""

import subprocess
import tempfile

from misoctl.playing.children import Watcher, kill_group, start_program
from misoctl.sink import wav_header
from protocol import errors
from protocol.errors import Failure

# Each holds less than it would by itself: ffplay looks through seconds of sound before it begins, paplay waits for 2 s
# of it, aplay for half a second.
ARGUMENTS = {
    "ffplay": "-nodisp -autoexit -loglevel error -probesize 32 -analyzeduration 0 -i -",
    "sox": "-q -t raw -r {rate} -e signed-integer -b 16 -c 1 -",
    "pw-play": "--format s16 --rate {rate} --channels 1 -",
    "paplay": "--raw --format=s16le --rate={rate} --channels=1 --latency-msec=100",
    "aplay": "-q -t raw -f S16_LE -r {rate} -c 1 --buffer-time=200000",
}
COMMANDS = {"sox": "play"}  # where its name is another
DEVICE_ARGUMENTS = {"pw-play": ("--target", "{}"), "paplay": ("--device={}",), "aplay": ("-D", "{}")}
DEVICE_VARIABLES = {"sox": "AUDIODEV"}


class Program:
    """Killed on every way out but success. stop is called by another thread than the rest."""

    tick_s = None

    def __init__(self, name: str, path: str, device: str = ""):
        self._name, self._path, self._device = name, path, device
        self.underruns, self.gap_s = 0, 0.0  # it tells of none
        self._child: subprocess.Popen | None = None
        self._watcher: Watcher | None = None
        self._stopped = False
        self._over = False  # it has played all, or was ended
        self._said = tempfile.TemporaryFile()  # its stderr: a pipe that nobody reads would stop a talkative player

    def open(self, rate_hz: int) -> None:
        self._watcher = Watcher()
        env = {DEVICE_VARIABLES[self._name]: self._device} if self._device and self._name in DEVICE_VARIABLES else None
        command = [self._path, *self._arguments(rate_hz)]
        self._child = start_program(command, env, stdin=subprocess.PIPE, stderr=self._said)
        self._watcher.watch(self._child)
        if self._stopped:  # meanwhile
            kill_group(self._child)
        self._header = wav_header(rate_hz, None) if self._name == "ffplay" else b""

    def write(self, pcm: bytes) -> None:
        data, self._header = memoryview(self._header + pcm), b""
        try:
            while data:
                data = data[self._child.stdin.write(data) :]
        except OSError:
            raise self._failed() from None

    def rest(self) -> None:
        """One speech ends here: it is heard to its end as it is."""

    def stop(self) -> None:
        """Silence at once."""
        self._stopped = True
        if self._child and not self._over:
            kill_group(self._child)

    def finish(self) -> None:
        """Once it has played all and is gone."""
        self._child.stdin.close()
        if self._child.wait():
            raise self._failed()
        self._over = True

    def end(self) -> None:
        """Nothing of it is left, however it went."""
        self.stop()
        self._over = True
        if self._watcher:
            self._watcher.close()

    def _arguments(self, rate_hz: int) -> list[str]:
        device = DEVICE_ARGUMENTS.get(self._name, ()) if self._device else ()
        raw = ["--raw"] if self._name == "pw-play" and _wants_raw(self._path) else []
        return [*(a.format(self._device) for a in device), *raw, *ARGUMENTS[self._name].format(rate=rate_hz).split()]

    def _failed(self) -> Failure:
        """The player went away: with its own last words."""
        self.stop()
        self._said.seek(0)
        said = self._said.read()[-4096:].decode(errors="replace").strip().splitlines()
        return Failure(errors.IO_ERROR, f"{self._name} stopped playing: {said[-1] if said else 'no reason given'}")


def _wants_raw(path: str) -> bool:
    """pw-play took `-` for raw samples until it learned --raw, and takes it for a file since."""
    asked = subprocess.run([path, "--help"], capture_output=True, stdin=subprocess.DEVNULL, check=False)
    return b"--raw" in asked.stdout + asked.stderr
