"""The verbs for voices and sessions."""

import json
from typing import TYPE_CHECKING

import click

from misoctl.options import json_option, quiet_option
from misoctl.talk import hush, tell
from misoctl.voice import rows_of, slug, suggesting
from protocol import errors
from protocol.errors import Failure

if TYPE_CHECKING:  # 17 ms, of what --help takes
    from protocol import messages as m

replace_option = click.option("--replace", is_flag=True, help="In place of what has that name.")
TRANSCRIBER_HELP = "Whisper model for a recording without words: a folder, or a name that it has here already."


def list_all(model: str | None, as_json: bool = False) -> None:
    """Those that were learned, and those that the model brings: `model`, or the one that speaks by default."""
    from misoctl.start import connect
    from protocol import messages as m
    from protocol.paths import find_paths

    with connect(find_paths(), True, tell) as client:
        _list(client.ask(m.VoicesRequest, name="", model=model or client.status().model), as_json)


def _ask(kind: str, talk=tell, **request) -> "m.Message":
    """The answer to a message of the wire."""
    from misoctl.start import connect
    from protocol import messages as m
    from protocol.paths import find_paths

    with connect(find_paths(), True, talk) as client, suggesting(client, request.get("name")):
        return client.ask(m.FROM_CLIENT[kind], **request)


def _list(answer: "m.Voices | m.Sessions", as_json: bool) -> None:
    """A line each; on a terminal no wider than it is."""
    if as_json:
        click.echo(answer.listing)
        return
    import shutil
    import sys

    rows = json.loads(answer.listing)
    width = max((len(row["name"]) for row in rows), default=0)
    most = shutil.get_terminal_size().columns if sys.stdout is not None and sys.stdout.isatty() else None
    for row in rows:
        click.echo(f"{row['name']:<{width}}  {_printable(_told(row))}"[:most])
    if not rows:
        kind, verb = ("voice", "learn NAME CLIP") if answer.t == "voices" else ("session", "say --session NAME")
        tell(f"there is no {kind} yet; `misoctl {verb}` makes one")


def _told(row: dict) -> str:
    if row.get("problem"):
        return f"damaged: {row['problem']}"
    if "turns" in row:
        turns = f"{row['turns']} turn{'s' * (row['turns'] != 1)}"
        return f"{turns:<9}  {row['seconds']:>6.1f} s  {row['bytes'] / 1e3:>7.1f} kB  {row['model']}"
    if "character" in row:
        return f"{row['language']:<10}  {row['character']}".rstrip()
    return f"{row['seconds']:>4.1f} s  {row['created'][:10]}  {row['model'] or '-':<6}  # {row['text']}"


def _printable(text: object) -> str:
    """A voice that was imported may hold anything, a terminal's commands too."""
    return "".join(c if c.isprintable() else " " for c in str(text))


@click.command()
@click.argument("name", callback=slug)
@click.argument("clip")
@click.option("--text", metavar="WORDS", help="What is said in CLIP, word for word.")
@click.option("--text-file", metavar="FILE", help="The same, from FILE; - is standard input.")
@click.option("--speaker", type=click.IntRange(0, 99), default=0, show_default=True, help="Its number for the model.")
@click.option("--licence", "--license", default="", metavar="WORDS", help="What its owner said of its use; is kept.")
@click.option("--model", metavar="NAME", help="That is to speak as it; by default the one loaded.")
@click.option("--transcriber", metavar="MODEL", envvar="MISO_TRANSCRIBER_MODEL", help=TRANSCRIBER_HELP)
@click.option("--i-have-permission", "permission", is_flag=True, help="The speaker agreed; do not ask.")
@replace_option
@quiet_option
def learn(name, clip, text, text_file, transcriber, permission, quiet, **options) -> None:
    """Learn the voice of a recording, and keep it as NAME.

    \b
      misoctl learn anna clip.wav --text "What she says in it, word for word."
      misoctl say -v anna "Hello."

    CLIP is WAV, FLAC, OGG, MP3 or, on macOS, m4a, of 1 to 30 s; 5 to 15 s of one voice in a quiet room are best.
    """
    from misoctl.learning import ask_permission, check_asks, hear, read_recording
    from misoctl.speech import telling
    from misoctl.start import connect
    from protocol.paths import find_paths

    talk = hush if quiet else tell
    check_asks(permission)
    recording, words = read_recording(clip, text, text_file, talk)
    request = {"name": name, "clip": recording.pcm, "clip_digest": recording.digest, "permission": True}
    with connect(find_paths(), True, talk) as client:
        if not options["replace"]:
            _check_free(client, name)
        ask_permission(permission)
        words = hear(clip, recording, words, transcriber, talk)
        for _ in telling(client.learn(**request, text=words, **options), talk):
            pass
    how = f"--model {options['model']} -v {name}" if options["model"] else f"-v {name}"
    talk(f'learned {name}, {recording.seconds:.1f} s; try `misoctl say {how} "Hello."`')


