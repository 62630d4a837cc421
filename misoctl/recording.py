"""A recording to what a voice is learned from. voicefile.py runs it as a child: what decodes a file may crash.

Reads the file that is its standard input. Writes one line of JSON, {"refused": why} or {"warnings": [...]}, then
mono 24 kHz s16le.
"""

import io
import json
import os
import resource
import stat
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import soundfile

from misoctl.resample import resample
from protocol import messages as m

RATES_HZ = (8_000, 192_000)
MAX_CHANNELS = 8
FRAME_SAMPLES = 1920  # of the codec: what `learn` takes at least
SHORT_S, LONGEST_S = 1.0, 30.0
MAX_READ_S = 40.0  # with the silence that is trimmed
BLOCK_FRAMES = 1 << 16

MEMORY_BYTES = 1 << 29  # of addresses; 30 s of 8 channels at 192 kHz take 212 MB of them, and 96 MB of memory
CPU_S = 20
MAX_ANSWER_BYTES = 2 << 20

SILENCE = 10 ** (-60 / 20)  # a clip that nowhere is louder is silent; of full scale
FLOOR = 10 ** (-50 / 20)  # what is trimmed from both ends is softer; of the clip's own peak
MARGIN_SAMPLES = m.CLIP_HZ // 10  # of it stay, for breath and echo
ABSURD = 8.0  # full scales: a float file of integers, or of rubbish
# Full scale of 8 bits and of mu-law is 0.98. Speech that was turned up until 5 % of it lies flat there is distorted
# throughout; half a percent can be heard.
FULL_SCALE, FLAT = 0.98, 2e-5
CLIPPED_WARNED, CLIPPED_REFUSED = 0.005, 0.05
STREAM_BYTES = 0x7FFF0000  # sizes from here on stand for "not known": ffmpeg, sox and arecord each have their own
SLACK_BYTES = 64  # writers that count the header in


class Unusable(Exception):
    """No voice can be learned from this. One line, without the file's name."""


@dataclass(frozen=True)
class Recording:
    pcm: bytes  # mono 24 kHz s16le
    warnings: list[str]


def read(descriptor: int) -> Recording:
    """Decode, downmix, resample, trim. Raises Unusable."""
    with open(descriptor, "rb", buffering=0, closefd=False) as file:  # libsndfile reads on from where it is
        _check_whole(file)
        file.seek(0)
        sound, rate_hz, clipped = _decode(file)
    sound = _trim(resample(sound, rate_hz, m.CLIP_HZ))
    seconds = len(sound) / m.CLIP_HZ
    if len(sound) < FRAME_SAMPLES:
        raise Unusable(f"it has {seconds:.3f} s of sound; a voice wants 5 to 15 s")
    if seconds > LONGEST_S:
        raise _too_long(f"{seconds:.1f} s")
    if clipped > CLIPPED_REFUSED:
        raise Unusable(f"{clipped:.0%} of it is clipped, over {CLIPPED_REFUSED:.0%}: record it again with less gain")
    warnings = [f"it has only {seconds:.2f} s of sound; a voice wants 5 to 15 s"] if seconds < SHORT_S else []
    if clipped > CLIPPED_WARNED:
        warnings.append(f"{clipped:.1%} of it is clipped, and the voice will sound so: record it with less gain")
    sound = sound / max(1.0, np.abs(sound).max())  # floats and the filter may go beyond full scale
    return Recording(np.clip(np.round(sound * 32768), -32768, 32767).astype("<i2").tobytes(), warnings)


def _too_long(length: str) -> Unusable:
    return Unusable(f"it is {length} long, over {LONGEST_S:g} s: cut it with `ffmpeg -i CLIP -ss 0 -t 15 short.wav`")


def _check_whole(file: io.FileIO) -> None:
    """libsndfile takes a WAV that was cut short for a shorter one; half a download is not what was meant."""
    size = os.fstat(file.fileno()).st_size
    head, order, long_bytes, at = file.read(12), "<", None, 12
    if head[:4] not in (b"RIFF", b"RIFX", b"RF64") or head[8:] != b"WAVE":
        return
    if head[:4] == b"RIFX":
        order = ">"
    for _ in range(1000):  # chunks, each of which may be empty
        file.seek(at)
        chunk = file.read(24)
        if len(chunk) < 8:
            return  # no data: libsndfile says so
        name, length = struct.unpack(f"{order}4sI", chunk[:8])
        if name == b"ds64" and len(chunk) == 24:  # of RF64: the sizes that do not fit into 32 bits
            long_bytes = struct.unpack("<Q", chunk[16:])[0]
        if name == b"data":
            declared = long_bytes if long_bytes is not None and length == 0xFFFFFFFF else length
            there = size - at - 8
            if declared - there > SLACK_BYTES and (long_bytes is not None or declared < STREAM_BYTES):
                raise Unusable(f"it was cut short: {there:,} bytes of sound are there of {declared:,}")
            return
        at += 8 + length + length % 2


