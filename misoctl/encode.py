"""PCM to the formats of files and of HTTP, a piece at a time: feed -> bytes, finish -> the last of them.

What was given out is never changed, so it may go down a pipe: headers hold the lengths of a stream without an end.
"""

from dataclasses import dataclass, field

from misoctl.sink import wav_header

PAGE_MS = 80.0  # of Ogg, a frame: libsndfile would gather a second
SET_OGG_PAGE_LATENCY_MS = 0x1302  # of libsndfile's sndfile.h; soundfile has no name for it


ENCODED = {  # libsndfile's names of container and codec
    "flac": ("FLAC", "PCM_16"),
    "ogg": ("OGG", "VORBIS"),
    "opus": ("OGG", "OPUS"),
    "mp3": ("MP3", "MPEG_LAYER_III"),
}


@dataclass(frozen=True)
class Format:
    """`container`, `codec` and `options` as soundfile calls them; without them the samples go out as they are."""

    media_type: str
    container: str = ""
    codec: str = ""
    options: dict = field(default_factory=dict)


# MP3 at a constant 96 kbit/s: of a stream with a varying rate no player knows the length. Opus at about 60.
MP3 = Format("audio/mpeg", *ENCODED["mp3"], {"compression_level": 0.4, "bitrate_mode": "CONSTANT"})
OPUS = Format("audio/ogg", *ENCODED["opus"], {"compression_level": 0.8})
FORMATS = {
    "mp3": MP3,
    "opus": OPUS,
    "flac": Format("audio/flac", *ENCODED["flac"]),
    "wav": Format("audio/wav"),
    "pcm": Format("audio/pcm"),
}


def encoder(name: str, rate_hz: int) -> "Plain | Encoded":
    """For one of FORMATS. It takes mono s16le."""
    if FORMATS[name].container:
        return Encoded(FORMATS[name], rate_hz)
    return Plain(wav_header(rate_hz, None) if name == "wav" else b"")


class Plain:
    """The samples, after a header."""

    def __init__(self, header: bytes):
        self._header = header

    def feed(self, pcm: bytes) -> bytes:
        header, self._header = self._header, b""
        return header + pcm

    def finish(self) -> bytes:
        return b""


class Encoded:
    """By libsndfile, into memory."""

    def __init__(self, wanted: Format, rate_hz: int):
        import soundfile

        self._out = Tail()
        self._file = soundfile.SoundFile(
            self._out, "w", rate_hz, 1, wanted.codec, format=wanted.container, **wanted.options
        )
        if wanted.container == "OGG":
            latency = soundfile._ffi.new("double *", PAGE_MS)
            soundfile._snd.sf_command(self._file._file, SET_OGG_PAGE_LATENCY_MS, latency, 8)

    def feed(self, pcm: bytes) -> bytes:
        self._file.buffer_write(pcm, "int16")
        return self._out.take()

    def finish(self) -> bytes:
        self._file.close()
        return self._out.take()


class Tail:
    """A file as libsndfile needs it, of which only what was not taken yet is kept.

    At the end it goes back to write lengths into its header: into one that was taken they are dropped.
    """

    def __init__(self):
        self._kept = bytearray()
        self._taken = self._at = 0  # offsets in the whole file

    def seek(self, offset: int, whence: int = 0) -> int:
        self._at = offset + (0, self._at, self._taken + len(self._kept))[whence]
        return self._at

    def tell(self) -> int:
        return self._at

    def write(self, data: bytes) -> int:
        late = max(0, self._taken - self._at)
        start = self._at + late - self._taken
        self._kept[start : start + len(data[late:])] = data[late:]
        self._at += len(data)
        return len(data)

    def take(self) -> bytes:
        data = bytes(self._kept)
        self._taken += len(data)
        self._kept.clear()
        return data
