"""How speech is heard: the players, when the first word may start, and what goes before it."""
