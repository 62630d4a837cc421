"""tokenizer.json, as both engines read it."""

from pathlib import Path

from tokenizers import Tokenizer


def read_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """Raises OSError where it is not there, ValueError naming it where it is none, or not this model's."""
    text = path.read_bytes().decode(errors="replace")
    try:
        tokenizer = Tokenizer.from_str(text)
    except Exception as error:  # tokenizers raises bare Exception
        raise ValueError(f"{path}: not a tokenizer: {error}") from None
    if tokenizer.get_vocab_size() > vocabulary:
        raise ValueError(f"{path}: {tokenizer.get_vocab_size()} tokens, but the model knows {vocabulary}")
    return tokenizer
