"""`misoctl http`. What it needs beside miso is the extra `http`."""

import re
from functools import partial

import click

from misoctl.options import quiet_option
from misoctl.talk import hush, tell
from protocol import errors
from protocol.errors import Failure

PORT = 7717
HOSTS = {"localhost": ("127.0.0.1", "::1"), "127.0.0.1": ("127.0.0.1",), "::1": ("::1",)}
INSTALL = "`pip install 'miso-speech[http]'` in the environment that miso is in"


def _loopback(_ctx, _param, host: str) -> str:
    if host in HOSTS:
        return host
    cure = "for another machine, forward a port with `ssh -L`"
    raise click.BadParameter(f"{host!r} would let other machines speak here: {', '.join(HOSTS)} only; {cure}")


def _names(_ctx, _param, names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9._-]{1,253}", name):
            raise click.BadParameter(f"{name!r} is no name of a host, without a port")
    return tuple(name.lower() for name in names)


@click.command()
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 takes a free one.")
@click.option(
    "--host",
    default="localhost",
    show_default=True,
    callback=_loopback,
    help="127.0.0.1, ::1, or localhost, both of them.",
)
@click.option("--token-file", metavar="FILE", help="Take the token from FILE; by default one is made under the home.")
@click.option("--print-token", is_flag=True, help="Print the token, made if there is none yet, and end.")
@click.option("--allow-host", "names", metavar="NAME", multiple=True, callback=_names, help="Answer to this name, too.")
@quiet_option
def http(port, host, token_file, print_token, names, quiet) -> None:
    """Listen for OpenAI's speech requests, on this machine only, until stopped.

    \b
      misoctl http
      misoctl http --port 0 -q
      export OPENAI_BASE_URL=http://localhost:7717/v1
      export OPENAI_API_KEY="$(misoctl http --print-token)"

    Prints its URL once it takes requests: POST /v1/audio/speech, GET /v1/audio/voices, /v1/models, and /health, the
    one that needs no token. docs/http.md has the rest.
    """
    from misoctl.http import token
    from protocol.paths import find_paths

    secret, origin = token.find(find_paths(), token_file)
    if print_token:
        click.echo(secret)
        return
    try:
        from misoctl.http import app, listen
    except ModuleNotFoundError as missing:
        raise Failure(errors.UNAVAILABLE, f"misoctl http needs {missing.name}, which is not here", INSTALL) from None
    from misoctl.start import connect

    talk = hush if quiet else tell
    sockets = listen.bind(HOSTS[host], port)
    connect(find_paths(), True, talk).close()
    talk(f"the token is in {origin}")
    click.echo(f"http://{_address(sockets[0])}/v1")
    listen.run(partial(app.build, find_paths(), secret, names, talk), sockets)


def _address(listening) -> str:
    address, port, *_ = listening.getsockname()
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"
