"""What is done to s16 samples on their way to a player. No numpy: it takes longer to import than this to run."""

from array import array

FADE_MS = 8.0  # long enough not to click


def samples_of(ms: float, rate_hz: int) -> int:
    return round(ms / 1000 * rate_hz)


def silence(ms: float, rate_hz: int) -> bytes:
    return bytes(2 * samples_of(ms, rate_hz))


def quieter(pcm: bytes, volume: float) -> bytes:
    """`volume` 0 to 1: nothing can clip."""
    return pcm if volume == 1 else array("h", [round(x * volume) for x in array("h", pcm)]).tobytes()


def fade_out(pcm: bytes, rate_hz: int) -> bytes:
    """Its last FADE_MS, or all of it, in a straight line to nothing."""
    return _faded(pcm, samples_of(FADE_MS, rate_hz), 1)


def fade_in(pcm: bytes, rate_hz: int) -> bytes:
    return _faded(pcm, samples_of(FADE_MS, rate_hz), -1)


def decay(last: bytes, rate_hz: int) -> bytes:
    """From one sample to nothing, where none follow."""
    return fade_out(last * samples_of(FADE_MS, rate_hz), rate_hz)


def peak(pcm: bytes) -> int:
    if not pcm:
        return 0
    high, low = max(heard := array("h", pcm)), min(heard)
    return max(high, -low)


def _faded(pcm: bytes, samples: int, way: int) -> bytes:
    """`way` 1: towards the end; -1: from the start."""
    faded = array("h", pcm)[::way]
    count = min(samples, len(faded))
    for i in range(1, count + 1):
        faded[-i] = round(faded[-i] * (i - 1) / count)
    return faded[::way].tobytes()
