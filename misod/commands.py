"""misod's verbs beside serve: misoctl declares the same and starts these.

stdout is data, stderr is talk. Each verb imports what it needs: `list` is to be there at once.
"""

import json
import os
import signal
import sys
from dataclasses import asdict

import click

from misod.weights.plan import EMBEDDINGS, PRECISIONS
from protocol import errors
from protocol.errors import Failure
from protocol.exits import Verbs
from protocol.paths import find_paths
from protocol.words import PULLABLE


def tell(line: str) -> None:
    """Under the name that was typed: see handed.py."""
    click.echo(f"{click.get_current_context().find_root().info_name}: {line}", err=True)


def print_data() -> None:
    """Before what was asked for is printed. A reader that goes away ends us, as `list | head -1` does any program."""
    if sys.stdout is None:
        raise Failure(errors.IO_ERROR, "standard output is closed")
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)


def as_json(command):
    return click.option("--json", "as_json", is_flag=True, help="As JSON, on standard output.")(command)


@click.command("pull")
@click.argument("model", default="miso")
@click.option("--precision", type=click.Choice(PRECISIONS), help="Bits of the weights; by default what memory allows.")
@click.option("--embeddings", type=click.Choice(EMBEDDINGS), help="Of the embeddings; bf16 with bf16, else q8.")
@click.option("--from", "origin", metavar="DIR|REPO", help="A directory with the files, or another known repository.")
@click.option("--keep", is_flag=True, help="Keep what was downloaded.")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
@as_json
def pull(model, precision, embeddings, origin, keep, quiet, as_json) -> None:
    """Download, convert and check a model: see `misoctl pull --help`."""

    if model not in PULLABLE:
        raise Failure(errors.USAGE, f"there is no model {model!r} to pull: {errors.near(model, PULLABLE)}")
    import psutil

    from misod.weights import pull as miso
    from misod.weights import pull_kitten
    from misod.weights.progress import size

    if as_json:
        print_data()
    os.umask(0o077)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    talk = (lambda _line: None) if quiet else tell
    request, bars = miso.Request(model, precision, embeddings, origin, keep), None if quiet else sys.stderr
    try:
        if model == pull_kitten.NAME:
            done = pull_kitten.pull(request, find_paths(), talk, bars)
        else:
            done = miso.pull(request, find_paths(), psutil.virtual_memory().total, talk, bars)
    except KeyboardInterrupt:
        talk("stopped; what is downloaded stays, and the same command goes on from there")
        sys.exit(errors.INTERRUPTED)
    talk(f"{model} is ready: {done['precision']}, {size(done['bytes'])} in {done['directory']}")
    talk(f'next: `misoctl load {model}`, or `misoctl say "Hello"`')
    if as_json:
        click.echo(json.dumps(done))


@click.command("list")
@as_json
def list_(as_json) -> None:
    """The models that are here."""
    from misod.weights import models
    from misod.weights.progress import size

    print_data()
    paths = find_paths()
    default = _default(paths)
    rows = [models.summary(entry, default) for entry in models.entries(paths.models)]
    if as_json:
        click.echo(json.dumps(rows))
        return
    width = max(len(row["name"]) for row in rows)
    for row in rows:
        mark = "*" if row["default"] else " "
        if row["problem"]:
            word = "damaged: " if row["damaged"] else ""
            click.echo(f"{mark} {row['name']:<{width}}  {word}{row['problem']}")
            continue
        source = row["source"] or ("comes with miso" if row["bundled"] else "not known")
        click.echo(f"{mark} {row['name']:<{width}}  {row['precision']:<5}  {size(row['bytes']):>8}  {source}")


@click.command()
@click.argument("model")
@as_json
def show(model, as_json) -> None:
    """What a model is made of."""
    from misod.weights import models

    print_data()
    paths = find_paths()
    detail = models.detail(models.find(paths.models, model), _default(paths))
    if as_json:
        click.echo(json.dumps(detail))
        return
    for name, value in _lines(detail):
        click.echo(f"{name:<11} {value}")


@click.command()
@click.argument("model")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
def rm(model, quiet) -> None:
    """Remove a model."""
    from misod.weights import models
    from misod.weights.progress import size

    freed = models.remove(find_paths().models, model)
    if not quiet:
        tell(f"removed {model}: {size(freed)} are free again")


@click.command()
@click.argument("model")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
def verify(model, quiet) -> None:
    """Hash every file of a model."""
    from misod.weights import models
    from misod.weights.progress import Progress

    entry = models.find(find_paths().models, model)
    with Progress("checking", entry.manifest.bytes, None if quiet or not sys.stderr.isatty() else sys.stderr) as bar:
        made = models.verify(entry, bar.add)
    if not quiet:
        tell(f"{model}: all {len(made.files)} files are as they were made, digest {made.digest[:12]}")


@click.command(hidden=True)
@click.argument("model")
def predict(model) -> None:
    """For `misoctl bench`: how long a frame of MODEL takes on this machine by arithmetic, as JSON."""
    from misod.doctor.finding import run
    from misod.weights import models
    from misod.weights.predict import of_model

    entry = models.find(find_paths().models, model)
    brand = run("sysctl", "-n", "machdep.cpu.brand_string") if sys.platform == "darwin" else None
    click.echo(json.dumps(of_model(entry.directory, entry.manifest.precision, brand)))


