"""Damaged WAV, FLAC, MP3 and OGG files, decoded in one bounded child: `python mutants.py FIRST COUNT`.

Prints each seed before its file is read, so that the last line of one that died or hung names the file. Ends with
the number of files that were taken and of those that were refused.
"""

import os
import random
import signal
import sys
import tempfile
from pathlib import Path

from misoctl import recording
from protocol import messages as m

WAVS = Path(__file__).parent / "fixtures" / "wavs"
HANG_S = 20


def bases() -> list[list[bytes]]:
    """Whole files of each kind."""
    return [[path.read_bytes() for path in sorted(WAVS.glob(f"*{kind}"))] for kind in (".wav", ".flac", ".mp3", ".ogg")]


def mutant(seed: int, whole: list[list[bytes]]) -> bytes:
    """One file, two in three a WAV and one in four a FLAC, with a few things done to it, half of them to its head."""
    draw = random.Random(seed)
    kind = draw.choices(whole, (8, 3, 0.5, 0.5))[0]
    data = bytearray(draw.choice(kind))
    for _ in range(draw.choice((1, 1, 2, 3, 8))):
        at = draw.randrange(min(100, len(data) + 1) if draw.random() < 0.5 else len(data) + 1)
        change = draw.randrange(6)
        if change == 0:
            data[at : at + 1] = bytes([draw.randrange(256)])
        elif change == 1:  # a size or a rate, made great or small
            data[at : at + 4] = draw.choice([0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF, 0xFFFFFFFE]).to_bytes(
                4, "little"
            )
        elif change == 2:
            del data[at:]
        elif change == 3:
            data[at:at] = draw.randbytes(draw.randint(1, 64))
        elif change == 4:
            del data[at : at + draw.randint(1, 64)]
        else:
            other = draw.choice(kind)
            data[at:at] = other[: draw.randint(0, 200)]
    return bytes(data)


def decode(data: bytes) -> bool:
    """Whether it is taken. What is taken is what may be sent."""
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        try:
            taken = recording.read(file.fileno())
        except recording.Unusable as unusable:
            assert str(unusable).isprintable()
            return False
    assert m.Learn.limits()["clip"].low <= len(taken.pcm) <= m.MAX_CLIP_BYTES and len(taken.pcm) % 2 == 0
    return True


def main(first: int, count: int) -> None:
    recording.limit_resources(cpu_s=3600)
    whole, taken = bases(), 0
    for seed in range(first, first + count):
        print(seed, flush=True)
        signal.alarm(HANG_S)  # nobody catches it: a hang ends here, in C too
        taken += decode(mutant(seed, whole))
    os.write(1, f"{taken} {count - taken}\n".encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
