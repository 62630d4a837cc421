"""KittenTTS 2's language model at its true shapes, on random ternary weights: load, memory, milliseconds a token.

  python -m benchmarks.kitten make DIR [--layers N]
  python -m benchmarks.kitten time DIR [--rows 1 2 8] [--tokens N] [--rounds N] [--prompt N] [--compiled]
                                    [--kittenml FOLDER [--dtype float32]]

FOLDER is where kittenml's own package lies, unpacked (`pip download --no-deps kittenml==0.9.6`): its MLX modules are
timed in the same rounds, on the same file, driven as its backend drives them; --dtype is what it computes in. A round
times some tokens of each case, one case after the other; what is printed is the median over the rounds, and the median
of the ratios within a round. --layers makes the model shallower and --prompt the past shorter, for machines that are
slow.
"""

import argparse
import importlib.util
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace

import mlx.core as mx
import numpy as np

from misod.kitten.decode import Batch, Vocabulary, read
from misod.kitten.load import expected_shapes, load_model, packed_shapes, read_args
from misod.kitten.model import ModelArgs
from misod.kitten.sampling import Settings
from misod.kitten.ternary import FORMAT, GROUP_SIZE

TEXT = 151_669  # a Qwen3's own tokens; six marks, the codec's and five more marks follow
SPEECH = 6561
DIMS = {
    "hidden_size": 2048, "num_hidden_layers": 28, "intermediate_size": 6144, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "rms_norm_eps": 1e-6, "rope_theta": 1e6,
    "vocab_size": TEXT + SPEECH + 11,
}  # fmt: skip
SPEAKER_DIM = 512
MARKS = ("speech_start_id", "speech_end_id", "text_start_id", "text_end_id", "start_id", "stop_id")
SAMPLING = {"temperature": 0.6, "top_k": 40, "top_p": 0.9, "min_p": 0.05}
SETTINGS = Settings(**SAMPLING, repetition_window=64)
PROMPT = 300  # positions: ten seconds of a voice, and a sentence
UNITS = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss


def make(directory: Path, layers: int) -> None:
    """A repository's configs and packed weights: any digits, scales such that activations stay in range."""
    dims = DIMS | {"num_hidden_layers": layers}
    tokens = {"audio_id_base": TEXT + 6, "num_audio_tokens": SPEECH} | {m: TEXT + i for i, m in enumerate(MARKS)}
    config = {"type": "KITTEN2", "lm_packed": "lm/model-ternary.safetensors", "token_map": tokens}
    (directory / "lm").mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config | {"speaker_embedding_dim": SPEAKER_DIM}))
    fixed = {"model_type": "qwen3", "tie_word_embeddings": True}
    (directory / "lm" / "config.json").write_text(json.dumps(dims | fixed))
    args, rng = ModelArgs(**dims, speaker_dim=SPEAKER_DIM), np.random.default_rng(0)
    arrays = {name: fill(name, shape, rng) for name, shape in expected_shapes(args).items()}
    packed = {name: {"shape": shape, "dtype": "bfloat16"} for name, shape in packed_shapes(args).items()}
    about = {"format": FORMAT, "group_size": str(GROUP_SIZE), "packed": json.dumps(packed)}
    mx.save_safetensors(str(directory / config["lm_packed"]), arrays, about)


def fill(name: str, shape: tuple[int, ...], rng: np.random.Generator) -> mx.array:
    if name.endswith("::codes"):
        codes = rng.integers(0, 243, shape, np.uint8)
        codes[-1] = 0  # nothing in its padding
        return mx.array(codes)
    if len(shape) == 1:
        return mx.zeros(shape, mx.bfloat16) if name.endswith("bias") else mx.ones(shape, mx.bfloat16)
    if name.endswith("::scale"):
        return mx.array(rng.uniform(0.01, 0.04, shape).astype(np.float32)).astype(mx.bfloat16)
    return (mx.random.normal(shape, key=mx.random.key(len(name))) * 0.02).astype(mx.bfloat16)


