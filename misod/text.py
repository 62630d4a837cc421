"""Text to pieces a model can say: split into sentences, write numbers out, cut to length.

Pieces come lazily: the first is ready before the rest of a long text has been looked at. And no step takes
long whatever the text is: a step of the engine waits for it, and one of over 10 s ends the daemon.
"""

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

import kitten_text_processing

from protocol.messages import speakable

# A full stop after these does not end a sentence; after the second kind it does where a capital follows; after
# the third it does unless a number follows.
_TITLES = set("Mr Mrs Ms Dr Prof St Gen Col Lt Sgt Rev Hon vs approx e.g i.e".split())
_AT_THE_END_TOO = set("Jr Sr Inc Ltd Co etc a.m p.m".split())
_BEFORE_NUMBERS = set("No no Fig fig Vol vol pp Jan Feb Mar Apr Jun Jul Aug Sep Sept Oct Nov Dec".split())
_INITIALS = re.compile(r"(?:[A-Za-z]\.)+[A-Za-z]")  # U.S: its last stop ends a sentence where one of these follows
_STARTERS = set("A An And As At But For He How I If In It My No On Our She So That The There They This We What".split())
# Only a whole run of marks is tried, and never given back in parts: 60,000 full stops take no time.
_END = re.compile(r"(?<![.!?…])[.!?…]++[\"'”’)\]]*+(?=\s)|[。！？]|\n\s*\n|\n(?=[ \t]*(?:[-*+•]|\d{1,3}[.)])[ \t])")
_WORD = re.compile(r"[^\s\"'“”‘’(\[\-]*$")
# Letters and plain marks with no stop inside: the grammars would change nothing, and cost 30 ms.
_PLAIN = re.compile(r"[A-Za-z' ,;:\-]*[A-Za-z][,;:.!?]?")
_CAPITALS = re.compile(r"\b[A-Z]{2,}\b")
# Read as words though they are as short as initials are. US, IT, AM and OK are not among them.
_SHORT_WORDS = set(
    "ALL AN AND ANY ARE AS BAD BE BIG BUT BY CAN DAY DID DO DON END FEW FOR GET GO GOT HAD HAS HE HER HEY HI HIM HIS"
    " HOT HOW IF IN IS ITS LET LOW MAN MAY ME MEN MY NEW NO NOR NOT NOW OF OFF OH OLD ON ONE OR OUR OUT OWN PUT RED RUN"
    " SAW SAY SEE SET SHE SIX SO SON TEN THE TO TOO TOP TRY TWO UP USE WAS WAY WE WHO WHY WIN WON YES YET YOU".split()
)
_CLAUSE = re.compile(r"(?<=[,;:.!?—])\s+")
_LONGEST_WORD = 40

# Marks that the grammars would read aloud ("asterisk", "colon slash slash").
_RANGE = re.compile(r"(?<=\d)\s?–\s?(?=\d)")
_TIMES = re.compile(r"(?<=\d)\s?\*\s?(?=\d)")
_NUMBER_SIGN = re.compile(r"#(?=\d)")
_SHARP = re.compile(r"\b([A-G])#(?!\w)")
_SIGNS = dict(
    zip("÷±×=&<>", "divided by|plus or minus|times|equals|and|less than|greater than".split("|"), strict=True)
)
_SIGN = re.compile(r"(?<=\w)\s?[÷±×=&]\s?(?=\w)|±(?=\d)|(?<=\d)[<>](?=\d)|(?<=\w )[<>](?= \w)")
_TAG = re.compile(r"</?[A-Za-z][^<>]{0,200}>")
_UNSEEN = re.compile("[\u00ad\u200b-\u200f\u202a-\u202e\u2060-\u206f\ufeff]")  # soft hyphens, joiners, directions
_SCHEME = re.compile(r"\b[A-Za-z]{2,10}://")
_MARKUP = re.compile(r"[*#_`~|<>\\^{}\[\]\x00-\x1f\x7f]+|//+")

# What NFKD leaves, of letters and marks that have a likeness.
_LIKENESS = str.maketrans(
    {"’": "'", "‘": "'", "ʼ": "'", "′": "'", "—": ", ", "–": ", ", ";": ",", "…": ".", "ß": "ss", "ẞ": "SS"}
    | {"æ": "ae", "Æ": "Ae", "œ": "oe", "Œ": "Oe", "ø": "o", "Ø": "O", "ł": "l", "Ł": "L", "đ": "d", "Đ": "D"}
    | {"ð": "d", "Ð": "D", "þ": "th", "Þ": "Th", "ı": "i", "&": " and ", "%": " percent", "@": " at "}
    | {"。": ".", "！": "!", "？": "?", "，": ",", "、": ","}
)
_DIGITS = dict(zip("0123456789", "zero one two three four five six seven eight nine".split(), strict=True))


@dataclass(frozen=True)
class Limits:
    """What one piece may hold: the longest a model was trained on, and the marks it was taught to read.

    `letters` true: only A-Z, a-z and , . ? ! ' - : are left of each piece; accents are folded.
    """

    max_words: int = 60
    max_characters: int = 400
    letters: bool = False


# The grammars take about 5 ms a character where numbers are dense: a clause at a time.
_NORMALISED = Limits(max_words=30, max_characters=120)


def pieces(text: str, limits: Limits) -> Iterator[str]:
    """The text as a model is to read it, in order, every piece speakable and within `limits`."""
    for sentence in map(_calm, sentences(_plain_digits(_UNSEEN.sub("", text)))):
        for clause in [sentence] if _is_plain(sentence) else _cut(sentence, _NORMALISED):
            # before the grammars, which would take minutes over 60,000 marks or letters that the model has not
            if not speakable(fold_to_letters(clause) if limits.letters else clause):
                continue
            spoken = normalise(clause)
            if limits.letters:
                spoken = fold_to_letters(spoken)
            for piece in _cut(spoken, limits):
                if speakable(piece):
                    yield _ended(piece)


