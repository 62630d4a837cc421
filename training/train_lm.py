"""Train the language model for a given time on the codes of all shards.

  python -m training.train_lm --text train.txt --tokenizer tokenizer.json --shards S --out W --until EPOCH_S

Waits for W/codec_codes.pt (train_codec learn), compiling meanwhile. Saves W/lm.pt, an average of the weights, the
best by validation on shard 0. Each row of a batch is packed with utterances; one in six continues the one before it,
whatever its speaker, so that context and dialogue are trained. Regularisation: dropout, BPE dropout, label smoothing
on codebook 0, corrupted history, and an extra head (not exported) that names the next frame's four phonemes.
"""

import argparse
import pathlib
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import nn

from training.codec import CONFIG as CODEC
from training.codec import Mimi
from training.codes import extract
from training.lm import Model
from training.losses import SYMBOLS
from training.store import FRAME, LABELS, Store
from training.train_codec import DEVICE, Schedule, autocast, log, update

JOIN = 1 / 6  # share of utterances that follow on the one before
VARIANTS = 3  # tokenisations of the text under BPE dropout, used in turn, an epoch each
BPE_DROPOUT = 0.12
LOWER, BARE = 0.08, 0.06  # share of lines in lower case; without the last full stop
CORRUPT = 0.10  # at most this share of a row's history codes is replaced
SMOOTH = 0.05
PHONEME_WEIGHT = 0.3
BINS = CODEC["quantizer"]["bins"]


def ranges(lengths):
    """0..n-1 for each n, joined."""
    return np.arange(lengths.sum()) - np.repeat(lengths.cumsum() - lengths, lengths)


