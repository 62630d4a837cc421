"""What is said in a recording, by a recogniser that the user installed. Run as a child, so that misoctl stays light.

It never downloads: only `misoctl pull` uses the network.
"""

import contextlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable

from misoctl.voicefile import Clip
from protocol import messages as m

MODELS = {"mlx_whisper": "mlx-community/whisper-tiny", "faster_whisper": "base"}  # where none is named
RATE_HZ = 16_000  # of whisper
TRANSCRIBE_S = 300.0


def transcribe(clip: Clip, model: str | None, talk: Callable[[str], None]) -> str:
    """On one line; "" where there is no recogniser, or where it fails, which is told."""
    kind = next((name for name in MODELS if importlib.util.find_spec(name)), None)
    if kind is None:
        return ""
    model = model or MODELS[kind]
    talk("no --text: listening for what is said in it")
    command = [sys.executable, "-P", "-m", "misoctl.transcriber", kind, model]
    environ = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONIOENCODING": "utf-8:replace"}
    options = {"input": clip.pcm, "env": environ, "capture_output": True, "timeout": TRANSCRIBE_S}
    try:
        child = subprocess.run(command, check=False, **options)
        why = [line for line in child.stderr.decode(errors="replace").splitlines() if line.strip()]
    except subprocess.TimeoutExpired:
        child, why = None, [f"it took over {TRANSCRIBE_S:g} s"]
    if child is None or child.returncode != 0:
        reason = why[-1][:100] if why else f"signal {-child.returncode}"
        talk(f"{kind} could not use {model} ({reason}): --transcriber or MISO_TRANSCRIBER_MODEL names one that is here")
        return ""
    return " ".join(child.stdout.decode(errors="replace").split())


def main(kind: str, model: str) -> None:
    """Standard input: mono s16le at CLIP_HZ. Standard output: the words."""
    import numpy as np

    from misoctl.resample import resample

    pcm = np.frombuffer(sys.stdin.buffer.read(), "<i2") / 32768
    sound = resample(pcm, m.CLIP_HZ, RATE_HZ).astype(np.float32)
    with contextlib.redirect_stdout(sys.stderr):
        if kind == "mlx_whisper":
            import mlx_whisper

            text = mlx_whisper.transcribe(sound, path_or_hf_repo=model)["text"]
        else:
            from faster_whisper import WhisperModel

            whisper = WhisperModel(model, device="cpu", compute_type="int8", local_files_only=True)
            text = " ".join(segment.text for segment in whisper.transcribe(sound)[0])
    sys.stdout.write(text)


if __name__ == "__main__":
    main(*sys.argv[1:])
