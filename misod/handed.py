"""The way in for verbs that misoctl hands over: what is told of them begins with the name that was typed."""

from misod.__main__ import main

if __name__ == "__main__":
    main("misoctl")
