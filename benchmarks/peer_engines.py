"""Three engines of one architecture with the same weights: ours, mlx-audio's and csm-mlx's. For benchmarks/peers.py.

Each loops as its own package does: the peers wait for a frame's codes before they ask for the next, ours has the next
in flight. No codec. A package is imported only where its engine is asked for.
"""

import importlib
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

import mlx.core as mx
from mlx.utils import tree_map_with_path

from benchmarks.frame import Case
from misod.miso.cache import BLOCK
from misod.miso.model import Model
from misod.miso.products import PackedHeads
from misod.miso.sampling import Sampler, Settings
from misod.weights.dims import MISO_8B, ModelArgs, TransformerArgs
from misod.weights.plan import plan

SMALL = replace(
    MISO_8B,
    backbone=replace(MISO_8B.backbone, num_layers=4, num_heads=8, num_kv_heads=2, embed_dim=512, intermediate_dim=1792),
    decoder=replace(MISO_8B.decoder, num_layers=2, num_heads=4, num_kv_heads=1, embed_dim=256, intermediate_dim=1152),
    text_vocab_size=4096,
)
TEMPERATURE, TOP_K = 0.9, 50
INSTALL = {
    "mlx_audio": "pip install --no-deps mlx-audio",
    "mlx_lm": "pip install --no-deps mlx-lm",
    "csm_mlx": "pip install --no-deps git+https://github.com/senstella/csm-mlx",
}
# What the modules that hold the peers' models import for text, downloads and codec: none of it runs in a frame, and
# without it a peer is a few files.
NOT_RUN = {
    "huggingface_hub", "tokenizers", "tokenizers.processors", "tqdm", "transformers", "mlx_audio.audio_io",
    "mlx_audio.codec", "mlx_audio.codec.models", "mlx_audio.codec.models.mimi", "mlx_audio.utils", "csm_mlx.segment",
    "csm_mlx.tokenizers",
}  # fmt: skip


class Missing(Exception):
    """A peer's package is not here; the message says how to come by it."""


