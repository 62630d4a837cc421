"""misod as it is, but for what a test cannot have: Mimi's true digest, long waits, a full disk. Settings by PULL_*:

PULL_FREE_BYTES   what the disk says is free
PULL_FULL_AFTER   bytes of downloads after which the disk is full
PULL_MEMORY       of the machine
"""

import dataclasses
import errno
import os
import shutil
import sys
from collections import namedtuple

import psutil

from misod.weights import sources

sources.CODEC = dataclasses.replace(sources.CODEC, known={})
sources.KITTEN_CODEC = dataclasses.replace(sources.KITTEN_CODEC, known={})

from misod.cli import main  # noqa: E402

Usage = namedtuple("Usage", "total used free")
Memory = namedtuple("Memory", "total")

if free := os.environ.get("PULL_FREE_BYTES"):
    shutil.disk_usage = lambda _path: Usage(10**13, 0, int(free))
if memory := os.environ.get("PULL_MEMORY"):
    psutil.virtual_memory = lambda: Memory(int(memory))
if "pull" in sys.argv:
    from misod.weights import fetch

    fetch.RETRY_WAITS_S = (0.01,) * 5
    if full := os.environ.get("PULL_FULL_AFTER"):
        stream, taken = fetch._stream, []

        def fill(out, name, size, url, count):
            def counted(n):
                taken.append(n)
                if sum(taken) > int(full):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                count(n)

            stream(out, name, size, url, counted)

        fetch._stream = fill

main(prog_name="misod")