def ours(directory: Path, rows: list[int], length: int, compiled: bool) -> dict[str, Callable[[int], None]]:
    """Case -> what draws so many tokens for each of its rows; prints what loading and a prompt take."""
    args, ids, path = read_args(directory)
    began_s = time.perf_counter()
    model = load_model(path, args)
    took_s, peak, held = time.perf_counter() - began_s, mx.get_peak_memory(), mx.get_active_memory()
    resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * UNITS
    print(
        f"load {took_s:.2f} s, {held / 1e9:.2f} GB held, {peak / 1e9:.2f} GB at most, {resident / 1e9:.2f} GB resident"
    )
    prompt = np.random.default_rng(1).integers(0, args.vocab_size, length).tolist()
    began_s = time.perf_counter()
    past = read(model, prompt, model.speaker_row(mx.zeros(args.speaker_dim)))
    mx.eval(past.hidden)
    print(f"prompt of {length} positions {time.perf_counter() - began_s:.2f} s", flush=True)

    def case(words: Vocabulary, count: int) -> Callable[[int], None]:
        def run(tokens: int) -> None:
            batch = Batch.start(words, past, SETTINGS, 0)
            for seed in range(1, count):
                batch.join(Batch.start(words, past, SETTINGS, seed))
            batch.run(tokens)

        return run

    speech, everything = (Vocabulary(model, ids, only, compiled) for only in (True, False))
    cases = {"1 row, all of the vocabulary": case(everything, 1)}
    return cases | {f"{count} row{'s' * (count > 1)}, speech only": case(speech, count) for count in rows}


def theirs(directory: Path, package: Path, dtype: str, length: int) -> Callable[[int], None]:
    """kittenml's language model on MLX, a token at a time as its backend has it. Its files are run where they are."""
    folder = package / "kittenml" / "kittentts2" / "mlx"
    loader, sample, module = (_module(folder / f"{name}.py") for name in ("loader", "sample", "model"))
    _, ids, path = read_args(directory)
    lm = json.loads((directory / "lm" / "config.json").read_text())
    dense, quantised, group_size = loader.load_lm_weights(path, dtype=getattr(mx, dtype))
    model = module.KittenLM.from_config(lm, quantised, group_size, spk_dim=SPEAKER_DIM).load_dense(dense)
    mx.eval(model)
    token_map = SimpleNamespace(**vars(ids), audio_id_end=ids.audio_id_end)
    prompt = np.random.default_rng(1).integers(0, lm["vocab_size"], length).tolist()
    processors = sample.build_logits_processors(token_map, **SAMPLING, repetition_window=64, prompt_length=length)
    state = SimpleNamespace(cache=model.new_cache())
    state.logits = model(model.embed(prompt), state.cache)
    mx.eval(state.logits)

    def run(tokens: int) -> None:
        history, logits = mx.array(prompt, mx.int32)[None], state.logits
        for cache in state.cache:
            cache.offset = length  # as long a past in every round
        for _ in range(tokens):
            token = sample.sample(history, logits, processors)
            value = int(token.item())
            history = mx.concatenate([history, token[None].astype(mx.int32)], axis=1)
            logits = model(model.embed([value]), state.cache)
        mx.eval(logits)

    return run


def _module(path: Path):
    spec = importlib.util.spec_from_file_location(f"kittenml_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def measure(cases: dict[str, Callable[[int], None]], tokens: int, rounds: int) -> None:
    """The first case is what the others are set against. On a CPU its own time counts: who else is there does not."""
    clock_s = time.process_time if mx.default_device() == mx.cpu else time.perf_counter
    times: dict[str, list[float]] = {name: [] for name in cases}
    for i in range(rounds + 1):
        for name, run in cases.items():
            began_s = clock_s()
            run(tokens)
            if i:  # the first is for warming up
                times[name].append((clock_s() - began_s) / tokens * 1e3)
    first = next(iter(times.values()))
    print(f"{mx.default_device()}, {tokens} tokens a round, {rounds} rounds")
    for name, took_ms in times.items():
        ratio = median(a / b for a, b in zip(first, took_ms, strict=True))
        print(f"| {name} | {median(took_ms):.1f} ms a step | {ratio:.2f} times as many steps a second |")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("what", choices=("make", "time"))
    p.add_argument("directory", type=Path)
    p.add_argument("--layers", type=int, default=DIMS["num_hidden_layers"])
    p.add_argument("--rows", type=int, nargs="*", default=[1, 2, 8])
    p.add_argument("--tokens", type=int, default=25)
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--prompt", type=int, default=PROMPT)
    p.add_argument("--compiled", action="store_true", help="each step as one graph")
    p.add_argument("--kittenml", type=Path)
    p.add_argument("--dtype", default="bfloat16")
    a = p.parse_args()
    if a.what == "make":
        make(a.directory, a.layers)
        return
    cases = ours(a.directory, a.rows, a.prompt, a.compiled)
    if a.kittenml:
        cases = {f"kittenml, {a.dtype}": theirs(a.directory, a.kittenml, a.dtype, a.prompt)} | cases
    measure(cases, a.tokens, a.rounds)


if __name__ == "__main__":
    main()
