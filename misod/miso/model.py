"""The MisoTTS model: a Llama-style backbone over frames, a depth decoder over a frame's codebooks.

Names are the reference checkpoint's own (torchtune's spelling). Any dims come from config.json (misod.weights.dims).
"""

from collections.abc import Callable
from dataclasses import asdict

import mlx.core as mx
import mlx.nn as nn

from misod.cuda import MAX_ROWS
from misod.miso import few_rows
from misod.miso.cache import KVCache, RowsCache
from misod.miso.products import PackedHeads, bound, dense_product, parted, rows_of
from misod.miso.transformer import Transformer
from misod.weights.dims import ModelArgs
from misod.weights.plan import Quantization

Draw = Callable[[int, mx.array], mx.array]  # (codebook, logits (B, V)) -> codes (B,)

TABLE_ROWS = 256


class Model(nn.Module):
    """Text and audio frames in, the K codes of the next frame out.

    A row of input is the sum of K audio embeddings and one text embedding, the absent ones left out.
    """

    def __init__(self, args: ModelArgs):
        super().__init__()
        D, Dd, K, V = args.backbone.embed_dim, args.decoder.embed_dim, args.audio_num_codebooks, args.audio_vocab_size
        self.args = args
        self.backbone = Transformer(args.backbone)
        self.decoder = Transformer(args.decoder, kept=K)
        self.text_embeddings = nn.Embedding(args.text_vocab_size, D)
        self.audio_embeddings = nn.Embedding(K * V, D)
        self.projection = nn.Linear(D, Dd, bias=False)
        self.codebook0_head = nn.Linear(D, V, bias=False)
        self.audio_head = mx.zeros((K - 1, Dd, V))
        self._first_code = mx.arange(K) * V  # row of codebook k's code 0 in audio_embeddings
        self._dtype = mx.float32  # of activations
        self._depth_inputs: list[mx.array] = []

    def keep_packed(self, quantization: Quantization) -> None:
        """Before the weights are loaded: make the modules that hold these tensors packed. Nothing is computed."""
        nn.quantize(self, class_predicate=lambda path, _: path in quantization and asdict(quantization[path]))
        if "audio_head" in quantization:
            self.audio_head = PackedHeads(self.audio_head.shape, quantization["audio_head"])

    def prepare(self) -> None:
        """Once the weights are loaded: what is multiplied with the same input becomes one matrix; activations take the
        norms' type."""
        self._dtype = self.backbone.norm.scale.dtype
        self.backbone.prepare()
        self.decoder.prepare()
        self._tabulate()
        self.bind()

    def bind(self) -> None:
        """Anew where the heads' arrays were replaced."""
        heads, packed = self.audio_head, isinstance(self.audio_head, PackedHeads)
        self._project = bound(self.projection)
        rest = heads.bound() if packed else map(dense_product, parted(heads))
        self._heads = bound(self.codebook0_head), *rest
        self._few = few_rows.Depth.of(self)

    def _tabulate(self) -> None:
        """projection(audio_embeddings), K times (V, Dd), in the type the embeddings are stored in, a few rows at a time
        to hold little else; and each codebook's mean embedding, (K, D)."""
        stored = self.audio_embeddings.get("scales", self.audio_embeddings.weight).dtype
        projection = rows_of(self.projection, self._dtype).T  # many rows: on a CPU far faster than packed
        self._depth_inputs, means, V = [], [], self.args.audio_vocab_size
        for first in self._first_code.tolist():
            parts, total = [], 0
            for start in range(first, first + V, TABLE_ROWS):
                codes = mx.arange(start, min(start + TABLE_ROWS, first + V))
                rows = rows_of(self.audio_embeddings, self._dtype, codes)
                parts.append((rows @ projection).astype(stored))
                total = total + rows.astype(mx.float32).sum(axis=0)
                mx.eval(parts, total)
            self._depth_inputs.append(mx.concatenate(parts))
            means.append((total / V).astype(self._dtype))
            mx.eval(self._depth_inputs, means)
        self._means = mx.stack(means)
        mx.eval(self._means)

    @property
    def dtype(self) -> mx.Dtype:
        """Of activations, and so of what a cache holds."""
        return self._dtype

    @property
    def cache_layout(self) -> tuple[int, int, int]:
        """(2 layers, Hkv, d): what a packed cache has but for its positions."""
        backbone = self.args.backbone
        return 2 * backbone.num_layers, backbone.num_kv_heads, backbone.head_dim

    def new_cache(self) -> KVCache:
        return KVCache(self.args.backbone.num_layers)

    def embed_prompt(self, tokens: mx.array, mask: mx.array, there: mx.array | None = None) -> mx.array:
        """tokens and mask (T, K + 1), the last column text -> (1, T, D). `there` (T, K) as in embed_frame."""
        audio = self._embed_audio(tokens[:, :-1], there)
        text = rows_of(self.text_embeddings, self._dtype, tokens[:, -1:])  # (T, 1, D)
        rows = mx.concatenate([audio, text], axis=1)
        return mx.where(mask[..., None], rows, 0).sum(axis=1)[None]

    def embed_frame(self, codes: mx.array, there: mx.array | None = None) -> mx.array:
        """codes (B, K), and which of them are there (B, K); None: all -> (B, 1, D)."""
        return self._embed_audio(codes, there).sum(axis=1, keepdims=True)

    def _embed_audio(self, codes: mx.array, there: mx.array | None) -> mx.array:
        """(n, K) -> (n, K, D). For what is not there stands the mean of its codebook: nearer to the sum that was taught
        than nothing is, and than any one code."""
        rows = rows_of(self.audio_embeddings, self._dtype, codes + self._first_code)
        return rows if there is None else mx.where(there[..., None], rows, self._means)

    def read(self, x: mx.array, cache: KVCache | RowsCache) -> mx.array:
        """The backbone over x (B, T, D) -> the last position's hidden state (B, D)."""
        return self.backbone(x, cache)

    def frame(self, last_h: mx.array, draw: Draw, depth: int | None = None) -> tuple[mx.array, mx.array]:
        """last_h (B, D) -> the next frame's codes (B, K) and whether all its logits were finite (B,).

        `draw` picks a code from each codebook's logits. The depth decoder's cache lives for this frame.
        `depth`: how many codebooks are drawn; None: all. The codes of the rest are 0.
        """
        K = self.args.audio_num_codebooks
        begin = self._few.begin if self._few and len(last_h) <= MAX_ROWS else self.at_depth
        first, step = begin(last_h)
        logits, codes = [first], [draw(0, first)]
        for k in range(1, depth or K):
            logits.append(step(k, self._depth_input(k - 1, codes[k - 1])))
            codes.append(draw(k, logits[k]))
        every = mx.concatenate(logits, axis=1)
        if len(codes) < K:
            codes += [mx.zeros_like(codes[0])] * (K - len(codes))
        return mx.stack(codes, axis=1), (every - every == 0).all(axis=1)  # neither NaN nor infinity less itself is 0

    def at_depth(self, last_h: mx.array) -> tuple[mx.array, Callable[[int, mx.array], mx.array]]:
        """Logits of a frame: of codebook 0 (B, V), and (k, what the depth decoder reads (B, Dd)) -> of codebook k."""
        cache = KVCache(self.args.decoder.num_layers, block=self.args.audio_num_codebooks)
        first = self._project(last_h)

        def step(k: int, x: mx.array) -> mx.array:
            x = mx.stack([first, x], axis=1) if k == 1 else x  # two positions at once
            return self._heads[k](self.decoder(x, cache))

        return self._heads[0](last_h), step

    def _depth_input(self, k: int, codes: mx.array) -> mx.array:
        """projection of codebook k's embeddings of codes (B,) -> (B, Dd)."""
        return self._depth_inputs[k][codes].astype(self._dtype)
