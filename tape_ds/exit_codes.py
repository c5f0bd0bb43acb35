"""Exit codes of every command, and the file that carries one past a launcher that hides it.

torchrun exits with 1 whatever its ranks exited with. So keep_alive names a file in an environment variable, and rank 0
writes its code there before it exits.
"""

import contextlib
import os
from enum import IntEnum
from pathlib import Path

FILE = "TAPE_DS_EXIT_CODE_FILE"
"""Environment variable that holds the file's path."""


class ExitCode(IntEnum):
    """Exit codes of runs and commands (docs/staying_alive.md)."""

    OK = 0
    FAILURE = 1
    USER_ERROR = 2
    # losses or gradients were not finite; restarted unchanged, the run would stop again
    GUARD = 3
    # a rank was stuck
    WATCHDOG = 4
    # `tape-ds plan`: more memory than a GPU has
    DOES_NOT_FIT = 5


def leave(code: int) -> None:
    """Write the code if this is rank 0 and the environment names a file."""
    path = os.environ.get(FILE)
    if path and os.environ.get("RANK", "0") == "0":
        # the process exits with the same code
        with contextlib.suppress(OSError):
            Path(path).write_text(str(int(code)), encoding="ascii")


def read(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