class Rows:
    """Utterances laid end to end: each is its text tokens, its frames, and one EOS row of zeros.

    Per position (on the device): text id; frame: the code row it holds, or -1 for text; target: the code row it
    predicts, or -1. Code row N, after the last, is the EOS frame."""

    def __init__(self, tokenizer, lines, items, rng=None):
        texts = [self.vary(lines[line], rng) for line, *_ in items]
        ids = [e.ids for e in tokenizer.encode_batch([f"[{s}] {t}" for t, (_, s, *_) in zip(texts, items)])]
        n_text, n_frames = np.array([len(x) for x in ids]), np.array([length // FRAME for *_, length in items])
        self.length = n_text + n_frames + 1
        self.start = self.length.cumsum() - self.length
        end, total = int(n_frames.sum()), int(self.length.sum())
        text, frame, target = np.zeros(total, np.int16), np.full(total, -1, np.int32), np.full(total, -1, np.int32)
        text[np.repeat(self.start, n_text) + ranges(n_text)] = np.concatenate(ids)
        where = np.repeat(self.start + n_text, n_frames) + ranges(n_frames)
        frame[where] = np.arange(end)
        target[where - 1] = np.arange(end)
        last = self.start + self.length - 1
        frame[last], target[last - 1] = end, end
        self.text, self.frame, self.target = (torch.from_numpy(x).to(DEVICE) for x in (text, frame, target))

    @staticmethod
    def vary(text, rng):
        if rng is None:
            return text
        r = rng.random()
        return text.lower() if r < LOWER else text.rstrip(".") if r < LOWER + BARE else text

    def batches(self, B, T, rng, join):
        """Endless: (index [B, T] into the flat arrays, segment [B, T], -1 where empty). The last is part empty."""
        while True:
            order = iter(rng.permutation(len(self.start)))
            spare = None
            i = 0
            while i is not None:
                index, segment = np.zeros((B, T), np.int64), np.full((B, T), -1, np.int16)
                for b in range(B):
                    used = count = 0
                    while (i := spare if spare is not None else next(order, None)) is not None:
                        n, spare = self.length[i], None
                        if n > T:
                            continue
                        if used + n > T:
                            spare = i
                            break
                        count += rng.random() >= join
                        index[b, used : used + n] = np.arange(self.start[i], self.start[i] + n)
                        segment[b, used : used + n] = count
                        used += n
                yield index, segment


class Trainee(nn.Module):
    """The model with its losses: codebook 0, codebooks 1.. on M of the frames, and the phonemes of the next frame."""

    def __init__(self, dropout, M):
        super().__init__()
        self.model, self.M = Model(dropout=dropout), M
        self.phonemes = nn.Linear(self.model.config["backbone"]["embed_dim"], LABELS * SYMBOLS)

    def forward(self, text, codes, is_audio, segment, target, labels, chosen):
        """target [B, T, K], -100 where none; labels [B, T, 4]; chosen [M] positions of B*T for the depth decoder."""
        m = self.model
        h = m.hidden(text, codes, is_audio, segment)
        smooth = SMOOTH if self.training else 0.0
        c0 = F.cross_entropy(
            m.codebook0_head(h).float().flatten(0, 1),
            target[..., 0].flatten(),
            ignore_index=-100,
            label_smoothing=smooth,
        )
        heard = F.cross_entropy(self.phonemes(h).float().view(-1, SYMBOLS), labels.flatten(), ignore_index=-100)
        part = target.flatten(0, 1)[chosen]
        logits = m.depth_logits(h.flatten(0, 1)[chosen], part.clamp(min=0)).float()
        rest = F.cross_entropy(logits.flatten(0, 1), part[:, 1:].flatten(), ignore_index=-100)
        return c0, rest, heard


class Data:
    """Codes and labels on the device, gathered into model inputs."""

    def __init__(self, codes, labels):
        self.codes = F.pad(codes, (0, 0, 0, 1))  # row N: the EOS frame
        self.labels = F.pad(labels, (0, 0, 0, 1))

    def inputs(self, rows, index, segment, M, corrupt):
        at, segment = (torch.from_numpy(x).to(DEVICE, non_blocking=True) for x in (index, segment))
        frame, full = rows.frame[at], segment >= 0
        target = torch.where(full, rows.target[at], -1)
        codes = self.codes[frame.clamp(min=0)].long()
        if corrupt:
            rate = torch.rand(len(at), 1, 1, device=DEVICE) * corrupt
            codes = torch.where(torch.rand(codes.shape, device=DEVICE) < rate, torch.randint_like(codes, BINS), codes)
        none = (target < 0)[..., None]
        goal = self.codes[target.clamp(min=0)].long().masked_fill(none, -100)
        labels = self.labels[target.clamp(min=0)].long().masked_fill(none, -100)
        chosen = (torch.rand(at.numel(), device=DEVICE) + (target >= 0).flatten()).topk(M)[1]
        return rows.text[at].long(), codes, frame >= 0, segment, goal, labels, chosen


def producer(variants, B, T, seed, out):
    """Fills the queue with (rows, index, segment), one epoch of each variant in turn; runs in a thread."""
    rng = np.random.default_rng(seed)
    streams = [v.batches(B, T, rng, JOIN) for v in variants]
    per_epoch = [int(v.length.sum() / (0.9 * B * T)) + 1 for v in variants]
    while True:
        for rows, stream, count in zip(variants, streams, per_epoch):
            for _ in range(count):
                out.put((rows, *next(stream)))


def compile_early(trainee, step, a):
    """Two steps on noise, so that compilation happens while the codec still trains; then the weights start afresh."""
    B, T = a.batch, a.length
    K, zeros = trainee.model.K, torch.zeros(B, T, dtype=torch.long, device=DEVICE)
    fake = (
        zeros,
        zeros[..., None].expand(-1, -1, K).contiguous(),
        zeros.bool(),
        zeros.to(torch.int16),
        zeros[..., None].expand(-1, -1, K).contiguous(),
        zeros[..., None].expand(-1, -1, LABELS).contiguous(),
        torch.arange(a.depth_frames, device=DEVICE),
    )
    start = time.time()
    for _ in range(2):
        with autocast():
            sum(step(*fake)).backward()
    trainee.zero_grad(set_to_none=True)
    log(f"compiled in {time.time() - start:.0f} s")


@torch.no_grad()
def validate(trainee, mean, data, batches, M):
    """Losses of the averaged weights `mean` on the fixed batches: codebook 0, the others, phonemes."""
    parameters = [p.data for p in trainee.parameters()]
    current = [p.clone() for p in parameters]
    torch._foreach_copy_(parameters, mean)
    trainee.eval()
    torch.manual_seed(5)
    losses = []
    for batch in batches:
        with autocast():
            losses.append(torch.stack(trainee(*data.inputs(*batch, M, 0.0))))
    trainee.train()
    torch._foreach_copy_(parameters, current)
    return torch.stack(losses).mean(0).tolist()


def gather(a):
    """Waits for the codec's codes, taking in speech meanwhile; returns the stores of training and of validation."""
    stores = [Store(a.shards, DEVICE, hours, held) for hours, held in ((a.hours, False), (1, True))]
    while not (a.out / "codec_codes.pt").exists():
        stores[0].refresh()
        time.sleep(0.5)
    return [s.refresh() for s in stores]


def coded(a, store):
    """The store's codes and labels, by the codec as it is now."""
    codec = Mimi().to(DEVICE).eval()
    codec.load_state_dict(torch.load(a.out / "codec_codes.pt", map_location=DEVICE))
    return Data(*extract(codec, store, autocast))


def layouts(a, items, held_items):
    """The rows of validation, and of training once for each variant of its tokens."""
    lines = [line.split("\t")[-1] for line in a.text.read_text().splitlines()]
    tokenizer = Tokenizer.from_file(str(a.tokenizer))
    held = Rows(tokenizer, lines, held_items)
    tokenizer.model.dropout = BPE_DROPOUT
    return held, [Rows(tokenizer, lines, items, np.random.default_rng(v)) for v in range(VARIANTS)]


def train(a, trainee, step):
    store, held_store = gather(a)
    log(f"extracting {store.hours:.1f} hours, {len(store.items)} utterances")
    with ThreadPoolExecutor(1) as pool:
        laid = pool.submit(layouts, a, store.items, held_store.items)
        held, data = coded(a, held_store), coded(a, store)
        held_rows, variants = laid.result()
    stream = held_rows.batches(a.batch, a.length, np.random.default_rng(2), 0.0)
    fixed = [(held_rows, *next(stream)) for _ in range(a.checks)]
    log(f"{len(variants[0].text)} rows an epoch")
    feed = queue.Queue(8)
    threading.Thread(target=producer, args=(variants, a.batch, a.length, 0, feed), daemon=True).start()

    wide = [p for p in trainee.parameters() if p.dim() > 1]
    narrow = [p for p in trainee.parameters() if p.dim() <= 1]
    optimiser = torch.optim.AdamW(
        [{"params": wide, "weight_decay": 0.05}, {"params": narrow, "weight_decay": 0.0}],
        lr=a.lr,
        betas=(0.9, 0.95),
        fused=DEVICE == "cuda",
    )
    parameters = [p.detach() for p in trainee.parameters()]
    mean, best = [p.clone() for p in parameters], float("inf")
    clock = Schedule(a.until, a.lr, 0.01, [optimiser])

    def check(best):
        c0, rest, heard = validate(trainee, mean, held, fixed, a.depth_frames)
        log(f"validation at {clock.step}: c0 {c0:.4f} c1+ {rest:.4f} phonemes {heard:.4f}")
        if c0 + rest < best:
            names = [n for n, _ in trainee.named_parameters()]
            averaged = {n: p.half() for n, p in zip(names, mean) if n.startswith("model.")}
            torch.save({n.removeprefix("model."): p for n, p in averaged.items()}, a.out / "lm.part")
            (a.out / "lm.part").rename(a.out / "lm.pt")
        return min(best, c0 + rest)

    while clock.advance(a.steps) is not None:
        inputs = data.inputs(*feed.get(), a.depth_frames, CORRUPT)
        with autocast():
            c0, rest, heard = step(*inputs)
        norm = update(optimiser, c0 + rest + PHONEME_WEIGHT * heard, 1.0)
        torch._foreach_lerp_(mean, parameters, 1 - min(0.999, clock.step / (clock.step + 20)))
        if clock.step % a.every == 0:
            epoch = clock.step * a.batch * a.length * 0.9 / len(variants[0].text)
            log(
                f"lm {clock.step} epoch {epoch:.1f} c0 {c0:.3f} c1+ {rest:.3f} phonemes {heard:.3f} norm {norm:.2f} "
                f"{clock.pace():.0f} ms queue {feed.qsize()}"
            )
        if clock.due():
            best = check(best)
    check(best)
    log("language model done", clock.step)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("--text", type=pathlib.Path), p.add_argument("--tokenizer", type=pathlib.Path)
    p.add_argument("--shards", type=pathlib.Path), p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--until", type=float), p.add_argument("--steps", type=int, default=10**9)
    p.add_argument("--batch", type=int, default=40), p.add_argument("--length", type=int, default=384)
    p.add_argument("--depth-frames", type=int, default=3072), p.add_argument("--checks", type=int, default=3)
    p.add_argument("--hours", type=float, default=130), p.add_argument("--lr", type=float, default=2e-3)
    p.add_argument("--dropout", type=float, default=0.1), p.add_argument("--every", type=int, default=250)
    a = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.manual_seed(2)
    trainee = Trainee(a.dropout, a.depth_frames).to(DEVICE)
    step = torch.compile(trainee, dynamic=False) if DEVICE == "cuda" else trainee
    compile_early(trainee, step, a)
    train(a, trainee, step)


if __name__ == "__main__":
    main()