class NotRun:
    """Finds the modules in NOT_RUN, and nothing in them."""

    @staticmethod
    def find_spec(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        return ModuleSpec(name, NotRun, is_package=True) if name in NOT_RUN else None

    @staticmethod
    def create_module(spec: ModuleSpec) -> None:
        return None

    @staticmethod
    def exec_module(module: ModuleType) -> None:
        module.__getattr__ = lambda name: object


def imported(name: str) -> ModuleType:
    """A module of a peer, but not its packages' own __init__: those import servers and trainers. Raises Missing."""
    if NotRun not in sys.meta_path:
        sys.meta_path.insert(0, NotRun)
    path, parts = None, name.split(".")
    for package in (".".join(parts[:i]) for i in range(1, len(parts))):
        if package not in sys.modules:
            if (spec := PathFinder.find_spec(package, path)) is None:
                raise Missing(f"{package} is not here: {INSTALL[parts[0]]}")
            sys.modules[package] = ModuleType(package)
            sys.modules[package].__path__ = list(spec.submodule_search_locations)
        path = sys.modules[package].__path__
    return importlib.import_module(name)


def random_weights(args: ModelArgs, dtype: mx.Dtype) -> Model:
    """Packed as `pull --precision q4` does it, scales in `dtype`; the same in every process. Not prepared yet."""
    model = Model(args)
    model.keep_packed(plan(args, "q4"))
    keys = iter(mx.random.split(mx.random.key(0), 4096))

    def fill(path: str, empty: mx.array) -> mx.array:
        """Weights of about 1 / sqrt(inputs), so that activations stay of one size through all layers."""
        if empty.dtype == mx.uint32:
            return mx.random.randint(-(2**31), 2**31 - 1, empty.shape, key=next(keys)).view(mx.uint32)
        if empty.ndim == 1:
            return mx.ones_like(empty, dtype)
        codes = 255 if "embeddings" in path else 15
        step = 2 / codes / math.sqrt(empty.shape[-1] * 64)
        return mx.full(empty.shape, step if path.endswith("scales") else -step * codes / 2, dtype)

    model.update(tree_map_with_path(fill, model.parameters()))
    mx.eval(model.parameters())
    return model


class Ours:
    def __init__(self, model: Model):
        model.prepare()
        self._model = model

    def speech(self, context: int) -> Case:
        case = Case("", self._model, 1, 1.0, context=2)
        [cache], case.context = case.caches, context
        room = context + BLOCK  # as there mostly is
        cache.kv = [mx.stack(past(self._model.args, self._model.dtype, room)) for _ in cache.kv]
        mx.eval(cache.kv)
        cache.position = context
        return case

    def build(self, case: Case) -> list[mx.array]:
        return [case.build(), case.finite, case.last_h]

    def greedy(self, prompt: mx.array, frames: int) -> list[mx.array]:
        """A request of its own: codes (1, T, K) are read, then the likeliest frames (1, K) are made."""
        model, cache = self._model, self._model.new_cache()
        no_noise = mx.zeros((1, model.args.audio_num_codebooks, model.args.audio_vocab_size))
        sampler = Sampler([Settings(temperature=0, top_k=TOP_K)], no_noise)
        tokens, mask = row(prompt)
        last_h, made = model.read(model.embed_prompt(tokens[0], mask[0]), cache), []
        for _ in range(frames):
            made.append(model.frame(last_h, sampler)[0])
            last_h = model.read(model.embed_frame(made[-1]), cache)
            mx.eval(made[-1], last_h)
        return made


class Peer:
    """What the two have in common: a Llama of mlx-lm's twice, and a prompt of (1, T, K + 1) codes and mask."""

    def _move(self, ours: Model) -> None:
        """The modules of `ours` become this model's: no copy."""
        model, self.args, self.dtype = self._model, ours.args, ours.backbone.norm.scale.dtype
        for theirs, part in ((model.backbone, ours.backbone), (model.decoder, ours.decoder)):
            for layer, of in zip(theirs.layers, part.layers, strict=True):
                for name, projection in zip("qkvo", ("q_proj", "k_proj", "v_proj", "output_proj"), strict=True):
                    layer.self_attn[f"{name}_proj"] = of.attn[projection]
                layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj = of.mlp.w1, of.mlp.w3, of.mlp.w2
                layer.input_layernorm.weight = of.sa_norm.scale
                layer.post_attention_layernorm.weight = of.mlp_norm.scale
            theirs.norm.weight = part.norm.scale
        model.text_embeddings, model.audio_embeddings = ours.text_embeddings, ours.audio_embeddings
        model.projection, model.codebook0_head = ours.projection, ours.codebook0_head
        model.audio_head = dense(ours.audio_head)  # both keep it so
        mx.eval(model.parameters())

    def speech(self, context: int) -> "PeerSpeech":
        return PeerSpeech(self, context)

    def new_cache(self) -> list:
        return self._new_cache(self._model.backbone)

    def greedy(self, prompt: mx.array, frames: int) -> list[mx.array]:
        """As ours."""
        cache, made, (tokens, mask), drawn = self.new_cache(), [], row(prompt), self._sampler
        self._sampler = lambda logits: mx.argmax(logits, axis=-1)
        for _ in range(frames):
            made.append(self.frame(tokens, mask, cache))
            tokens, mask = row(made[-1][:, None])
            mx.eval(made[-1])
        self._sampler = drawn
        return made

    def build(self, speech: "PeerSpeech") -> list[mx.array]:
        speech.next()
        return [speech.codes, *(part for each in speech.cache for part in (each.keys, each.values))]


class PeerSpeech:
    """One row with its past, as benchmarks.frame's Case."""

    def __init__(self, peer: Peer, context: int):
        self._peer, self.context = peer, context
        self.cache = peer.new_cache()
        for each in self.cache:
            mx.eval(each.update_and_fetch(*past(peer.args, peer.dtype, context)))
        self.codes = mx.random.randint(1, 2048, (1, peer.args.audio_num_codebooks), key=mx.random.key(context))
        self._tokens, self._mask = row(self.codes[:, None])

    def next(self) -> None:
        self.codes = self._peer.frame(self._tokens, self._mask, self.cache)
        self._tokens, self._mask = row(self.codes[:, None])

    def run(self, frames: int) -> float:
        """-> milliseconds a frame."""
        began_s = time.perf_counter()
        for _ in range(frames):
            self.next()
            mx.all(self.codes == 0).item()  # how both learn that the speech is over
        took_ms = (time.perf_counter() - began_s) / frames * 1e3
        for each in self.cache:
            each.trim(each.offset - self.context)
        return took_ms


class MlxAudio(Peer):
    def __init__(self, ours: Model):
        sesame = imported("mlx_audio.tts.models.sesame.sesame")
        sampling, cache = imported("mlx_audio.lm.sample_utils"), imported("mlx_audio.lm.models.cache")
        args = ours.args
        depth = llama(args.decoder) | {"num_codebooks": args.audio_num_codebooks, "vocab_size": args.audio_vocab_size}
        depth |= {"backbone_hidden_size": args.backbone.embed_dim, "attention_dropout": 0.0, "initializer_range": 0.02}
        depth |= {"hidden_act": "silu", "use_cache": True}
        config = llama(args.backbone) | {"depth_decoder_config": depth, "text_vocab_size": args.text_vocab_size}
        config |= {"audio_vocab_size": args.audio_vocab_size, "audio_num_codebooks": args.audio_num_codebooks}
        self._model = sesame.SesameModel(config)
        self._move(ours)
        self._model.setup_caches(1)
        self._new_cache = cache.make_prompt_cache
        self._sampler = sampling.make_sampler(temp=TEMPERATURE, top_k=TOP_K)

    def frame(self, tokens: mx.array, mask: mx.array, cache: list) -> mx.array:
        self._model.backbone_cache = cache
        return self._model.generate_frame(tokens, mask, None, self._sampler)


class CsmMlx(Peer):
    def __init__(self, ours: Model):
        llamas, config = imported("mlx_lm.models.llama"), imported("csm_mlx.config")
        models, self._generation = imported("csm_mlx.models"), imported("csm_mlx.generation")
        sampling, cache = imported("mlx_lm.sample_utils"), imported("mlx_lm.models.cache")
        args = ours.args
        self.codebooks = args.audio_num_codebooks
        for known, part in (
            (config.BACKBONE_CONFIGURATION, args.backbone),
            (config.DECODER_CONFIGURATION, args.decoder),
        ):
            known["ours"] = llamas.ModelArgs(vocab_size=args.text_vocab_size, **llama(part))
        sizes = {"n_text_vocab": args.text_vocab_size, "n_audio_vocab": args.audio_vocab_size}
        sizes |= {"n_audio_codebooks": args.audio_num_codebooks}
        self._model = models.CSM(models.ModelArgs("ours", "ours", **sizes))
        self._move(ours)
        self._new_cache = cache.make_prompt_cache
        self._sampler = sampling.make_sampler(temp=TEMPERATURE, top_k=TOP_K)

    def frame(self, tokens: mx.array, mask: mx.array, cache: list) -> mx.array:
        make = self._generation.generate_frame
        return make(self._model, tokens, token_mask=mask, sampler=self._sampler, cache=cache)


ENGINES = {"ours": Ours, "mlx-audio": MlxAudio, "csm-mlx": CsmMlx}


def row(codes: mx.array) -> tuple[mx.array, mx.array]:
    """codes (1, T, K) -> what the model reads: codes and no text (1, T, K + 1), and which of it is there."""
    text = mx.zeros((*codes.shape[:2], 1), mx.int32)
    tokens = mx.concat([codes.astype(mx.int32), text], axis=2)
    return tokens, mx.concat([mx.ones(codes.shape, mx.bool_), text.astype(mx.bool_)], axis=2)


def past(args: ModelArgs, dtype: mx.Dtype, positions: int) -> tuple[mx.array, mx.array]:
    """Keys and values of one layer of the backbone (1, Hkv, T, d): a frame takes as long with any."""
    shape = 1, args.backbone.num_kv_heads, positions, args.backbone.head_dim
    return tuple((mx.random.normal(shape, key=mx.random.key(i)) / 10).astype(dtype) for i in range(2))


def llama(args: TransformerArgs) -> dict:
    """As mlx-lm spells it."""
    scaling = {"factor": args.rope_scale_factor, "low_freq_factor": args.rope_low_freq_factor, "rope_type": "llama3"}
    scaling |= {"high_freq_factor": args.rope_high_freq_factor}
    return {
        "model_type": "llama",
        "num_hidden_layers": args.num_layers,
        "num_attention_heads": args.num_heads,
        "num_key_value_heads": args.num_kv_heads,
        "head_dim": args.head_dim,
        "hidden_size": args.embed_dim,
        "intermediate_size": args.intermediate_dim,
        "rms_norm_eps": args.norm_eps,
        "max_position_embeddings": args.max_seq_len,
        "attention_bias": False,
        "mlp_bias": False,
        "rope_theta": args.rope_base,
        "rope_scaling": scaling | {"original_max_position_embeddings": args.rope_old_context_len},
    }


def dense(heads: PackedHeads) -> mx.array:
    """(K - 1, Dd, V)"""
    whole = mx.dequantize(heads.weight, heads.scales, heads.biases, heads.group_size, heads.bits)
    return mx.contiguous(whole.swapaxes(1, 2))
