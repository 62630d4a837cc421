"""What each precision costs and what it does to the logits: the tables of docs/precision.md.

  python -m benchmarks.precision [DIR ...] [--frames 300] [--json]

Each DIR is a model directory, or a folder with config.json and model.safetensors under the reference's names; the
bundled voice and the tests' tiny fixture are always measured. The model speaks with the weights it came with,
unpacked to fp32; every precision then reads the same frames (teacher forcing), and the divergence of its next-code
distributions from those, KL(as it came || precision) in nats a code, is averaged over frames. Bytes and real-time
factors are the 8B's, by arithmetic.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from misod.miso.engine import mx
from misod.miso.load import load_model, read_config
from misod.miso.model import Model
from misod.miso.prompt import Prompt
from misod.miso.sampling import Sampler, Settings, draw_noise
from misod.weights.budget import MISO_8B, disk_bytes, frame_bytes, predicted_rtf
from misod.weights.convert import Parts, convert
from misod.weights.manifest import read_manifest
from misod.weights.models import bundled
from misod.weights.plan import PRECISIONS
from misod.weights.tensors import find_weights

BANDWIDTHS = {100: "M2, M3", 273: "M4 Pro", 400: "M2 Max, M3 Max", 546: "M4 Max", 819: "M3 Ultra"}  # GB/s
VARIANTS = [(precision, None) for precision in PRECISIONS] + [("q4", "bf16"), ("q8", "bf16")]
TINY = Path(__file__).parents[1] / "tests" / "model" / "fixtures" / "miso_tiny" / "v99_fp32"
TEXTS = [
    "The weather in London is cold and wet today.",
    "Please call me on Monday, before nine.",
    "She closed the door and walked home in the rain.",
    "How much does the blue one cost?",
    "A small boat crossed the lake in the early morning.",
    "We have two dogs, a cat, and a very old parrot.",
    "He said that nothing like it had been seen before.",
    "The music played on until the last guest had left.",
    "Turn left at the bridge and follow the river.",
    "Is there any bread left, or did you eat it all?",
]
UNPACKED = 1 << 40  # bytes that may be taken: all
PROMPT_ROWS = 12  # of a model without a tokenizer


@dataclass(frozen=True)
class Spoken:
    """One utterance: the prompt's rows and the frames that followed, each K codes."""

    tokens: mx.array
    mask: mx.array
    frames: list[mx.array]


def speak(model: Model, prompts: Iterator[tuple[mx.array, mx.array]], settings: Settings, frames: int) -> list[Spoken]:
    """Utterances of the model's own, `frames` frames in all or a few less."""
    spoken, key, args = [], mx.random.key(0), model.args
    for tokens, mask in prompts:
        cache, codes = model.new_cache(), []
        x, left = model.embed_prompt(tokens, mask), frames - sum(len(s.frames) for s in spoken)
        while len(codes) < min(left, 100):
            key, drawn = mx.random.split(key)
            noise = draw_noise([drawn], args.audio_num_codebooks, args.audio_vocab_size)
            frame, _ = model.frame(model.read(x, cache), Sampler([settings], noise))
            if not frame.any().item():
                break
            codes.append(frame)
            x = model.embed_frame(frame)
        spoken.append(Spoken(tokens, mask, codes))
        if left <= len(codes):
            break
    return spoken


def logits(model: Model, spoken: list[Spoken]) -> Iterator[mx.array]:
    """Of each frame, (K, V), where the model is made to say what was spoken."""
    for said in spoken:
        cache, x = model.new_cache(), model.embed_prompt(said.tokens, said.mask)
        for frame in said.frames:
            rows: list[mx.array] = []

            def draw(k: int, row: mx.array, rows=rows, frame=frame) -> mx.array:
                rows.append(row)
                return frame[:, k]

            model.frame(model.read(x, cache), draw)
            yield mx.concatenate(rows)
            x = model.embed_frame(frame)


def divergence(reference: list[mx.array], model: Model, spoken: list[Spoken]) -> tuple[float, float, float]:
    """KL in nats of codebook 0 and of the others, and the share of codes whose likeliest stays the same."""
    first, rest, same = [], [], []
    for theirs, ours in zip(reference, logits(model, spoken), strict=True):
        p, q = (row - mx.logsumexp(row, axis=-1, keepdims=True) for row in (theirs, ours))
        kl = (mx.exp(p) * (p - q)).sum(axis=-1)  # (K,)
        first.append(kl[0])
        rest.append(kl[1:].mean())
        same.append((mx.argmax(p, axis=-1) == mx.argmax(q, axis=-1)).mean())
        mx.eval(first[-1], rest[-1], same[-1])
    return tuple(mx.stack(values).mean().item() for values in (first, rest, same))


