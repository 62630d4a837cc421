"""Engine two: KittenTTS 2, a Qwen3 over text and 25 Hz speech tokens whose linear layers are ternary."""

from misod.before_mlx import prepare

prepare()
