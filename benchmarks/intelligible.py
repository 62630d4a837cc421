"""Is it understood? Speak each line of a file with `misoctl say` at its defaults and have a recogniser write it down.

    pip install 'miso-speech[eval]'
    python -m benchmarks.intelligible --recogniser DIR lines.txt [--seeds 3] [--keep DIR]

DIR is a faster-whisper (CTranslate2) model; numbers here and in MODEL_CARD.md are by whisper base, int8, beam 5.
Both sides are lower-cased, digits written out, and all but letters and apostrophes dropped before they are compared.
"""

import argparse
import json
import re
import shutil
import statistics
import subprocess
import tempfile
import wave
from dataclasses import dataclass
from pathlib import Path

import jiwer
import numpy as np
from faster_whisper import WhisperModel

from misod.text import normalise

RECOGNISER_HZ = 16000
QUIET_S = (0.1, 0.5)  # before and after: a recogniser stumbles over speech that fills the whole clip


@dataclass(frozen=True)
class Heard:
    said: str
    heard: str
    receipt: dict


def plain(text: str) -> str:
    words = re.sub(r"[^a-z' ]", " ", normalise(text).lower().replace("-", " ")).split()
    return " ".join(words).replace("o'clock", "o clock")


def speak(line: str, seed: int, speaker: int, path: Path) -> dict:
    how = ["--seed", str(seed), "--speaker", str(speaker)]
    command = [shutil.which("misoctl"), "say", "-q", "--json", *how, "-o", str(path), "--", line]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def listen(recogniser: WhisperModel, path: Path) -> str:
    with wave.open(str(path)) as file:
        pcm = np.frombuffer(file.readframes(file.getnframes()), "<i2") / np.float32(32768)
        return hear(recogniser, pcm, file.getframerate())


def hear(recogniser: WhisperModel, pcm: np.ndarray, rate_hz: int) -> str:
    """What the recogniser writes down of pcm (n,) float."""
    times_s = np.arange(int(len(pcm) * RECOGNISER_HZ / rate_hz)) / RECOGNISER_HZ
    pcm = np.interp(times_s, np.arange(len(pcm)) / rate_hz, _low_pass(pcm, rate_hz)).astype(np.float32)
    pcm = np.pad(pcm, [int(s * RECOGNISER_HZ) for s in QUIET_S])
    segments, _ = recogniser.transcribe(
        pcm,
        language="en",
        beam_size=5,
        temperature=0.0,
        without_timestamps=True,
        condition_on_previous_text=False,
    )
    return " ".join(segment.text for segment in segments)


def _low_pass(pcm: np.ndarray, rate_hz: int) -> np.ndarray:
    """Nothing above the recogniser's Nyquist frequency, so that interpolation cannot fold it back."""
    spectrum = np.fft.rfft(pcm)
    spectrum[int(len(pcm) * 0.95 * RECOGNISER_HZ / 2 / rate_hz) :] = 0
    return np.fft.irfft(spectrum, len(pcm))


def report(name: str, results: list[Heard]) -> None:
    said, heard = [plain(r.said) for r in results], [plain(r.heard) or "-" for r in results]
    for r, a, b in zip(results, said, heard, strict=True):
        if a != b:
            print(f"  {jiwer.wer(a, b):.2f}  {a}\n        {b}   (seed {r.receipt['seed']})")
    last = sum(a.split()[-1] in b.split()[-2:] for a, b in zip(said, heard, strict=True))
    rtf = statistics.median(r.receipt["rtf"] for r in results)
    ttfa_ms = statistics.median(r.receipt["ttfa_ms"] for r in results)
    ends = {end: sum(r.receipt["end"] == end for r in results) for end in {r.receipt["end"] for r in results}}
    print(
        f"{name}: {len(results)} utterances, WER {jiwer.wer(said, heard):.1%}, CER {jiwer.cer(said, heard):.1%}, "
        f"last word {last / len(results):.0%}, ends {ends}, median rtf {rtf:.2f}, median ttfa {ttfa_ms:.0f} ms"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="+", type=Path, help="one sentence a line")
    parser.add_argument("--recogniser", required=True, help="a faster-whisper model directory")
    parser.add_argument("--seeds", type=int, default=1, help="how often each line is spoken")
    parser.add_argument("--speaker", type=int, default=0)
    parser.add_argument("--keep", type=Path, help="keep the WAVs here")
    options = parser.parse_args()
    recogniser = WhisperModel(options.recogniser, device="cpu", compute_type="int8", cpu_threads=2)
    with tempfile.TemporaryDirectory() as scratch:
        directory = options.keep or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        for file in options.files:
            results = []
            lines = [line for line in file.read_text().splitlines() if line.strip()]
            for i, (line, seed) in enumerate((line, seed) for line in lines for seed in range(options.seeds)):
                path = directory / f"{file.stem}-{i:03}.wav"
                receipt = speak(line, seed, options.speaker, path)
                results.append(Heard(line, listen(recogniser, path), receipt))
            report(file.stem, results)


if __name__ == "__main__":
    main()
