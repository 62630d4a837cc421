"""The command line. stdout is data, stderr is talk. A verb, and what it needs, is loaded when it is asked for."""

import os
import signal
import sys
from typing import ClassVar

import click

import misoctl
from protocol import errors
from protocol.exits import Elsewhere, Program

VERBS = {
    "Speak": {
        "say": "misoctl.say:say",
        "replay": "misoctl.say:replay",
        "hush": "misoctl.floor:hush_verb",
        "normalize": "misoctl.handed:normalize",
        "devices": "misoctl.playing.devices:devices",
    },
    "Voices": {
        "voices": "misoctl.voices:voices",
        "learn": "misoctl.voices:learn",
        "forget": "misoctl.voices:forget",
        "sessions": "misoctl.voices:sessions",
    },
    "Models": {
        "list": "misoctl.handed:list_",
        "pull": "misoctl.handed:pull",
        "show": "misoctl.handed:show",
        "verify": "misoctl.handed:verify",
        "rm": "misoctl.handed:rm",
    },
    "The daemon": {
        "status": "misoctl.daemon:status",
        "start": "misoctl.daemon:start",
        "stop": "misoctl.daemon:stop",
        "load": "misoctl.daemon:load",
        "unload": "misoctl.daemon:unload",
        "service": "misoctl.service:service",
        "http": "misoctl.http.verb:http",
    },
    "This machine": {
        "doctor": "misoctl.handed:doctor",
        "bench": "misoctl.daemon:bench",
        "config": "misoctl.handed:config",
        "completion": "misoctl.completion:completion_verb",
    },
}


class Misoctl(Program):
    sections: ClassVar = {title: tuple(verbs) for title, verbs in VERBS.items()}

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if "unasked" in ctx.meta:  # too long for who asked for no help
            return
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in errors.EXIT_CODES.items()])


def _version(ctx: click.Context, _param, wanted: bool) -> None:
    if not wanted:
        return
    from misoctl.client import Client, NoDaemon
    from protocol import messages as m
    from protocol.paths import find_paths

    click.echo(f"misoctl {misoctl.__version__} (protocol {m.VERSION[0]}.{m.VERSION[1]})")
    try:
        with Client(find_paths()) as client:
            w = client.welcome
            click.echo(f"misod   {w.version} (protocol {w.major}.{w.minor}, pid {w.pid})")
    except NoDaemon:
        click.echo("misod   not running")
    ctx.exit()


@click.group(
    "misoctl",
    cls=Misoctl,
    commands=Elsewhere({name: place for verbs in VERBS.values() for name, place in verbs.items()}),
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Both sides' versions."
)
def cli() -> None:
    """Speak with a voice that is always warm.

    \b
      misoctl say "Hello from Miso."
      misoctl say -o hello.wav "Hello from Miso."
      cat article.txt | misoctl say
    """


def main() -> None:
    """The program, stopped by signals on its way."""
    if "_MISOCTL_COMPLETE" in os.environ:
        from misoctl.completion import attach

        attach(cli)
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `misoctl status | head -1` ends as any program does
    _stop_on_signals()
    try:
        cli.main()
    except Stopped as stopped:
        sys.exit(stopped.exit_code)


class Stopped(BaseException):
    """A signal asks us to end; raised wherever we are, so that every sink and request is closed on the way out."""

    def __init__(self, number: int):
        super().__init__(number)
        self.exit_code = errors.SIGNALLED + number


def _stop_on_signals() -> None:
    """Raise Stopped once; a second Ctrl-C must not cut the cleaning up in half, nor may the floor's word, which would
    also be taken for the end. What nohup ignores stays ignored.
    """
    watched = [n for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) != signal.SIG_IGN]

    def stop(number: int, _frame) -> None:
        for each in (*watched, signal.SIGUSR1):
            signal.signal(each, signal.SIG_IGN)
        raise Stopped(number)

    for each in watched:
        signal.signal(each, stop)
