"""misoctl: the thin client. Never imports mlx; starts in the time of an import of click."""

__version__ = "0.1.0"
