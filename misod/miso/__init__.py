"""Engine one: MisoTTS, a backbone over frames, a depth decoder over codebooks, the Mimi codec."""

from misod.before_mlx import prepare

prepare()
