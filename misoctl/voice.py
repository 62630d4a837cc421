"""What `say` is told of a voice: its name, a clip to speak like, and the nearest name where there is none."""

import json
from contextlib import contextmanager

import click

from protocol import errors
from protocol.errors import Failure


def slug(_ctx, _param, name: str | None) -> str | None:
    """A voice's or a session's name. Another is refused with the nearest that would do."""
    if name is None:
        return None
    from protocol import messages as m

    if m.is_name(name):
        return name
    import re
    import unicodedata

    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    near = re.sub(r"[^a-z0-9._]+", "-", plain).strip("-._")[:64]
    raise click.BadParameter(f"{name!r}: {m.NAME_RULE}" + (f"; try {near}" if near else ""))


def chosen(ctx, param, name: str | None) -> str | None:
    """The --voice of say: ? lists them, as macOS's say does, and Bruno is bruno."""
    if name in (None, "?"):
        return name
    from protocol import messages as m

    return name.lower() if m.is_name(name.lower()) else slug(ctx, param, name)


def one_off(like: str | None, text: str | None, options: dict, talk) -> dict:
    """What `say` sends of --like and its --text."""
    if like is None:
        if text is not None:
            raise click.UsageError("--text is for --like")
        return {}
    if "voice" in options:
        raise click.UsageError("give --voice or --like, not both")
    from misoctl.learning import hear, read_recording

    clip, words = read_recording(like, text, None, talk)
    return {"clip": clip.pcm, "clip_text": hear(like, clip, words, None, talk)}


@contextmanager
def suggesting(client, name: str | None, model: str | None = ""):
    """A voice that is not there: is there one of nearly that name? `model` "": only those that were learned count;
    None: those of the model that is loaded, too.
    """
    try:
        yield
    except Failure as failure:
        if failure.code != "no_voice":
            raise
        rows = rows_of(client, model=client.status().model if model is None else model)
        cure = errors.did_you_mean(name, [row["name"] for row in rows]) or failure.next_step
        raise Failure(failure.exit_code, f"no voice {name}", cure) from None


def check_digest(client, receipt: str, name: str | None, digest: str, model: str) -> None:
    """Raises Failure unless voice `name` is the one that `receipt` was spoken with."""
    if name is None:
        return
    with suggesting(client, name, model):
        (row,) = rows_of(client, name, model)
    if row.get("digest") != digest:
        message = f"{receipt} was spoken with another voice {name} than the one here"
        raise Failure(errors.BAD_DATA, message, "learn or import that one")


def rows_of(client, name: str = "", model: str = "") -> list[dict]:
    """Of all voices, or of one; those that `model` brings are among them."""
    from protocol import messages as m

    return json.loads(client.ask(m.VoicesRequest, name=name, model=model).listing)
