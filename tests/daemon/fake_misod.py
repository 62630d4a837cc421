"""The real daemon around a fake engine: `python fake_misod.py '{"max_rows": "2"}'`. Settings of its own by FAKE_*:

FAKE_TRACE       a file: one line for each open, prefill, frame, release, close
FAKE_STEP_MS     how long a step takes (default 2)
FAKE_BIND_GATE   a fifo: with the lock taken, binding waits until somebody opened and closed it for writing
FAKE_LOAD_GATE   a fifo: each load waits until somebody opened and closed it for writing
FAKE_LOAD_ERROR  a file: while it exists a load fails with what it says
FAKE_SLOW_S      in place of session.SLOW_S
FAKE_HOLD_S      in place of floor.HOLD_S
FAKE_INFO        what it says of itself, as JSON: {"model": "other"}
FAKE_VERSION     in place of the protocol's version: "2.0"

A text makes two frames a word, or N where it says `last N`; other words that it obeys are in FakeEngine.
"""

import json
import os
import re
import sys
import threading
import time
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from misod import cli as entry
from misod import floor, session
from misod.engine import Chunk, Fault, Heard, Info, Memory, ModelError, PrefixRoom, Row, RowFault, Say
from misod.router import Router
from misod.style import PRESETS, Style, chosen
from misod.voices import Segment
from protocol import messages

FRAME_SAMPLES = 1920
CODEC = "c" * 64


@dataclass
class FakeRow(Row):
    length: int = 0  # frames
    made: int = 0


class FakeEngine:
    sample_rate = 24000
    frame_samples = FRAME_SAMPLES

    def __init__(self, model: str, max_rows: int):
        self.max_rows = max_rows
        about = {"engine": "fake", "model": model, "digest": "0" * 64, "backend": "none"}
        self.info = Info(**about | json.loads(os.environ.get("FAKE_INFO", "{}")))
        self.step_s = float(os.environ.get("FAKE_STEP_MS", "2")) / 1000
        self.rows = self.graphs = 0
        self.most_graphs = int(os.environ.get("FAKE_GRAPHS", "0"))
        trace(f"open {model}")

    def hear(self, pcm: np.ndarray, words: str, speaker: int):
        """The first sample of each 80 ms is its code; five of them a step."""
        if "refuse" in words:
            raise RowFault("asked to refuse")
        codes = np.abs(pcm[::FRAME_SAMPLES] * 32768).astype(np.int16)
        for start in range(0, len(codes), 5):
            trace(f"hear {start}")
            time.sleep(self.step_s)
            yield
        return Heard(np.stack([codes, codes + 1]), words.lower(), CODEC)

    def prefill(self, say: Say) -> FakeRow:
        trace(f"prefill {say.text}")
        if say.voice:
            trace(f"voice {say.voice.name or '-'} {say.voice.codes.shape[1]}")
        if say.dialogue:
            trace(f"after {len(say.dialogue.segments)} turns")
        if "raise in prefill" in say.text:
            raise ValueError("asked to raise in prefill")
        if "refuse" in say.text:
            raise RowFault("asked to refuse")
        if "speaker" in say.text:
            raise RowFault(f"no speaker {say.speaker}", "bad_value")
        if "surrogate" in say.text:
            raise ValueError("\udcff" * 3000)
        asked = re.search(r"last (\d+)", say.text)
        length = int(asked[1]) if asked else 2 * len(say.text.split())
        if say.max_seconds:
            length = min(length, int(say.max_seconds * 12.5))
        self.rows += 1
        style = Style(9.0, 1) if "too hot" in say.text else chosen(PRESETS, say.preset, say.sampling)
        digest = say.voice.digest if say.voice else ""
        return FakeRow(say=say, style=style, spoken=[say.text], length=length, voice_digest=digest)

    def step(self, rows: list[FakeRow]) -> list[Chunk | Fault]:
        time.sleep(self.step_s)  # the work of a step
        return [self._frame(row) for row in rows]

    def _frame(self, row: FakeRow) -> Chunk | Fault:
        text = row.say.text
        if "hang" in text and row.made == 2:
            threading.Event().wait()
        if "crash" in text and row.made == 2:
            raise RuntimeError("asked to crash")
        fault = re.search(r"fault at frame (\d+)", text)
        if fault and row.made == int(fault[1]):
            return Fault("" if "silent" in text else f"asked to fail at frame {row.made}")
        trace(f"frame {text}")
        pcm = pcm_of(text, row.say.seed, row.made)
        row.made += 1
        if "long pause" in text and row.made == 2:
            pcm = np.concatenate([pcm, np.zeros(60 * FRAME_SAMPLES, np.float32)])
        if row.made >= row.length:
            row.said.append(Segment(row.say.speaker, text, np.ones((2, row.length), np.int16)))
            row.kept = f"of {text}" if row.say.dialogue else ""
        return Chunk(pcm, "eos" if row.made >= row.length else None)

    def release(self, row: FakeRow) -> None:
        self.rows -= 1
        trace(f"release {row.say.text}")

    def keep(self, digest: str) -> None:
        trace(f"keep {digest}")

    def forget(self, digest: str) -> None:
        trace(f"forget {digest}")

    def prepare(self) -> bool:
        if self.graphs == self.most_graphs:
            return False
        self.graphs += 1
        trace(f"graph {self.graphs}")
        time.sleep(self.step_s)
        return True

    def memory(self) -> Memory:
        return Memory(active_bytes=1000 * (1 + self.rows), graphs=self.graphs, graphs_s=0.5 * self.graphs)

    def close(self) -> None:
        trace("close")


def pcm_of(text: str, seed: int, frame: int) -> np.ndarray:
    """(1920,) float32, the same for the same three."""
    rng = np.random.default_rng([seed, zlib.crc32(text.encode()), frame])
    return rng.uniform(-0.5, 0.5, FRAME_SAMPLES).astype(np.float32)


def trace(line: str) -> None:
    if path := os.environ.get("FAKE_TRACE"):
        with open(path, "a") as file:
            file.write(line + "\n")


def open_fake(directory: Path, max_rows: int, _: PrefixRoom) -> FakeEngine:
    if gate := os.environ.get("FAKE_LOAD_GATE"):
        Path(gate).read_bytes()
    error = Path(os.environ.get("FAKE_LOAD_ERROR", "/nonexistent"))
    if error.exists():
        raise ModelError(error.read_text())
    return FakeEngine(directory.name, max_rows)


if __name__ == "__main__":
    session.SLOW_S = float(os.environ.get("FAKE_SLOW_S") or session.SLOW_S)
    floor.HOLD_S = float(os.environ.get("FAKE_HOLD_S") or floor.HOLD_S)
    if version := os.environ.get("FAKE_VERSION"):
        messages.VERSION = tuple(int(part) for part in version.split("."))
    if gate := os.environ.get("FAKE_BIND_GATE"):
        bind_at_once = Router.__init__

        def bind_late(self, *arguments) -> None:
            Path(gate).read_bytes()
            bind_at_once(self, *arguments)

        Router.__init__ = bind_late
    entry.leave(entry.run(json.loads(sys.argv[1]), open_fake))
