"""The output device through PortAudio, by sounddevice. Its stream is raw: no numpy."""

from misoctl.playing.samples import FADE_MS, decay, fade_out, samples_of, silence
from protocol import errors
from protocol.errors import Failure, near

LATENCY_S = 0.1  # what it holds: enough for a busy machine, and Ctrl-C is still silence at once
SLICE_MS = 20.0  # how much is written between two looks at whether to stop


class Device:
    """`device`: a name, a part of one, or an index; "": the default one.

    Raises ImportError where sounddevice is not installed, OSError where PortAudio is not, Failure where it has no such
    device. stop is called by another thread than the rest.
    """

    tick_s = None

    def __init__(self, device: str = ""):
        import sounddevice

        self._sounddevice = sounddevice
        self._device = int(device) if device.isdecimal() else device or None
        self.underruns, self.gap_s = 0, 0.0
        self._stream = None
        self._stopped = self._faded = self._rests = False
        self._last = b"\0\0"  # sample
        try:
            sounddevice.query_devices(self._device, "output")
        except (ValueError, sounddevice.PortAudioError) as error:
            raise self._missing(error) from None

    def open(self, rate_hz: int) -> None:
        self._rate_hz = rate_hz
        try:
            self._stream = self._sounddevice.RawOutputStream(
                samplerate=rate_hz, channels=1, dtype="int16", device=self._device, latency=LATENCY_S
            )
            self._stream.start()
            self._rest_ms = 1000 * self._stream.write_available / rate_hz + SLICE_MS
        except self._sounddevice.PortAudioError as error:
            raise _failed(error) from None

    def write(self, pcm: bytes) -> None:
        step = 2 * samples_of(SLICE_MS, self._rate_hz)
        try:
            for at in range(0, len(pcm), step):
                if self._stopped:
                    self._fade(pcm[at : at + 2 * samples_of(FADE_MS, self._rate_hz)])
                    return
                ran_dry = self._stream.write(pcm[at : at + step])
                self.underruns += bool(ran_dry) and not self._rests
                self._rests = False
        except self._sounddevice.PortAudioError as error:
            raise _failed(error) from None
        self._last = pcm[-2:]

    def rest(self) -> None:
        """One speech ends here: that nothing follows at once is no underrun."""
        self._rests = True

    def stop(self) -> None:
        """What is written from now on is not heard, but for a fade."""
        self._stopped = True

    def finish(self) -> None:
        """Once all that was written is heard."""
        try:
            if self._stopped:
                self._fade(b"")
            # PulseAudio's ALSA drops what the device holds at a stop, 0.12 s of it: then let it drop this
            self._stream.write(silence(self._rest_ms, self._rate_hz))
            self._stream.stop()
        except self._sounddevice.PortAudioError as error:
            raise _failed(error) from None

    def end(self) -> None:
        if self._stream:
            self._stream.close(ignore_errors=True)

    def _fade(self, rest: bytes) -> None:
        if not self._faded:
            last = fade_out(rest, self._rate_hz) if rest else decay(self._last, self._rate_hz)
            self._stream.write(last)
        self._faded = True

    def _missing(self, error: Exception) -> Failure:
        if self._device is None:
            return Failure(errors.NO_PROGRAM, f"sounddevice has no output device: {error}", "use -o to write a file")
        names = [device["name"] for device in outputs(self._sounddevice)]
        line = f"there is no one output device {str(self._device)!r}"
        return Failure(errors.USAGE, line, f"{near(str(self._device), names)}" if names else "`misoctl devices`")


def outputs(sounddevice) -> list[dict]:
    return [device for device in sounddevice.query_devices() if device["max_output_channels"] > 0]


def _failed(error: Exception) -> Failure:
    return Failure(errors.IO_ERROR, f"the audio device failed: {error}", "use -o to write a file")
