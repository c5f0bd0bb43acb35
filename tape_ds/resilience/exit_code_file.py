"""What a run's first rank says of its end to whoever keeps the run alive: an exit code that its launcher may lose.

torchrun ends with 1 whatever its ranks ended with, and a run that cannot start as it is would be started again and
again. So ``keep_alive.py`` names a file, and the first rank writes its code there where trying again is of no use.
"""

import contextlib
import os
from pathlib import Path

FILE = "TAPE_DS_EXIT_CODE_FILE"
"""The variable that names the file."""


def leave(code: int) -> None:
    """Write the code, on rank 0, where the environment asks for it."""
    path = os.environ.get(FILE)
    if path and os.environ.get("RANK", "0") == "0":
        with contextlib.suppress(OSError):  # the exit code is there as well
            Path(path).write_text(str(code), encoding="ascii")


def read(path: Path) -> int | None:
    """The code that was left; None where there is none."""
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None
