"""misod: the daemon that keeps a speech model warm."""

__version__ = "0.1.0"
