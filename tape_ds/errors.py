"""The one error class for everything a user can cause, and the one way it is shown.

A check never stops at its first finding: it collects :class:`Problem` objects and raises them together, so that one
message names every field to mend. Commands run their ``main`` under :func:`command`, which turns a
:class:`UserError` into that message and exit code 2, once per job whatever the number of ranks, without a traceback.
"""

import difflib
import functools
import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

EXIT_CODE = 2
GRACE_SECONDS = 5
"""How long other ranks wait before they exit: a launcher kills the whole job at the first exit code that is not 0, and
rank 0 must have spoken by then."""


@dataclass(frozen=True)
class Problem:
    """One thing to mend: the ``field`` as the user writes it, its ``value``, what is ``wrong`` and the ``remedy``."""

    field: str
    value: Any
    wrong: str
    remedy: str

    def __str__(self) -> str:
        shown = repr(self.value)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        return f"{self.field} = {shown}: {self.wrong}\n      remedy: {self.remedy}"


class UserError(ValueError):
    """Raised with every :class:`Problem` found; ``str()`` is the message a user reads."""

    on_one_rank = False
    """Whether a single rank may have found it, so that this rank has to speak for itself."""

    def __init__(self, problems: Problem | Iterable[Problem]):
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        head = "1 problem found" if count == 1 else f"{count} problems found"
        lines = [f"  {number}. {problem}" for number, problem in enumerate(self.problems, 1)]
        return "\n".join([f"{head}; nothing was started:", *lines])


def raise_if_any(problems: list[Problem]) -> None:
    """Raise one :class:`UserError` holding all ``problems``, if there are any."""
    if problems:
        raise UserError(problems)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """``"did you mean 'x'?"`` for the closest candidate, else the list of candidates (cut when it is long)."""
    names = sorted(str(candidate) for candidate in candidates)
    close = difflib.get_close_matches(str(name), names, n=1, cutoff=0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "one of: " + ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")


def is_main_process() -> bool:
    """Whether this process speaks for the job (rank 0, or not distributed); works before any process group exists."""
    return os.environ.get("RANK", "0") == "0"


def command(main: Callable[..., int | None]) -> Callable[..., int]:
    """Wrap a command's ``main``: a :class:`UserError` is printed by rank 0 alone (or where it was found) and becomes
    exit code 2."""

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> int:
        try:
            return main(*args, **kwargs) or 0
        except UserError as error:
            if is_main_process() or error.on_one_rank:
                print(f"\nerror: {error}", file=sys.stderr, flush=True)
            else:
                time.sleep(GRACE_SECONDS)
            return EXIT_CODE

    return wrapped