def _decode(file: io.FileIO) -> tuple[np.ndarray, int, float]:
    """Mono (n,) float32 at the file's rate, that rate, and the share that is clipped, of the worst channel."""
    try:
        with soundfile.SoundFile(file.fileno(), closefd=False) as sound:
            rate_hz, channels, promised = sound.samplerate, sound.channels, sound.frames
            low, high = RATES_HZ
            if not low <= rate_hz <= high:
                raise Unusable(f"its rate of {rate_hz:,} Hz is not within {low:,} to {high:,}")
            if channels > MAX_CHANNELS:
                raise Unusable(f"it has {channels} channels, over {MAX_CHANNELS}")
            mono, flat = [np.zeros(0, np.float32)], np.zeros(channels, np.int64)
            for block in _blocks(sound, round(MAX_READ_S * rate_hz)):
                flat += _flat(block)
                mono.append(block.mean(axis=1, dtype=np.float32))
    except soundfile.LibsndfileError as error:
        raise Unusable(f"it cannot be decoded: {error.error_string.rstrip('.')}") from None
    whole = np.concatenate(mono)
    if len(whole) < min(promised, MAX_READ_S * rate_hz):
        raise Unusable(f"it was cut short, or is damaged: {len(whole):,} samples are there of {promised:,}")
    return whole, rate_hz, float(flat.max() / max(1, len(whole)))


def _blocks(sound: soundfile.SoundFile, most_frames: int) -> Iterator[np.ndarray]:
    """(n, channels) float32, finite and no louder than a recording can be."""
    frames = 0
    while len(block := sound.read(BLOCK_FRAMES, dtype="float32", always_2d=True)):
        frames += len(block)
        if frames > most_frames:
            raise _too_long(f"more than {MAX_READ_S:g} s")
        if not np.isfinite(block).all():
            raise Unusable("it has samples that are no number (NaN or infinite)")
        if (peak := np.abs(block).max()) > ABSURD:
            raise Unusable(f"its samples reach {peak:.3g} times full scale: convert it to 16 bits")
        yield block


def _flat(block: np.ndarray) -> np.ndarray:
    """How many samples of each channel lie at full scale in runs of three and more that do not move: (channels,)."""
    full = np.abs(block) >= FULL_SCALE
    pairs = full[1:] & full[:-1] & (np.abs(np.diff(block, axis=0)) < FLAT)
    runs = np.zeros_like(full)
    for shift in range(3):
        runs[shift : shift + max(0, len(block) - 2)] |= pairs[1:] & pairs[:-1]
    return runs.sum(axis=0)


def _trim(sound: np.ndarray) -> np.ndarray:
    """Without the silence before and after. Raises Unusable where there is nothing else. A DC offset is no sound."""
    level = np.abs(sound - sound.mean()) if len(sound) else sound
    peak = level.max(initial=0.0)
    if len(sound) and peak < SILENCE:
        raise Unusable("it is silent")
    heard = np.flatnonzero(level >= peak * FLOOR)
    if not len(heard):
        raise Unusable("it has no sound in it")
    return sound[max(0, heard[0] - MARGIN_SAMPLES) : heard[-1] + 1 + MARGIN_SAMPLES]


def limit_resources(cpu_s: int = CPU_S) -> None:
    """What a file made to do harm can take of this machine."""
    limits = {"RLIMIT_CPU": cpu_s, "RLIMIT_FSIZE": MAX_ANSWER_BYTES, "RLIMIT_CORE": 0}
    if sys.platform != "darwin":  # which has the number and not the limit
        limits["RLIMIT_AS"] = MEMORY_BYTES
    for name, most in limits.items():
        number = getattr(resource, name)
        hard = resource.getrlimit(number)[1]
        least = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(number, (least, least))


def main() -> None:
    if not stat.S_ISREG(os.fstat(0).st_mode):
        raise SystemExit("this is run by misoctl learn, on a regular file")
    limit_resources()
    try:
        recording = read(0)
        answer, pcm = {"warnings": recording.warnings}, recording.pcm
    except Unusable as unusable:
        answer, pcm = {"refused": str(unusable)}, b""
    sys.stdout.buffer.write(json.dumps(answer).encode() + b"\n" + pcm)


if __name__ == "__main__":
    main()
