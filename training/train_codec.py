"""Train the codec in two stages, each for a given time.

  python -m training.train_codec learn  --shards S --out W --until EPOCH_S   # W/codec_codes.pt: fixes the codes
  python -m training.train_codec polish --shards S --out W --until EPOCH_S   # W/codec.pt: decoder only, adversarial

learn: spectral losses, commitment, a Listener's judgement, and phoneme cross-entropy on codebook 0. The quantiser
joins after BYPASS of the time, an adversary after ADVERSE. polish keeps encoder and codebooks as they are, so that the
language model can train at the same time, and saves an average of the weights, the best by validation.
"""

import argparse
import functools
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
BYPASS, ADVERSE = 0.1, 0.45  # shares of `learn` before the codebooks, before the adversary
RAMP = 1000  # steps in which the adversary's share of the loss comes up
WARM_CALLS = 5  # of a step before it becomes a graph
LEAD_FRAMES = 4  # start of each polished crop that only warms the decoder's state
CHECK_S = 45  # seconds between validations
WARM_STEPS = 300


def log(*a):
    print(time.strftime("[%H:%M:%S]"), *a, flush=True)


def autocast():
    return torch.autocast(DEVICE, torch.bfloat16, enabled=DEVICE == "cuda", cache_enabled=False)


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
                rate = self.peak * wave * min(1, (self.step + 1) / WARM_STEPS)
                if torch.is_tensor(group["lr"]):  # a graph reads it where it lies
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = rate
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


class Replayed:
    """A whole training step as one CUDA graph: it is thousands of small kernels, which the GPU waits for one by one.

    `step(*tensors)` -> tensors to look at, of fixed shapes, never waiting for the GPU. The first WARM_CALLS run as they
    are, and on a CPU all do."""

    def __init__(self, step):
        self.step, self.calls, self.graph = step, 0, None

    def __call__(self, *inputs):
        if self.graph is None:
            self.calls += 1
            if DEVICE == "cpu" or self.calls <= WARM_CALLS:
                return self.step(*inputs)
            self.inputs, self.graph = [x.clone() for x in inputs], torch.cuda.CUDAGraph()
            torch.cuda.synchronize()
            with torch.cuda.graph(self.graph, stream=torch.cuda.current_stream()):
                self.figures = self.step(*self.inputs)
        for held, new in zip(self.inputs, inputs):
            held.copy_(new)
        self.graph.replay()
        return self.figures


def update(optimiser, loss, limit):
    optimiser.zero_grad(set_to_none=True)
    loss.backward()
    parameters = [p for g in optimiser.param_groups for p in g["params"] if p.requires_grad]
    norm = nn.utils.clip_grad_norm_(parameters, limit)
    optimiser.step()
    return norm


def adamw(parameters, lr):
    gpu = DEVICE == "cuda"
    lr = torch.tensor(lr, device=DEVICE) if gpu else lr
    return torch.optim.AdamW(parameters, lr=lr, betas=(0.8, 0.99), weight_decay=1e-3, fused=gpu, capturable=gpu)


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


class Learning:
    """Stage one: encoder, codebooks and decoder, the Listener, and in the end the adversary."""

    def __init__(self, a):
        self.model, self.listener, self.spectral = Mimi().to(DEVICE), Listener().to(DEVICE), SpectralLoss().to(DEVICE)
        self.adversary, self.listen = Adversary().to(DEVICE), a.listen
        self.phonemes = nn.Linear(CONFIG["quantizer"]["dimension"], LABELS * SYMBOLS).to(DEVICE)
        self.optimiser = adamw([*self.model.parameters(), *self.phonemes.parameters()], a.lr)
        self.listening = adamw(self.listener.parameters(), a.lr)
        self.opposing = adamw(self.adversary.parameters(), a.lr)
        self.optimisers = [self.optimiser, self.listening, self.opposing]

    def step(self, x, labels, ramp, quantised, adverse):
        """One update -> loss, commit, said, heard, judged, fool, match, doubt, norm."""
        with autocast():
            heard = self.listener.learn(x, labels)
        update(self.listening, heard, 5.0)
        with autocast():
            z = self.model.latent(x)
        none = fool = match = doubt = torch.zeros((), device=DEVICE)
        if quantised:
            _, latent, commit, first = self.model.quantizer(z.float(), learn=True)
        else:
            (latent, first), commit = self.model.quantizer.unquantised(z.float()), none
        with autocast():
            y = self.model.render(latent).float()
            judged = self.listener.judge(y, x, labels)
        if adverse:
            with autocast():
                doubt = self.adversary.learn(y, x)
            update(self.opposing, doubt, 10.0)
            with autocast():
                fool, match = self.adversary.judge(y, x)
        said = F.cross_entropy(self.phonemes(first.transpose(1, 2)).view(-1, SYMBOLS), labels.flatten())
        loss = self.spectral(y, x) + F.l1_loss(y, x) + 0.25 * commit + 0.15 * said + self.listen * judged
        norm = update(self.optimiser, loss + ramp * (fool + 2 * match) / 8, 5.0)
        return torch.stack([x.detach() for x in (loss, commit, said, heard, judged, fool, match, doubt, norm)])


NAMES = ("loss", "commit", "said", "heard", "judged", "fool", "match", "doubt", "norm")


