"""Which player: the one that was asked for, else the first one here."""

import shutil
import sys

from misoctl.playing.afplay import AfPlay
from misoctl.playing.device import Device
from misoctl.playing.program import COMMANDS, DEVICE_ARGUMENTS, DEVICE_VARIABLES, Program
from protocol import errors
from protocol.errors import Failure
from protocol.settings import PLAYERS, Playing

Output = Device | Program | AfPlay
TAKE_A_DEVICE = ("sounddevice", *DEVICE_VARIABLES, *DEVICE_ARGUMENTS)


def open_output(settings: Playing) -> Output:
    """Raises Failure where there is none, or none of that name, or where it cannot play to that device."""
    if settings.player != "auto":
        if settings.device and settings.player not in TAKE_A_DEVICE:
            others = ", ".join(name for name in PLAYERS if name in TAKE_A_DEVICE)
            raise Failure(errors.USAGE, f"{settings.player} plays to the default device only", f"of {others} one does")
        if output := _opened(settings.player, settings.device):
            return output
        raise Failure(errors.NO_PROGRAM, f"{settings.player} is not here", _cure())
    why = ""
    for name in PLAYERS:
        if settings.device and name not in TAKE_A_DEVICE:
            continue
        try:
            if output := _opened(name, settings.device):
                return output
        except Failure as failure:
            if settings.device:  # it is misspelt, or belongs to a player that was not named
                raise
            why = f"; {failure.message}"
    message = f"no audio player found ({', '.join(name for name in PLAYERS if name != 'afplay')}){why}"
    raise Failure(errors.NO_PROGRAM, message, _cure())


def _opened(name: str, device: str) -> Output | None:
    """None where it is not installed. Raises Failure where sounddevice has no such device."""
    if name == "sounddevice":
        try:
            return Device(device)
        except (ImportError, OSError):  # not installed, or PortAudio is not
            return None
    if path := shutil.which(COMMANDS.get(name, name)):
        return AfPlay(path) if name == "afplay" else Program(name, path, device)
    return None


def _cure() -> str:
    install = "brew install ffmpeg" if sys.platform == "darwin" else "apt install ffmpeg"
    return f"install one (`{install}`), or write a file with -o"
