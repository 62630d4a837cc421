"""Train the tokenizer on the training lines: python -m training.tokenizer train.txt tokenizer.json

Byte-level BPE, 512 entries; every text becomes <bos> [speaker] text <eos>.
"""

import pathlib
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

BOS, EOS, PAD = SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|pad|>"]
SIZE = 512


def main():
    lines, out = map(pathlib.Path, sys.argv[1:])
    texts = [line.split("\t")[-1] for line in lines.read_text().splitlines()]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE,
        special_tokens=SPECIAL,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator((f"[{i % 2}] {t}" for i, t in enumerate(texts)), trainer)
    ids = [(t, tokenizer.token_to_id(t)) for t in (BOS, EOS)]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A {EOS}", pair=f"{BOS} $A {EOS} {BOS}:1 $B:1 {EOS}:1", special_tokens=ids
    )
    tokenizer.save(str(out))


if __name__ == "__main__":
    main()