def tell(what, clock, share, names, figures):
    figures = " ".join(f"{name} {x:.3f}" for name, x in zip(names, figures.tolist()))
    log(f"{what} {clock.step} {share:.2f} {figures} {clock.pace():.0f} ms")


def learn(a, store, crops):
    stage = Learning(a)
    clock = Schedule(a.until, a.lr, 0.03, stage.optimisers)
    phases = {
        key: Replayed(functools.partial(stage.step, quantised=key[0], adverse=key[1]))
        for key in ((False, False), (True, False), (True, True))
    }
    adverse_since = None
    while (share := clock.advance(a.steps)) is not None:
        if share >= ADVERSE and adverse_since is None:
            adverse_since = clock.step
        ramp = 0.0 if adverse_since is None else min(1.0, (clock.step - adverse_since) / RAMP)
        phase = phases[share >= BYPASS, share >= ADVERSE]
        figures = phase(*store.crops(a.batch, a.frames), torch.tensor(ramp, device=DEVICE))
        if clock.step % a.every == 0:
            tell("learn", clock, share, NAMES, figures)
        if clock.due():
            store.refresh()
            log(f"{store.hours:.1f} hours; validation:", validate(stage.model, crops, stage.spectral, stage.listener))
            save(stage.model, a.out / "codec_so_far.pt")
    rarest_first(stage.model, store, a.batch, 20)
    log("final validation:", validate(stage.model, crops, stage.spectral, stage.listener), "steps", clock.step)
    save(stage.listener, a.out / "listener.pt")
    save(stage.adversary, a.out / "adversary.pt")
    save(stage.model, a.out / "codec_codes.pt")


class Polishing:
    """Stage two: the decoder alone, against the adversary; `mean` is the average of its weights."""

    def __init__(self, a):
        self.model, self.listener, self.spectral = Mimi().to(DEVICE), Listener().to(DEVICE), SpectralLoss().to(DEVICE)
        self.adversary, self.listen = Adversary().to(DEVICE), a.listen
        for module, name in ((self.model, "codec_codes"), (self.listener, "listener"), (self.adversary, "adversary")):
            module.load_state_dict(torch.load(a.out / f"{name}.pt", map_location=DEVICE))
        self.model.requires_grad_(False)
        m, q = self.model, self.model.quantizer
        parts = [m.upsample, m.decoder_transformer, m.decoder, q.rvq_first.output_proj, q.rvq_rest.output_proj]
        self.tuned = [p.requires_grad_(True) for part in parts for p in part.parameters()]
        self.mean, self.best = [p.detach().clone() for p in self.tuned], float("inf")
        self.optimiser, self.opposing = adamw(self.tuned, a.lr), adamw(self.adversary.parameters(), a.lr)

    def step(self, x, labels):
        """One update -> loss, judged, fool, match, doubt."""
        with torch.no_grad(), autocast():
            z = self.model.latent(x)
        with torch.no_grad():
            codes = self.model.quantizer(z.float())[0]
        with autocast():
            y = self.model.decode(codes).float()[..., LEAD_FRAMES * FRAME :]
        x, labels = x[..., LEAD_FRAMES * FRAME :], labels[:, LEAD_FRAMES:]
        with autocast():
            doubt = self.adversary.learn(y, x)
        update(self.opposing, doubt, 10.0)
        with autocast():
            (fool, match), judged = self.adversary.judge(y, x), self.listener.judge(y, x, labels)
        loss = 8 * self.spectral(y, x) + fool + 2 * match + 8 * self.listen * judged
        update(self.optimiser, loss, 50.0)
        return torch.stack([x.detach() for x in (loss, judged, fool, match, doubt)])

    def check(self, out, crops):
        """Validate the averaged weights; save them if they are the best so far."""
        current = [p.detach().clone() for p in self.tuned]
        torch._foreach_copy_([p.data for p in self.tuned], self.mean)
        loss, heard = validate(self.model, crops, self.spectral, self.listener)
        log(f"validation: spectral {loss:.4f} heard {heard:.4f}")
        if loss + 0.2 * heard < self.best:
            self.best = loss + 0.2 * heard
            save(self.model, out / "codec.pt")
        torch._foreach_copy_([p.data for p in self.tuned], current)


def polish(a, store, crops):
    stage = Polishing(a)
    clock, step = Schedule(a.until, a.lr, 0.03, [stage.optimiser, stage.opposing]), Replayed(stage.step)
    stage.check(a.out, crops)
    while (share := clock.advance(a.steps)) is not None:
        figures = step(*store.crops(a.batch, a.frames))
        torch._foreach_lerp_(
            stage.mean, [p.detach() for p in stage.tuned], 1 - min(0.999, clock.step / (clock.step + 20))
        )
        if clock.step % a.every == 0:
            tell("polish", clock, share, ("loss", "judged", "fool", "match", "doubt"), figures)
        if clock.due():
            stage.check(a.out, crops)
    stage.check(a.out, crops)
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
    stage = {"learn": learn, "polish": polish}[a.stage]
    if DEVICE == "cpu":
        stage(a, store, crops)
    else:
        with torch.cuda.stream(torch.cuda.Stream()):  # a graph is not captured on the default one
            stage(a, store, crops)


if __name__ == "__main__":
    main()
