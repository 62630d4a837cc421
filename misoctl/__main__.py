"""The way in, for the script and for python -m misoctl."""

import signal


def main() -> None:
    """Ctrl-C while Python still imports ends us without a traceback; cli.main takes it over from there."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from misoctl.cli import main

    main()


if __name__ == "__main__":
    main()
