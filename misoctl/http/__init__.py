"""Speech over HTTP as OpenAI's clients ask for it: a process of its own, that is a client of misod as `say` is."""
