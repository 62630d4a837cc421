"""From `say` to the first sound, through a real daemon, by the length of the text.

  python -m benchmarks.ttfa [--words 1 5 20 100 1000] [--rounds N] [--json FILE] [--plot FILE]

Time to the first PCM as a client that is connected sees it; the lengths take turns, each round with another seed. Only
the first piece of a text is read before it is spoken, so the length ought not to matter beyond that.
"""

import time
from contextlib import closing
from itertools import count, cycle, islice

from benchmarks.figures import arguments, in_turn, keep, own_daemon, show
from misoctl.client import Client
from protocol import messages as m
from protocol.paths import find_paths

WORDS = "the rain had stopped by noon, and the children ran down to the river to see how high the water stood".split()
SENTENCE_WORDS = 12


def text_of(words: int) -> str:
    """In sentences, as people write them."""
    spoken = list(islice(cycle(WORDS), words))
    parts = [spoken[i : i + SENTENCE_WORDS] for i in range(0, words, SENTENCE_WORDS)]
    return " ".join(" ".join(part).rstrip(",").capitalize() + "." for part in parts)


def first_sound_ms(client: Client, text: str, seed: int) -> float:
    """Heard, it is cancelled."""
    asked_s = time.perf_counter()
    with closing(client.say(text=text, seed=seed)) as stream:
        next(message for message in stream if isinstance(message, m.Pcm))
        heard_s = time.perf_counter()
    while client.status().speaking:  # no row of it is left for the next
        time.sleep(0.005)
    return (heard_s - asked_s) * 1e3


def main() -> None:
    p = arguments(__doc__, rounds=12)
    p.add_argument("--words", type=int, nargs="+", default=[1, 5, 20, 100, 1000])
    a = p.parse_args()
    with own_daemon(a.model), Client(find_paths()) as client:
        seeds, texts = count(), {f"{words} words": text_of(words) for words in a.words}
        cases = {name: lambda text=text: first_sound_ms(client, text, next(seeds)) for name, text in texts.items()}
        found = in_turn(a.rounds, cases)
    show(found, "ms")
    keep(a, found, "words", "ms to the first sound")


if __name__ == "__main__":
    main()