def _check_free(client, name: str) -> None:
    """Before anybody is asked, or listens. misod looks again: another may learn it meanwhile."""
    if any(row["name"] == name for row in rows_of(client)):
        raise Failure.of_code("voice_exists", f"there is a voice {name} already")


@click.group(invoke_without_command=True)
@json_option
@click.option("--model", metavar="NAME", help="Whose own voices are listed; by default the model that is loaded.")
@click.pass_context
def voices(ctx, as_json, model) -> None:
    """The voices that were learned, and those that a model brings.

    \b
      misoctl voices
      misoctl voices --model kitten
      misoctl voices export anna anna.voice
      misoctl voices import anna.voice
    """
    if ctx.invoked_subcommand is None:
        list_all(model, as_json)


@voices.command()
@click.argument("name", callback=slug)
@json_option
def show(name, as_json) -> None:
    """All that is known of NAME.

    \b
      misoctl voices show anna
    """
    (row,) = json.loads(_ask("voices", name=name).listing)
    if as_json:
        click.echo(json.dumps(row, ensure_ascii=False))
        return
    for field, value in row.items():
        told = value if not isinstance(value, bool) else "yes" if value else "no"
        click.echo(f"{field:<13} {_printable(told) or '-'}".rstrip())


@voices.command()
@click.argument("name", callback=slug)
@click.argument("file")
@replace_option
@quiet_option
def export(name, file, replace, quiet) -> None:
    """Write NAME to FILE, to be imported elsewhere; - is standard output.

    \b
      misoctl voices export anna anna.voice

    The recording is not in it, but for the first 10 s where KittenTTS 2 learned it.
    """
    import os

    from misoctl.sink import open_output
    from protocol.messages import CLIP_HZ

    if os.path.isfile(file) and not replace:
        raise Failure(errors.CANT_CREATE, f"{file} is there already", "--replace it, or choose another name")
    data = _ask("export", hush if quiet else tell, name=name).data
    sink = open_output(file, raw=True)
    sink.write(data, CLIP_HZ)
    sink.close(whole=True)


@voices.command("import")
@click.argument("file")
@click.option("--name", callback=slug, help="Keep it as NAME; by default as it was called.")
@replace_option
@quiet_option
def import_(file, name, replace, quiet) -> None:
    """Keep the voice that `export` wrote to FILE; - is standard input.

    \b
      misoctl voices import anna.voice
    """
    from protocol.messages import MAX_VOICE_BYTES

    talk = hush if quiet else tell
    try:
        with open(0 if file == "-" else file, "rb", closefd=file != "-") as source:
            data = source.read(MAX_VOICE_BYTES + 1)
    except OSError as error:
        raise Failure(errors.NO_INPUT, f"cannot read {file}: {error.strerror}") from None
    if not 0 < len(data) <= MAX_VOICE_BYTES:
        raise Failure(errors.BAD_DATA, f"{file} is no voice", "give it what `misoctl voices export` wrote")
    (row,) = json.loads(_ask("import", talk, name=name or "", data=data, replace=replace).listing)
    talk(f"imported {row['name']}")


@click.command()
@click.argument("name", callback=slug)
@quiet_option
def forget(name, quiet) -> None:
    """Remove the voice NAME, and what models have made of it.

    \b
      misoctl forget anna
    """
    talk = hush if quiet else tell
    _ask("forget", talk, name=name)
    talk(f"forgot {name}")


@click.group(invoke_without_command=True)
@json_option
@click.pass_context
def sessions(ctx, as_json) -> None:
    """The dialogues that `say --session NAME` goes on with.

    \b
      misoctl sessions
      misoctl sessions forget talk
    """
    if ctx.invoked_subcommand is None:
        _list(_ask("sessions"), as_json)


@sessions.command("forget")
@click.argument("name", required=False, callback=slug)
@click.option("--all", "every", is_flag=True, help="All of them.")
@quiet_option
def forget_session(name, every, quiet) -> None:
    """Forget the session NAME, or all.

    \b
      misoctl sessions forget talk
    """
    if (name is None) != every:
        raise click.UsageError("give NAME or --all, one of them")
    talk = hush if quiet else tell
    _ask("forget_session", talk, name=name or "")
    talk(f"forgot {name or 'all sessions'}")