MODEL_VERBS = (pull, list_, show, rm, verify, predict)


@click.command()
@as_json
def doctor(as_json) -> None:
    """Check this machine, the models and the daemon; exit 1 if something must be mended."""
    from misod.doctor import report

    if sys.stdout is None:  # closed by the caller: the exit code still tells
        sys.stdout = open(os.devnull, "w")
    print_data()
    sys.exit(report(as_json))


@click.command()
@as_json
@click.option("--emoji", type=click.Choice(["drop", "name"]), default="drop", show_default=True)
@click.option("--letters", is_flag=True, help="As the bundled voice reads it: letters and plain marks only.")
def normalize(as_json, emoji, letters) -> None:
    """Print what would be spoken of standard input, one sentence a line."""
    from misod.text import WHOLE, Limits, Manner, pieces

    print_data()
    data = sys.stdin.buffer.read()
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = f"standard input is not UTF-8: byte {error.start} is 0x{data[error.start]:02x}"
        raise Failure(errors.BAD_DATA, message, "convert it with `iconv -t utf-8`") from None
    limits = Limits(WHOLE.max_words, WHOLE.max_characters, letters=letters)
    told = pieces(text, limits, Manner(emoji=emoji, at_once=False))
    if as_json:
        click.echo(json.dumps([asdict(piece) for piece in told], ensure_ascii=False))
        return
    for piece in told:
        click.echo(piece.text)


@click.group(cls=Verbs, invoke_without_command=True)
@as_json
@click.pass_context
def config(ctx, as_json) -> None:
    """The settings, and where each is from."""
    if ctx.invoked_subcommand is not None:
        return
    from misod import config as settings

    print_data()
    file = find_paths().config
    table = settings.read_toml(file)
    rows = list(settings.origins(file, os.environ, table))
    if as_json:
        click.echo(json.dumps([dict(zip(("name", "value", "origin"), row, strict=True)) for row in rows]))
    for name, value, origin in () if as_json else rows:
        click.echo(f"{name:<15} {value!s:<11} {origin}")
    for name in settings.unknown_variables(os.environ):
        tell(f"{name} means nothing to miso; {settings.meant(name)}")
    for line in settings.unknown_keys(file, table):
        raise settings.ConfigError(line)  # as misod would


@config.command("set")
@click.argument("key")
@click.argument("value")
@click.option("-q", "--quiet", is_flag=True, help="Say nothing on stderr but errors.")
def set_(key, value, quiet) -> None:
    """Write one setting into config.toml."""
    from misod import config as settings
    from protocol.paths import lock_holder

    paths = find_paths()
    try:
        settings.write_setting(paths.config, key, value)
    except OSError as error:
        raise errors.of_file(error, paths.config) from None
    if os.environ.get(settings.variable(key)):
        tell(f"{settings.variable(key)} of this shell goes before it")
    if not quiet and key in settings.OURS and lock_holder(paths.lock) is not None:
        tell("misod runs, and reads it at its next start: `misoctl stop`, or `misoctl service restart`")


@config.command()
def path() -> None:
    """Where config.toml is, or would be."""
    click.echo(find_paths().config)


@config.command()
def edit() -> None:
    """Open config.toml in $VISUAL or $EDITOR, and check what was written."""
    import shlex
    import subprocess

    from misod import config as settings

    file = find_paths().config
    editor = os.environ.get("VISUAL") or os.environ.get("EDITOR") or "vi"
    try:
        if not file.exists():
            settings.write_file(file, settings.template())
        code = subprocess.call([*shlex.split(editor), str(file)])
    except FileNotFoundError:
        raise Failure(errors.NO_PROGRAM, f"there is no editor {editor!r}", "set EDITOR") from None
    except (OSError, ValueError) as error:  # ValueError: a quote that is not closed
        raise Failure(errors.NO_PROGRAM, f"{editor}: {error}", "set EDITOR") from None
    if code:
        raise Failure(errors.FAILED, f"{editor} ended with {code}")
    settings.load_settings(file, {}, {})


VERBS = (*MODEL_VERBS, doctor, normalize, config)


def _default(paths) -> str:
    from misod.config import load_settings
    from misod.weights import models

    return models.default_name(load_settings(paths.config, {}).model, paths.models)


def _lines(detail: dict) -> list[tuple[str, str]]:
    """`show` for a person."""
    from misod.weights.manifest import is_weights
    from misod.weights.progress import size

    files = list(filter(is_weights, detail["files"]))
    lines = [
        ("model", detail["name"] + (" (the default)" if detail["default"] else "")),
        ("precision", detail["precision"]),
        ("size", f"{size(detail['bytes'])}, {detail['bytes']:,} bytes"),
        ("weights", f"{len(detail['tensors'])} tensors in {', '.join(files)}"),
    ]
    for group in detail["quantized"]:
        how = f"in {group['bits']} bits, groups of {group['group_size']}" if group["bits"] else "as they are"
        parts = ", ".join(f"{count} of {part}" for part, count in group["parts"].items())
        lines.append(("", f"{how}: {parts}"))
    lines += [("source" if name == "repo" else name, value) for name, value in detail["source"].items() if value]
    lines += [("digest", detail["digest"]), ("made by", detail["made_by"]), ("directory", detail["directory"])]
    return lines
