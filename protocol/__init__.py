"""The wire between misoctl and misod: messages, codec, paths, errors. Imports neither side."""
