"""Words that misoctl's command line has in common with the wire and misod. --help has no time for all messages."""

WHENS = ("queue", "interrupt", "drop", "overlap")  # of `floor`
PRIORITIES = ("low", "normal", "high")  # of `floor`, as numbers from 0
KITTENS = (  # fields of `say` that KittenTTS 2 alone takes
    "repetition_penalty",
    "repetition_window",
    "run_penalty",
    "run_grace",
    "use_emotion",
    "use_reference",
    "chunk_chars",
    "chunk_min_chars",
    "gap_s",
    "decoder",
)
PULLABLE = ("miso", "kitten")  # models
