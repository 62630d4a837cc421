"""Code extraction: the codec's codes of every utterance in a store."""

import torch

from training.store import FRAME, LABELS

BATCH_S = 600  # seconds of audio a batch, padding included


@torch.inference_mode()
def extract(model, store, autocast):
    """Returns codes [N, K] int16 and labels [N, 4] uint8, a row a frame, in the order of the store's items.

    Each utterance is encoded from a clean start, in batches of like lengths."""
    frames = [length // FRAME for *_, length in store.items]
    first = torch.tensor([0, *frames]).cumsum(0).tolist()
    codes = torch.zeros(first[-1], model.config["quantizer"]["n_q"], dtype=torch.int16, device=store.audio.device)
    labels = torch.zeros(first[-1], LABELS, dtype=torch.uint8, device=store.audio.device)
    order = sorted(range(len(frames)), key=frames.__getitem__)
    while order:
        longest = max(frames[order[-1]], 1)
        size = min(len(order), max(1, int(BATCH_S * 12.5 / longest)))
        batch, order = order[-size:], order[:-size]
        start = torch.tensor([store.items[i][2] for i in batch], device=store.audio.device)
        wav, label = store.take(start, longest)  # beyond its end an item sees its neighbour: the codec is causal
        with autocast():
            latent = model.latent(wav)
        found = model.quantizer(latent.float())[0].transpose(1, 2).to(torch.int16)
        for b, i in enumerate(batch):
            codes[first[i] : first[i + 1]] = found[b, : frames[i]]
            labels[first[i] : first[i + 1]] = label[b, : frames[i]].to(torch.uint8)
    return codes, labels
