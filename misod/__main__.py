"""The way in, for the script and for python -m misod."""

import signal


def main(name: str = "misod") -> None:
    """Ctrl-C while Python still imports ends us without a traceback; the server takes it over once it listens."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from misod.cli import main

    main.name = name
    main()


if __name__ == "__main__":
    main()
