"""Engine one: MisoTTS, a backbone over frames, a depth decoder over codebooks, the Mimi codec."""

from misod.blas import use_openblas

use_openblas()
