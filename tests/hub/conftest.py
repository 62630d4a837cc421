from pulling import files, home, hub  # noqa: F401