def measure(folder: Path, frames: int) -> list[dict]:
    """One row a precision."""
    voice = bundled()
    parts = Parts(folder, voice / "codec" / "model.safetensors", voice / "tokenizer.json")
    args, speech, quantization = read_config(folder / "config.json")
    natural = speech.presets["natural"]
    source = load_model(find_weights(folder), args, quantization, room_bytes=UNPACKED)
    spoken = speak(source, prompts(folder, args), Settings(natural.temperature, natural.top_k), frames)
    reference = list(logits(source, spoken))
    mx.eval(reference)
    rows = []
    with tempfile.TemporaryDirectory() as models:
        for precision, embeddings in VARIANTS:
            made = convert(parts, Path(models), "made", precision, embeddings, origin={}, card="Measured.\n")
            files = [made / name for name in read_manifest(made).weights]
            model = load_model(files, args, read_config(made / "config.json")[2], room_bytes=UNPACKED)
            first, rest, same = divergence(reference, model, spoken)
            name = precision + (f", embeddings {embeddings}" if embeddings else "")
            row = {"precision": name, "kl_codebook_0": first, "kl_other_codebooks": rest, "same_likeliest": same}
            rows.append(row | {"frames": len(reference)})
    return rows


def prompts(folder: Path, args) -> Iterator[tuple[mx.array, mx.array]]:
    """Sentences; random rows for a model that has no tokenizer."""
    K = args.audio_num_codebooks
    if (folder / "tokenizer.json").exists():
        prompt = Prompt.open(folder / "tokenizer.json", K, args.text_vocab_size)
        for text in TEXTS:
            yield tuple(mx.array(part) for part in prompt.build([], 0, text))
        return
    for seed in range(len(TEXTS)):
        text = mx.random.randint(0, args.text_vocab_size, (PROMPT_ROWS, 1), key=mx.random.key(seed))
        tokens = mx.concatenate([mx.zeros((PROMPT_ROWS, K), mx.int32), text], axis=1)
        yield tokens, mx.broadcast_to(mx.arange(K + 1) == K, tokens.shape)


def arithmetic() -> list[dict]:
    """The 8B's bytes and the real-time factors they allow."""
    rows = []
    for precision, embeddings in VARIANTS:
        if embeddings is None:
            speeds = {f"rtf_at_{b}_gb_s": predicted_rtf(MISO_8B, precision, b * 1e9) for b in BANDWIDTHS}
            sizes = {"disk": disk_bytes(MISO_8B, precision), "frame": frame_bytes(MISO_8B, precision)}
            rows.append({"precision": precision, **sizes, **speeds})
    return rows


def table(header: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [header, ["---"] * len(header), *rows])


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folders", nargs="*", type=Path, metavar="DIR")
    p.add_argument("--frames", type=int, default=300)
    p.add_argument("--json", action="store_true")
    a = p.parse_args()
    folders = {"the bundled voice": bundled(), "the tests' tiny fixture": TINY, **{str(f): f for f in a.folders}}
    measured = {name: measure(folder, a.frames) for name, folder in folders.items()}
    if a.json:
        print(json.dumps({"arithmetic": arithmetic(), "measured": measured}))
        return
    header = ["precision", "GB on disk", "GB a frame", *(f"{b} GB/s ({chips})" for b, chips in BANDWIDTHS.items())]
    rows = [
        [r["precision"], f"{r['disk'] / 1e9:.2f}", f"{r['frame'] / 1e9:.2f}"]
        + [f"{r[f'rtf_at_{b}_gb_s']:.2f}" for b in BANDWIDTHS]
        for r in arithmetic()
    ]
    print(table(header, rows))
    for name, found in measured.items():
        print(f"\n{name}, {found[0]['frames']} frames:\n")
        header = ["precision", "KL, codebook 0", "KL, other codebooks", "likeliest code unchanged"]
        numbers = [[r["precision"], r["kl_codebook_0"], r["kl_other_codebooks"], r["same_likeliest"]] for r in found]
        print(
            table(header, [[name, f"{first:.5f}", f"{rest:.5f}", f"{same:.1%}"] for name, first, rest, same in numbers])
        )


if __name__ == "__main__":
    main()
