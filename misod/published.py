"""The voices that a KittenTTS 2 repository brings: what `voices` lists of them, and what tells one from another.

Read from the repository's files where no model is loaded, so nothing here is of mlx.
"""

import hashlib
import json
from pathlib import Path

CONFIG = "config.json"
LANGUAGES = ("arabic", "chinese", "french", "german", "hindi", "italian", "portuguese", "russian", "spanish")
CHARACTERS = """
bella: woman, of Kitten 0.8; jasper: man, of Kitten 0.8; luna: woman, of Kitten 0.8; bruno: man, of Kitten 0.8
rosie: woman, of Kitten 0.8; hugo: man, of Kitten 0.8; kiki: woman, of Kitten 0.8; leo: man, of Kitten 0.8
matthew: man, a mechanic, tired out; elliot: young man, in grief; willow: young woman, hushed
dolores: old woman, of the South; victor: older man, fury held back; dante: young man, smooth, at play
alfred: older man, tender; saoirse: woman, Irish, merry; claire: woman, at work, at play
raven: young woman, fury held back; marcus: man, on late radio; herbert: old man, a wise professor
diana: woman, an officer, stern; laurence: man, on a stage; maeve: woman, tells stories, warm
walter: grandfather, warm; edith: grandmother, soft; miles: man, a librarian, gentle; grace: woman, a nurse, soothing
reginald: old man, a diplomat; iris: woman, a museum guide, hushed; frank: man, an old soldier, gravelly
serena: woman, teaches yoga, gentle; julian: man, a poet, dreamy; eleanor: woman, a historian, sombre
otis: man, sings the blues, rumbling; vincent: man, a museum guide, hushed; martha: woman, a reporter, weathered
sable: woman, conspires, hushed; victoria: woman, narrates, regal
"""


def listing(directory: Path, name: str = "") -> list[dict]:
    """Of one voice, with its digest, or of all; none where the model is no such repository. Raises OSError, ValueError
    and what JSON of another kind raises.
    """
    path, voices = _voices(directory)
    told = []
    for speaker, (each, spec) in enumerate(voices.items()):
        row = {"name": each.lower(), "speaker": speaker, "language": language(each), "character": character(each)}
        row |= {"text": spec["transcript"].strip(), "digest": digest(path.parent, spec) if name else ""}
        told += [row] if name in ("", row["name"]) else []
    return told


def _voices(directory: Path) -> tuple[Path, dict]:
    """The list of voices, and what it holds, the default first: a voice's number is its place."""
    config = json.loads((directory / CONFIG).read_bytes())
    if config.get("type") != "KITTEN2":
        return directory, {}
    path = directory / config.get("voices", "voices/voices.json")
    voices = json.loads(path.read_bytes())
    return path, {name: voices[name] for name in sorted(voices, key=lambda name: name != config.get("default_voice"))}


def digest(folder: Path, spec: dict) -> str:
    """Of all that is heard of it."""
    files = (hashlib.sha256((folder / spec[part]).read_bytes()).digest() for part in ("artifacts", "reference"))
    return hashlib.sha256(b"".join([*files, spec["transcript"].strip().encode()])).hexdigest()


def language(name: str) -> str:
    return name.capitalize() if name.lower() in LANGUAGES else "English"


def character(name: str) -> str:
    """Who is heard, in a few words; "" of a voice that is not known here, and of one that stands for its language."""
    known = (entry.partition(":") for line in CHARACTERS.splitlines() for entry in line.split(";"))
    return next((words.strip() for each, _, words in known if each.strip() == name.lower()), "")
