"""What is measured, each with its own `python -m benchmarks.NAME`; as the daemon does, before anything imports mlx."""

from misod.before_mlx import prepare

prepare()
