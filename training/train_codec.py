"""Train the codec in two stages, each for a given time.

  python -m training.train_codec learn  --shards S --out W --until EPOCH_S   # W/codec_codes.pt: fixes the codes
  python -m training.train_codec polish --shards S --out W --until EPOCH_S   # W/codec.pt: decoder only, adversarial

learn: spectral losses, commitment, a Listener's judgement, and phoneme cross-entropy on codebook 0. The quantiser
joins after BYPASS of the time. polish keeps encoder and codebooks as they are, so that the language model can train
at the same time, and saves an average of the weights, the best by validation.
"""

import argparse
import math
import os
import pathlib
import time

import torch
import torch.nn.functional as F
from torch import nn

from training.codec import CONFIG, Mimi
from training.losses import SYMBOLS, Adversary, Listener, SpectralLoss
from training.store import FRAME, LABELS, Store

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
BYPASS = 0.15  # share of `learn` before the codebooks
LEAD_FRAMES = 4  # start of each polished crop that only warms the decoder's state
CHECK_S = 45  # seconds between validations
WARM_STEPS = 300


def log(*a):
    print(time.strftime("[%H:%M:%S]"), *a, flush=True)


def autocast():
    return torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda")


class Schedule:
    """Learning rate by the clock: linear warm-up, then a cosine to `floor` at the time `until` (epoch seconds)."""

    def __init__(self, until, peak, floor, optimisers):
        self.start, self.until, self.peak, self.floor, self.optimisers = time.time(), until, peak, floor, optimisers
        self.step, self.checked = 0, time.time()

    def advance(self, max_steps):
        """Set the rate and count a step; returns the share of the time spent, or None at the end."""
        share = (time.time() - self.start) / (self.until - self.start)
        if share >= 1 or self.step >= max_steps:
            return None
        wave = self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * share))
        for optimiser in self.optimisers:
            for group in optimiser.param_groups:
                group["lr"] = self.peak * wave * min(1, (self.step + 1) / WARM_STEPS)
        self.step += 1
        return share

    def pace(self):
        """Milliseconds a step, so far."""
        return (time.time() - self.start) / self.step * 1e3

    def due(self):
        if time.time() - self.checked < CHECK_S:
            return False
        self.checked = time.time()
        return True


def update(optimiser, loss, limit):
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    parameters = [p for g in optimiser.param_groups for p in g["params"] if p.requires_grad]
    norm = nn.utils.clip_grad_norm_(parameters, limit)
    optimiser.step()
    return norm


def adamw(parameters, lr):
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.8, 0.99), weight_decay=1e-3, fused=DEVICE == "cuda")


def save(model, path):
    torch.save(model.state_dict(), f"{path}.part")
    os.rename(f"{path}.part", path)


@torch.no_grad()
def validate(model, crops, spectral, listener):
    """Mean spectral loss and Listener cross-entropy over fixed crops, through the codes."""
    model.eval()
    losses = []
    for x, labels in crops:
        with autocast():
            z = model.latent(x)
        codes = model.quantizer(z.float())[0]
        with autocast():
            y = model.decode(codes).float()
            heard = listener.learn(y, labels)
        losses.append(torch.stack([spectral(y, x), heard]))
    model.train()
    return torch.stack(losses).mean(0).tolist()


@torch.no_grad()
def rarest_first(model, store, batch, rounds):
    """Swap the least used code of each book with code 0: an all-zero frame, the end, hardly ever occurs in speech."""
    bins = model.config["quantizer"]["bins"]
    counts = 0
    for _ in range(rounds):
        codes = model.encode(store.crops(batch, 48)[0])
        counts = counts + torch.stack([torch.bincount(c.flatten(), minlength=bins) for c in codes.unbind(1)])
    for book, count in zip(model.quantizer.codebooks(), counts):
        order = torch.arange(bins, device=count.device)
        rare = int(count.argmin())
        order[0], order[rare] = rare, 0
        book.embedding_sum.copy_(book.embedding_sum[order])
        book.cluster_usage.copy_(book.cluster_usage[order])
    share = counts / counts.sum(1, keepdim=True)
    log("perplexity", [round(x) for x in (-(share * (share + 1e-9).log()).sum(1)).exp().tolist()])


def learn(a, store, crops):
    model, listener, spectral = Mimi().to(DEVICE), Listener().to(DEVICE), SpectralLoss().to(DEVICE)
    phonemes = nn.Linear(CONFIG["quantizer"]["dimension"], LABELS * SYMBOLS).to(DEVICE)
    optimiser = adamw([*model.parameters(), *phonemes.parameters()], a.lr)
    listening = adamw(listener.parameters(), a.lr)
    clock = Schedule(a.until, a.lr, 0.03, [optimiser, listening])
    while (share := clock.advance(a.steps)) is not None:
        x, labels = store.crops(a.batch, a.frames)
        with autocast():
            heard = listener.learn(x, labels)
        update(listening, heard, 5.0)
        with autocast():
            z = model.latent(x)
        if share < BYPASS and a.steps > 10:
            (latent, first), commit = model.quantizer.unquantised(z.float()), torch.zeros((), device=DEVICE)
        else:
            _, latent, commit, first = model.quantizer(z.float(), learn=True)
        with autocast():
            y = model.render(latent).float()
            judged = listener.judge(y, x, labels)
        said = F.cross_entropy(phonemes(first.transpose(1, 2)).view(-1, SYMBOLS), labels.flatten())
        loss = spectral(y, x) + F.l1_loss(y, x) + 0.25 * commit + 0.15 * said + a.listen * judged
        norm = update(optimiser, loss, 5.0)
        if clock.step % a.every == 0:
            log(
                f"learn {clock.step} {share:.2f} hours {store.hours:.1f} loss {loss:.3f} commit {commit:.4f} "
                f"said {said:.3f} heard {heard:.3f} judged {judged:.3f} norm {norm:.2f} {clock.pace():.0f} ms"
            )
        if clock.due():
            store.refresh()
            log("validation: spectral, heard", validate(model, crops, spectral, listener))
    rarest_first(model, store, a.batch, 20)
    log("final validation: spectral, heard", validate(model, crops, spectral, listener), "steps", clock.step)
    save(listener, a.out / "listener.pt")
    save(model, a.out / "codec_codes.pt")


