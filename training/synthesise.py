"""Read the training lines with the teacher's two voices and write shards (store.py).

  python -m training.synthesise --text text.npz --voices voices.npz --weights A B --out shards --hours 90

Line i is read by speaker i % 2. A shard holds CHUNK lines of all lengths; inside it batches are sorted by length.
Run again, it goes on after the last shard.
"""

import argparse
import pathlib
import time

import numpy as np
import torch

from training.store import FRAME, LABEL, RATE, write_shard
from training.teacher import HOP, load, synthesize, voice_rows

VOICES = ("jf_gongitsune", "jm_kumo")  # speakers 0 and 1
CHUNK = 512  # lines a shard: about half an hour
SYMBOLS = 20000  # symbols a batch, padding included
RMS = 0.08  # level of the speech, both voices alike
LEAD_S, TAIL_S = 0.06, 0.16  # silence kept before and after the speech
LAG = 2  # teacher frames by which its durations run behind its sound (read off energy, both voices)
STRESS = (156, 157)  # Kokoro's ids of the two stress marks: they count as the symbol after them


def merge_stress(ids):
    """The symbol each entry of an item counts as: a stress mark counts as the sound it announces."""
    out = [0, *ids, 0]
    for i in range(len(out) - 2, -1, -1):
        if out[i] in STRESS:
            out[i] = out[i + 1]
    return out


def finish(wav, dur, symbols):
    """wav [B, L], dur [B, S], symbols [B, S] -> per item: audio int16 and labels uint8, trimmed, whole frames.

    The end silences are cut to LEAD_S and TAIL_S, the level set to RMS, the length padded to 1,920 samples."""
    L = wav.shape[1]
    t = torch.arange(L, device=wav.device)
    loud = wav.abs() > 0.012
    first = torch.where(loud, t, L).amin(1) - int(LEAD_S * RATE)
    silent = torch.where(loud, t, 0).amax(1)  # the last sound: what follows is labelled 0, as the end pads are
    last = silent + int(TAIL_S * RATE)
    first = first.clamp(min=0) // LABEL * LABEL
    frames = ((last.clamp(max=L) - first).clamp(min=FRAME) + FRAME - 1) // FRAME
    size = int(frames.max()) * FRAME
    where = first[:, None] + torch.arange(size, device=wav.device)
    inside = (where < L) & (torch.arange(size, device=wav.device) < (frames * FRAME)[:, None])
    wav = wav.gather(1, where.clamp(max=L - 1)) * inside
    speech = wav.abs() > 0.012
    level = ((wav * speech).square().sum(1) / speech.sum(1).clamp(min=1)).sqrt()
    gain = torch.minimum(RMS / level.clamp(min=1e-4), 0.95 / wav.abs().amax(1).clamp(min=1e-4))
    audio = (wav * gain[:, None] * 32767).round().to(torch.int16).cpu().numpy()
    middle = where[:, LABEL // 2 :: LABEL].contiguous()
    which = torch.searchsorted(dur.cumsum(1).contiguous(), middle // HOP + LAG, right=True).clamp(max=dur.shape[1] - 1)
    labels = (symbols.gather(1, which) * (middle <= silent[:, None])).to(torch.uint8).cpu().numpy()
    return [(audio[b, : n * FRAME], labels[b, : n * FRAME // LABEL]) for b, n in enumerate(frames.tolist())]


def batches(ids, order):
    """Lists of line numbers of near-equal length, each at most SYMBOLS symbols once padded."""
    batch = []
    for line in sorted(order, key=lambda i: len(ids[i])):
        if batch and (len(batch) + 1) * (len(ids[line]) + 12) > SYMBOLS:
            yield batch
            batch = []
        batch.append(line)
    yield batch


def read_lines(model, voices, ids, order, amp):
    """[(line, speaker, audio, labels)] of the lines in order."""
    out = []
    device = next(model.parameters()).device
    for batch in batches(ids, order):
        rows = [ids[i] for i in batch]
        style = torch.stack([voice_rows(voices[VOICES[i % 2]], [x])[0] for i, x in zip(batch, rows)])
        wav, dur = synthesize(model, rows, style, amp=amp)
        symbols = torch.zeros(dur.shape, dtype=torch.long)
        for b, x in enumerate(rows):
            symbols[b, : len(x) + 2] = torch.tensor(merge_stress(x))
        out += [(i, i % 2, *x) for i, x in zip(batch, finish(wav, dur, symbols.to(device)))]
    return out


def load_ids(path):
    text = np.load(path)
    return [x.tolist() for x in np.split(text["ids"], text["ends"][:-1])]


def main():
    p = argparse.ArgumentParser()
    (
        p.add_argument("--text"),
        p.add_argument("--voices"),
        p.add_argument("--out"),
        p.add_argument("--weights", nargs="+"),
    )
    (
        p.add_argument("--hours", type=float),
        p.add_argument("--until", type=float, default=float("inf"), help="epoch seconds"),
    )
    p.add_argument("--chunk", type=int, default=CHUNK)
    a = p.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(0)
    ids, voices = load_ids(a.text), np.load(a.voices)
    model = load(a.weights, device)
    pathlib.Path(a.out).mkdir(parents=True, exist_ok=True)
    start, hours = time.time(), 0.0
    for number, at in enumerate(range(0, len(ids), a.chunk)):
        if hours >= a.hours or time.time() > a.until:
            break
        if (pathlib.Path(a.out) / f"{number:04d}.npz").exists():  # an earlier run's
            continue
        items = read_lines(
            model, voices, ids, range(at, min(at + a.chunk, len(ids))), torch.float16 if device == "cuda" else None
        )
        np.random.default_rng(number).shuffle(items)
        ends = np.cumsum([len(x[2]) for x in items])
        index = np.array([(i, s, end - len(w), len(w)) for (i, s, w, _), end in zip(items, ends)], np.int32)
        write_shard(a.out, number, np.concatenate([x[2] for x in items]), np.concatenate([x[3] for x in items]), index)
        hours += ends[-1] / RATE / 3600
        print(f"shard {number} hours {hours:.2f} speed {hours * 3600 / (time.time() - start):.0f}x", flush=True)


if __name__ == "__main__":
    main()
