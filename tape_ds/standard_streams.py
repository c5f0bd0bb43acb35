"""The three standard streams of a process: given the null device where it was started without them.

Some daemons and schedulers close them. Python then has None for ``sys.stdout``, and the next file that is opened gets
the stream's number, so that what a library prints would go into that file.
"""

import os
import sys

_STREAMS = (("stdin", "r"), ("stdout", "w"), ("stderr", "w"))
"""Names in :mod:`sys` by their file descriptors, and how each is opened."""


def open_closed() -> None:
    """Open the null device for every standard stream that is closed; child processes inherit it."""
    # all before the next file is opened, which would get one of these numbers
    for number in range(len(_STREAMS)):
        if not _is_open(number):
            null = os.open(os.devnull, os.O_RDWR)
            if null != number:
                os.dup2(null, number)
                os.close(null)
            os.set_inheritable(number, True)
    for name, mode in _STREAMS:
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 (open until the process ends)


def _is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True
