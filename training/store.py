"""Shards of the teacher's speech on disk, and the same speech as one long row on the device.

A shard NNNN.npz holds audio (int16, 24 kHz), labels (uint8, one Kokoro symbol each 20 ms) and
index (int32 rows: line, speaker, start sample, length in samples; lengths are whole 80 ms frames).
Shard 0 is never trained on: it is the validation set of the codec and of the language model.
"""

import os
import pathlib

import numpy as np
import torch

RATE, FRAME, LABEL = 24000, 1920, 480  # samples a second, a codec frame, a label
LABELS = FRAME // LABEL  # labels a frame


def write_shard(folder, number, audio, labels, index):
    folder = pathlib.Path(folder)
    with open(folder / f"{number:04d}.part", "wb") as f:
        np.savez(f, audio=audio, labels=labels, index=index)
    os.rename(folder / f"{number:04d}.part", folder / f"{number:04d}.npz")


class Store:
    """audio [N] int16 and labels [N / 480] uint8 on the device; items: (line, speaker, start, length)."""

    def __init__(self, folder, device, hours, validation=False):
        self.folder, self.validation = pathlib.Path(folder), validation
        size = int(hours * 3600 * RATE) // FRAME * FRAME
        self.audio = torch.zeros(size, dtype=torch.int16, device=device)
        self.labels = torch.zeros(size // LABEL, dtype=torch.uint8, device=device)
        self.used, self.read, self.items = 0, set(), []

    @property
    def hours(self):
        return self.used / RATE / 3600

    def refresh(self):
        """Take in new shards while there is room. Returns self."""
        for path in sorted(self.folder.glob("*.npz")):
            if path in self.read or (path.stem == "0000") != self.validation:
                continue
            shard = np.load(path)
            audio, labels, start = shard["audio"], shard["labels"], self.used
            if start + len(audio) > len(self.audio):
                break
            self.read.add(path)
            self.audio[start : start + len(audio)] = torch.from_numpy(audio).to(self.audio.device)
            self.labels[start // LABEL : (start + len(audio)) // LABEL] = torch.from_numpy(labels).to(self.audio.device)
            self.items += [(line, speaker, at + start, n) for line, speaker, at, n in shard["index"].tolist()]
            self.used += len(audio)
        return self

    def take(self, start, frames):
        """Audio [B, 1, frames * 1920] float in -1..1 and labels [B, frames, 4] from the start samples [B]."""
        at = start[:, None] + torch.arange(frames * FRAME, device=start.device)
        audio = self.audio[at.clamp(max=len(self.audio) - 1)].float() / 32768
        labels = self.labels[at[:, ::LABEL].clamp(max=len(self.audio) - 1) // LABEL]
        return audio[:, None], labels.long().view(len(start), frames, LABELS)

    def crops(self, batch, frames, generator=None):
        """Random crops, starting on a frame."""
        last = self.used // FRAME - frames
        start = torch.randint(0, last, (batch,), device=self.audio.device, generator=generator) * FRAME
        return self.take(start, frames)
