"""Formats made a piece at a time: what comes out is a whole file to a decoder, and comes out while it is made."""

import io

import numpy as np
import pytest
import soundfile

from misoctl.encode import encoder

RATE_HZ, FRAME = 24_000, 1920
FORMATS = ("mp3", "opus", "flac", "wav", "pcm")  # of HTTP


def speech(seconds: float = 3.0) -> np.ndarray:
    """(samples,) int16: a gliding tone that swells, so that a shift in time shows."""
    t = np.arange(int(seconds * RATE_HZ) // FRAME * FRAME) / RATE_HZ
    return (np.sin(2 * np.pi * (200 + 150 * t) * t) * np.sin(t * 5) * 12_000).astype("<i2")


def encoded(name: str, pcm: np.ndarray) -> list[bytes]:
    made = encoder(name, RATE_HZ)
    return [*(made.feed(frame.tobytes()) for frame in pcm.reshape(-1, FRAME)), made.finish()]


def decoded(name: str, data: bytes) -> np.ndarray:
    if name == "pcm":
        return np.frombuffer(data, "<i2")
    if name == "flac":
        data = with_length(data, len(speech()))
    with soundfile.SoundFile(io.BytesIO(data)) as file:
        assert (file.samplerate, file.channels) == (RATE_HZ, 1)
        return file.read(dtype="int16")


def with_length(flac: bytes, samples: int) -> bytes:
    """A streamed FLAC says 0, not known, which libsndfile does not read to the end of."""
    assert flac[22:26] == bytes(4) and flac[21] & 15 == 0
    return flac[:22] + samples.to_bytes(4, "big") + flac[26:]


def lag_of(sound: np.ndarray, pcm: np.ndarray, most: int) -> int:
    """By how many samples `sound` is late; they must be alike."""
    start = pcm[: RATE_HZ // 4].astype(float)
    scores = [np.corrcoef(sound[lag : lag + len(start)], start)[0, 1] for lag in range(most)]
    assert max(scores) > 0.98
    return int(np.argmax(scores))


@pytest.mark.parametrize("name", ["pcm", "wav", "flac"])
def test_what_loses_nothing_is_the_same_samples(name):
    pcm = speech()
    assert np.array_equal(decoded(name, b"".join(encoded(name, pcm))), pcm)


@pytest.mark.parametrize(("name", "late"), [("mp3", 2304), ("opus", 0)])
def test_what_loses_something_has_all_of_the_speech(name, late):
    pcm = speech()
    sound = decoded(name, b"".join(encoded(name, pcm)))
    lag = lag_of(sound, pcm, late + 1)
    assert len(pcm) <= len(sound) <= len(pcm) + late
    assert len(sound) >= lag + len(pcm)  # its end, too


@pytest.mark.parametrize("name", FORMATS)
def test_bytes_come_out_as_the_speech_goes_in(name):
    pieces = encoded(name, speech())
    assert pieces[0]
    assert (
        max(sum(not piece for piece in pieces[i : i + 4]) for i in range(len(pieces) - 5)) <= 3
    )  # FLAC: 2 frames a block


@pytest.mark.parametrize("name", FORMATS)
def test_the_first_bytes_are_what_players_know_the_format_by(name):
    start = encoder(name, RATE_HZ).feed(speech()[:FRAME].tobytes())
    marks = {"mp3": b"\xff\xf3", "opus": b"OggS", "flac": b"fLaC", "wav": b"RIFF\xff\xff\xff\xff", "pcm": b"\0\0"}
    assert start.startswith(marks[name])


def test_an_mp3_has_one_rate_from_end_to_end():
    """96 kbit/s, but for the frame of headers: with a varying rate players tell a wrong length of a stream."""
    data = b"".join(encoded("mp3", speech()))
    rates, at = [], 0
    while at + 4 <= len(data):
        assert data[at] == 0xFF and data[at + 1] & 0xE0 == 0xE0
        rates.append(data[at + 2] >> 4)  # MPEG-2 layer III, table 2.4.2.3
        kbits = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)[rates[-1]]
        at += 72 * kbits * 1000 // RATE_HZ + (data[at + 2] >> 1 & 1)
    assert at == len(data) and set(rates[1:]) == {10}