def sentences(text: str) -> Iterator[str]:
    """Split after . ! ? … and at blank lines, but not after an abbreviation or an initial."""
    start = 0
    for match in _END.finditer(text):
        if _goes_on(text, match):
            continue
        if clean := " ".join(text[start : match.end()].split()):
            yield clean
        start = match.end()
    if clean := " ".join(text[start:].split()):
        yield clean


def _goes_on(text: str, mark: re.Match) -> bool:
    """Whether the sentence goes on after this mark."""
    after = text[mark.end() : mark.end() + 8].lstrip()[:1]
    if mark.group() != ".":  # "Stop!" he said.
        return mark.group()[-1:] in "\"'”’)]" and after.islower()
    word = _WORD.search(text[max(0, mark.start() - 12) : mark.start()]).group()
    if word in _AT_THE_END_TOO:
        return not after.isupper()
    if word in _BEFORE_NUMBERS:
        return after.isdigit()
    if _INITIALS.fullmatch(word) and word not in _TITLES:
        return re.match(r"\s*(\w*)", text[mark.end() : mark.end() + 12])[1] not in _STARTERS
    return word in _TITLES or (len(word) == 1 and word.isalpha())


def _calm(sentence: str) -> str:
    """A sentence in capitals is words, not initials: STOP THE CAR."""
    shouted = sentence.isupper() and any(len(word) > 3 for word in re.findall(r"[A-Z]+", sentence))
    return sentence.capitalize() if shouted else sentence


def normalise(sentence: str) -> str:
    """Numbers, money, dates, times and units written out as they are spoken (NeMo's grammars)."""
    if _is_plain(sentence):
        return sentence
    return " ".join(kitten_text_processing.normalize_text(_without_markup(sentence)).split())


def _is_plain(sentence: str) -> bool:
    return bool(_PLAIN.fullmatch(sentence)) and not _CAPITALS.search(sentence)


def _without_markup(text: str) -> str:
    """Signs by their names; no mark that is written but not said."""
    text = _SIGN.sub(lambda m: f" {_SIGNS[m.group().strip()]} ", _TAG.sub(" ", text))
    text = _SHARP.sub(r"\1 sharp", text)
    text = _RANGE.sub(" to ", text)
    text = _TIMES.sub(" times ", text)
    text = _NUMBER_SIGN.sub("number ", text)
    return _MARKUP.sub(" ", _SCHEME.sub(" ", text))


def _plain_digits(text: str) -> str:
    """Digits of any script as 0-9."""
    return text if text.isascii() else "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)


def warm() -> None:
    """Load the grammars (0.1 s) before the first request needs them."""
    kitten_text_processing.warm()


def fold_to_letters(text: str) -> str:
    """For a model that knows A-Z and , . ? ! ' - : only: fold what has a likeness, drop the rest."""
    text = unicodedata.normalize("NFKD", text.translate(_LIKENESS))
    text = re.sub(r"[0-9]", lambda m: f" {_DIGITS[m.group()]} ", text)  # the grammars leave few
    text = re.sub(r"[^A-Za-z,.?!'\-: ]", lambda m: "" if unicodedata.combining(m.group()) else " ", text)
    text = _CAPITALS.sub(lambda m: _read_capitals(m.group()), text)
    text = re.sub(r"--+|(?<!\S)-+(?!\S)", ", ", text)
    text = re.sub(r" ([,.?!:])", r"\1", " ".join(text.split()))
    return re.sub(r"([,.?!:])(?=[,.?!:])", "", text)


def _read_capitals(word: str) -> str:
    """USA is spelt; NATO, HELLO and WHY are read."""
    return word.capitalize() if len(word) > 3 or word in _SHORT_WORDS else " ".join(word)


def _cut(sentence: str, limits: Limits) -> list[str]:
    """At clause marks where it can, into parts of like length within the limits."""
    if not _too_long(sentence, limits):
        return [sentence]
    parts: list[str] = []
    for clause in _CLAUSE.split(sentence):
        for part in _split_evenly(clause, limits):
            joined = f"{parts[-1]} {part}" if parts else part
            if parts and not _too_long(joined, limits):
                parts[-1] = joined
            else:
                parts.append(part)
    return parts


def _split_evenly(clause: str, limits: Limits) -> list[str]:
    longest = min(_LONGEST_WORD, limits.max_characters - 1)
    words = [w[i : i + longest] for w in clause.split() for i in range(0, len(w), longest)]
    parts_needed = max(1, -(-len(words) // limits.max_words), -(-len(clause) // limits.max_characters))
    size = -(-len(words) // parts_needed)
    parts: list[list[str]] = []
    for word in words:
        if not parts or len(parts[-1]) >= size or _too_long(" ".join([*parts[-1], word]), limits):
            parts.append([])
        parts[-1].append(word)
    return [" ".join(part) for part in parts]


def _too_long(text: str, limits: Limits) -> bool:
    return len(text.split()) > limits.max_words or len(text) >= limits.max_characters  # room for a final mark


def _ended(piece: str) -> str:
    """A model cuts its last word where no mark tells it that the sentence ends."""
    piece = piece.lstrip(" ,;:.!?…-—–").rstrip(" ,;:-—–")
    return piece if piece.rstrip("\"'”’)]").endswith((".", "!", "?", "…", "。", "！", "？")) else piece + "."
