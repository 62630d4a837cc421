"""Sound out: sounddevice where it is installed, else a player program that is here."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from misoctl.sink import WavFile, wav_header
from protocol import errors
from protocol.errors import Failure

RAW_PLAYERS = {
    "ffplay": ["-nodisp", "-autoexit", "-loglevel", "error", "-i", "-"],  # reads a WAV stream
    "play": "-q -t raw -r {rate} -e signed-integer -b 16 -c 1 -".split(),  # sox
    "aplay": "-q -t raw -f S16_LE -r {rate} -c 1 -".split(),
}
STOP_S = 2.0


def open_player() -> "Device | Program | AfPlay":
    """The first there is of sounddevice, ffplay, sox, afplay, aplay. Raises Failure where there is none."""
    try:
        return Device()
    except (ImportError, OSError):  # not installed, or PortAudio is not
        pass
    for name in ("ffplay", "play", "afplay", "aplay"):
        if path := shutil.which(name):
            return AfPlay(path) if name == "afplay" else Program(name, path)
    cure = "brew install ffmpeg" if sys.platform == "darwin" else "apt install ffmpeg"
    message = "no audio player found (sounddevice, ffplay, sox, aplay)"
    raise Failure(errors.NO_PROGRAM, message, f"install one (`{cure}`), or write a file with -o")


class Device:
    """The default output device through PortAudio. Its stream is raw: no numpy."""

    def __init__(self):
        import sounddevice  # OSError where the package is here and PortAudio is not

        self._sounddevice = sounddevice
        self._stream = None

    def write(self, pcm: bytes, rate_hz: int) -> None:
        try:
            if self._stream is None:
                self._stream = self._sounddevice.RawOutputStream(samplerate=rate_hz, channels=1, dtype="int16")
                self._stream.start()
            self._stream.write(pcm)
        except self._sounddevice.PortAudioError as error:
            raise _device_failed(error) from None

    def close(self, whole: bool) -> None:
        if self._stream is None:
            return
        try:
            self._stream.stop() if whole else self._stream.abort()
            self._stream.close()
        except self._sounddevice.PortAudioError as error:
            self._stream = None
            if whole:
                raise _device_failed(error) from None
        self._stream = None


def _device_failed(error: Exception) -> Failure:
    return Failure(errors.IO_ERROR, f"the audio device failed: {error}", "use -o to write a file")


class Program:
    """A child that plays what it reads from its standard input; killed on every way out but success.

    Its own process group: Ctrl-C is ours to handle, and a killed misoctl closes the pipe, which ends it.
    """

    def __init__(self, name: str, path: str):
        self._name, self._path = name, path
        self._child: subprocess.Popen | None = None
        self._said = tempfile.TemporaryFile()  # its stderr: a pipe that nobody reads would stop a talkative player

    def write(self, pcm: bytes, rate_hz: int) -> None:
        header = b""
        if self._child is None:
            self._start(rate_hz)
            header = wav_header(rate_hz, None) if self._name == "ffplay" else b""
        try:
            self._child.stdin.write(header + pcm)
            self._child.stdin.flush()
        except OSError:
            raise self._failed() from None

    def close(self, whole: bool) -> None:
        if self._child is None:
            return
        if not whole:
            self._kill()
            return
        try:
            self._child.stdin.close()
            code = self._child.wait()
        except OSError:
            raise self._failed() from None
        if code:
            raise self._failed()
        self._child = None

    def _start(self, rate_hz: int) -> None:
        arguments = [a.format(rate=rate_hz) for a in RAW_PLAYERS[self._name]]
        self._child = start_program([self._path, *arguments], stdin=subprocess.PIPE, stderr=self._said)

    def _failed(self) -> Failure:
        """The player went away: with its own last words."""
        self._kill()
        self._said.seek(0)
        said = self._said.read()[-4096:].decode(errors="replace").strip().splitlines()
        return Failure(errors.IO_ERROR, f"{self._name} stopped playing: {said[-1] if said else 'no reason given'}")

    def _kill(self) -> None:
        child, self._child = self._child, None
        kill_group(child)
        try:
            child.stdin.close()
        except OSError:  # what was buffered is not wanted any more
            pass


class AfPlay:
    """macOS's player does not read standard input: the whole speech goes to a temporary file first."""

    def __init__(self, path: str):
        self._path = path
        self._directory = tempfile.TemporaryDirectory(prefix="miso-")
        self._wav = WavFile(Path(self._directory.name) / "speech.wav")

    def write(self, pcm: bytes, rate_hz: int) -> None:
        self._wav.write(pcm, rate_hz)

    def close(self, whole: bool) -> None:
        self._wav.close(whole)
        try:
            if whole and self._wav.path.exists():
                self._play()
        finally:
            self._directory.cleanup()

    def _play(self) -> None:
        child = start_program([self._path, str(self._wav.path)], stdin=subprocess.DEVNULL, stderr=None)
        try:
            code = child.wait()
        except BaseException:
            kill_group(child)
            raise
        if code:
            raise Failure(errors.IO_ERROR, f"afplay failed with code {code}")


def start_program(command: list[str], **streams) -> subprocess.Popen:
    """In a process group of its own, its standard output closed to it: ours is for data."""
    try:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, start_new_session=True, **streams)
    except OSError as error:
        raise Failure(errors.NO_PROGRAM, f"cannot run {command[0]}: {error.strerror}", "use -o FILE") from None


def kill_group(child: subprocess.Popen) -> None:
    """Silence at once: the child and whatever it started."""
    try:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait(timeout=STOP_S)
    except (ProcessLookupError, PermissionError):  # gone; macOS says EPERM of a zombie
        pass
    except subprocess.TimeoutExpired:  # stuck in a driver: it dies when that returns
        pass
