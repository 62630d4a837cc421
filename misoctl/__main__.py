"""The way in, for the script and for python -m misoctl."""

import gc
import signal


def main() -> None:
    """Ctrl-C while Python still imports ends us without a traceback; cli.main takes it over from there."""
    gc.set_threshold(100_000)  # else it is looked for garbage many times while we start: 8 of 100 ms
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from misoctl.cli import main

    main()


if __name__ == "__main__":
    main()
