"""Words of the wire that the command line has, too. Alone, for --help has no time for all messages."""

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
