"""What would play: the same order in which misoctl looks."""

import importlib.util
import shutil
import subprocess
import sys

from misod.doctor.finding import COMMAND_S, Finding, Site, ok, warn

PROGRAMS = ("ffplay", "play", "pw-play", "paplay", "aplay", "afplay")  # misoctl's players; `play` is sox
ASK = "import sounddevice; print(sounddevice.query_devices(kind='output')['name'])"


def player(site: Site) -> Finding:
    device, problem = _output_device()
    if device:
        return ok("player", f"sounddevice, to {device}")
    aside = f"; not sounddevice: {problem}" if problem else ""
    if found := next(filter(None, map(shutil.which, PROGRAMS)), None):
        return ok("player", f"{found}{aside}")
    cure = "brew install ffmpeg" if site.mac else "apt install ffmpeg"
    detail = f"none of {', '.join(PROGRAMS)} is on PATH{aside}"
    return warn("player", detail, f"`{cure}`, or write files with `misoctl say -o`")


def _output_device() -> tuple[str | None, str | None]:
    """Its name, or why there is none; (None, None) where sounddevice is not installed. In a child: PortAudio is C."""
    if not importlib.util.find_spec("sounddevice"):
        return None, None
    command = [sys.executable, "-P", "-c", ASK]
    try:
        child = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=COMMAND_S, check=False)
    except subprocess.TimeoutExpired:
        return None, f"no answer within {COMMAND_S:g} s"
    if child.returncode == 0:
        return child.stdout.decode(errors="replace").strip(), None
    said = child.stderr.decode(errors="replace").strip().splitlines()
    return None, said[-1] if said else f"it ends the process with {child.returncode}"