def polish(a, store, crops):
    model, listener, spectral, adversary = (
        Mimi().to(DEVICE),
        Listener().to(DEVICE),
        SpectralLoss().to(DEVICE),
        Adversary().to(DEVICE),
    )
    model.load_state_dict(torch.load(a.out / "codec_codes.pt", map_location=DEVICE))
    listener.load_state_dict(torch.load(a.out / "listener.pt", map_location=DEVICE))
    model.requires_grad_(False)
    q = model.quantizer
    parts = [model.upsample, model.decoder_transformer, model.decoder, q.rvq_first.output_proj, q.rvq_rest.output_proj]
    tuned = [p.requires_grad_(True) for part in parts for p in part.parameters()]
    mean, best = [p.detach().clone() for p in tuned], float("inf")
    optimiser, opposing = adamw(tuned, a.lr), adamw(adversary.parameters(), a.lr)
    clock = Schedule(a.until, a.lr, 0.03, [optimiser, opposing])

    def check(best):
        """Validate the averaged weights; save them if they are the best so far."""
        current = [p.detach().clone() for p in tuned]
        torch._foreach_copy_([p.data for p in tuned], mean)
        loss, heard = validate(model, crops, spectral, listener)
        log(f"validation: spectral {loss:.4f} heard {heard:.4f}")
        if loss + 0.2 * heard < best:
            save(model, a.out / "codec.pt")
        torch._foreach_copy_([p.data for p in tuned], current)
        return min(best, loss + 0.2 * heard)

    while (share := clock.advance(a.steps)) is not None:
        x, labels = store.crops(a.batch, a.frames)
        with torch.no_grad(), autocast():
            z = model.latent(x)
        with torch.no_grad():
            codes = q(z.float())[0]
        with autocast():
            y = model.decode(codes).float()[..., LEAD_FRAMES * FRAME :]
        x, labels = x[..., LEAD_FRAMES * FRAME :], labels[:, LEAD_FRAMES:]
        with autocast():
            doubt = adversary.learn(y, x)
        update(opposing, doubt, 10.0)
        with autocast():
            (fool, match), judged = adversary.judge(y, x), listener.judge(y, x, labels)
        loss = 8 * spectral(y, x) + min(1.0, clock.step / 1000) * (fool + 2 * match) + 8 * a.listen * judged
        update(optimiser, loss, 50.0)
        torch._foreach_lerp_(mean, [p.detach() for p in tuned], 1 - min(0.999, clock.step / (clock.step + 20)))
        if clock.step % a.every == 0:
            log(
                f"polish {clock.step} {share:.2f} loss {loss:.3f} fool {fool:.3f} match {match:.3f} doubt {doubt:.3f} "
                f"judged {judged:.3f} {clock.pace():.0f} ms"
            )
        if clock.due():
            best = check(best)
    check(best)
    log("polished", clock.step)


def wait_for(path):
    while not path.exists():
        time.sleep(0.5)


def main():
    p = argparse.ArgumentParser()
    p.add_argument("stage", choices=("learn", "polish"))
    p.add_argument("--shards", type=pathlib.Path), p.add_argument("--out", type=pathlib.Path)
    p.add_argument("--until", type=float), p.add_argument("--steps", type=int, default=10**9)
    p.add_argument("--batch", type=int, default=24), p.add_argument("--frames", type=int, default=48)
    p.add_argument("--hours", type=float, default=60), p.add_argument("--need", type=float, default=0.3)
    p.add_argument("--lr", type=float, default=8e-4), p.add_argument("--listen", type=float, default=0.1)
    p.add_argument("--every", type=int, default=250)
    a = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(1)
    if a.stage == "polish":
        wait_for(a.out / "codec_codes.pt")
    wait_for(a.shards / "0000.npz")
    held = Store(a.shards, DEVICE, 1, validation=True).refresh()
    generator = torch.Generator(DEVICE).manual_seed(0)
    crops = [held.crops(min(a.batch, 16), a.frames, generator) for _ in range(4)]
    store = Store(a.shards, DEVICE, a.hours)
    while store.refresh().hours < a.need:
        time.sleep(0.5)
    log(a.stage, "starts,", f"{store.hours:.2f} hours")
    {"learn": learn, "polish": polish}[a.stage](a, store, crops)


if __name__ == "__main__":
    main()
