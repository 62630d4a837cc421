"""Sentences to train on: WordNet, Jane Austen, and everyday lines made here.

  python -m training.text DEB OUT      DEB: where `dpkg -x` put wordnet-base, r-cran-janeaustenr, r-cran-stringr

Writes OUT/train.txt (source TAB sentence, shuffled) and OUT/test.txt (100 Harvard sentences).
Sentences hold letters, spaces and , . ? ! ' - : only, at most MAX_WORDS words. No line shares
five words in a row with any of the 720 Harvard sentences, so the test measures new text.
Licences: WordNet 3.0 licence (permissive); Austen: public domain; everyday lines: this project's.
"""

import pathlib
import random
import re
import struct
import sys
import zlib

from training.everyday import everyday

MAX_WORDS = 22
MAX_CHARS = 125
TAKE = {"example": 50000, "gloss": 42000, "austen": 30000, "words": 6000, "everyday": 40000}  # lines a source, at most
TITLES = {"Mr.": "Mister", "Mrs.": "Missus", "Dr.": "Doctor", "St.": "Saint"}


def words(sentence):
    return re.sub(r"[^a-z' ]", "", sentence.lower().replace("-", " ")).split()


def clean(text):
    """One sentence in the allowed characters, or None if it cannot be had."""
    for title, spoken in TITLES.items():
        text = text.replace(title, spoken)
    text = text.translate(str.maketrans({"“": None, "”": None, '"': None, "_": None, "’": "'", "`": "'", ";": ","}))
    text = re.sub(r"\s+", " ", text.replace("--", ", ")).replace(" ,", ",").strip(" ,'-:")
    if re.search(r"[^A-Za-z ,.?!'\-:]", text) or re.search(r"\.(?=\S)|\b(e\.g|i\.e|etc|esp)\.", text):
        return None
    if not text or len(text) > MAX_CHARS or len(words(text)) > MAX_WORDS or max(map(len, words(text)), default=17) > 16:
        return None
    text = text[0].upper() + text[1:]
    return text if text[-1] in ".?!" else text + "."


def r_strings(rdb):
    """All strings of an R lazy-load database: zlib blocks of serialised CHARSXPs (type 9, then a 4-byte length)."""
    data, at = pathlib.Path(rdb).read_bytes(), 0
    while at < len(data) - 8:
        unpack = zlib.decompressobj()
        try:
            block = unpack.decompress(data[at + 4 :])
        except zlib.error:
            at += 1
            continue
        at = len(data) - len(unpack.unused_data)
        i, found = 0, []
        while i < len(block) - 8:
            flags, size = struct.unpack(">Ii", block[i : i + 8])
            if flags & 0xFF == 9 and flags >> 8 < 0x1000 and 0 <= size < 5000:
                found.append(block[i + 8 : i + 8 + size].decode("utf8", "replace"))
                i += 8 + size
            else:
                i += 1
        yield found


def harvard(deb):
    """The 720 Harvard sentences, as stringr ships them. For tests only."""
    sets = r_strings(deb / "usr/lib/R/site-library/stringr/data/Rdata.rdb")
    return next(s for s in sets if sum(x.endswith(".") for x in s) > 700)


def wordnet(deb, rng):
    """{source: lines}: usage examples, definitions, and lists of two to four lemmas."""
    examples, glosses, lemmas = [], [], set()
    for part in ("noun", "verb", "adj", "adv"):
        for line in (deb / f"usr/share/wordnet/data.{part}").read_text("latin1").splitlines():
            if "|" not in line:
                continue
            head, gloss = line.split("|", 1)
            examples += re.findall(r'"([^"]+)"', gloss)
            glosses.append(re.sub(r'"[^"]*"|\([^)]*\)', "", gloss).split(";")[0])
            lemmas |= {
                w.split("(")[0].replace("_", " ") for w in head.split()[4 : 4 + 2 * int(head.split()[3], 16) : 2]
            }
    lemmas = sorted(w for w in lemmas if re.fullmatch(r"[A-Za-z' -]{3,24}", w) and not re.search(r"[A-Z]{2}", w))
    rng.shuffle(lemmas)
    lists = []
    while len(lemmas) > 4:
        take = [lemmas.pop() for _ in range(rng.choice((1, 2, 3, 3, 4)))]
        lists.append(", ".join(take[:-1]) + rng.choice((", and ", ", ", ", or ")) * (len(take) > 1) + take[-1])
    return {"example": examples, "gloss": glosses, "words": lists}


def austen(deb):
    for book in r_strings(deb / "usr/lib/R/site-library/janeaustenr/data/Rdata.rdb"):
        text = " ".join(x or "\n" for x in book)
        for title, spoken in TITLES.items():
            text = text.replace(title, spoken)
        for paragraph in text.split("\n"):
            for sentence in re.split(r'(?<=[.?!])["\']?\s+', re.sub(r"\s+", " ", paragraph)):
                yield sentence
                if len(sentence) > MAX_CHARS:
                    yield from re.split(r"[;:]|--", sentence)


def five_grams(sentence):
    w = words(sentence)
    return {tuple(w[i : i + 5]) for i in range(max(1, len(w) - 4))}


def main():
    deb, out = map(pathlib.Path, sys.argv[1:])
    out.mkdir(parents=True, exist_ok=True)
    rng = random.Random(7)
    test = harvard(deb)
    banned = set().union(*map(five_grams, test))
    sources = wordnet(deb, rng) | {"austen": list(austen(deb)), "everyday": everyday(rng, TAKE["everyday"])}
    seen, lines = set(), []
    for source, raw in sources.items():
        kept = []
        rng.shuffle(raw)
        for sentence in filter(None, map(clean, raw)):
            key = tuple(words(sentence))
            if key and key not in seen and not five_grams(sentence) & banned:
                seen.add(key)
                kept.append(f"{source}\t{sentence}")
        lines += kept[: TAKE[source]]
        print(source, len(kept), "kept", min(len(kept), TAKE[source]), "used")
    rng.shuffle(lines)
    (out / "train.txt").write_text("\n".join(lines) + "\n")
    (out / "test.txt").write_text("\n".join(random.Random(1).sample(test, 100)) + "\n")


if __name__ == "__main__":
    main()
