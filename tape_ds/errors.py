"""The one error class for everything a user can cause, and the one way it is shown.

A check never stops at its first finding: it collects :class:`Problem` objects and raises them together, so that one
message names every field to mend. Commands run their ``main`` under :func:`command`, which turns a
:class:`UserError` into that message and exit code 2, once per job whatever the number of ranks, without a traceback.
So is a disk that refuses what a command writes (:class:`DiskError`), wherever it happens.

What looks like a credential is taken out of everything that is shown or stored: :func:`redacted`.
"""

import contextlib
import difflib
import functools
import os
import re
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tape_ds import storage
from tape_ds.exit_codes import ExitCode

GRACE_SECONDS = 5
"""How long other ranks wait before they exit: a launcher kills the whole job at the first exit code that is not 0, and
rank 0 must have spoken by then."""

REDACTED = "<redacted>"
# Whole words only: `hub_token` is a credential, `min_document_tokens` is not.
SECRET_NAME = re.compile(r"(^|[_-])(hub_token|auth_token|access_token|api_key|apikey|password|secret)$|^token$", re.I)
"""Names of options and fields that hold a credential."""
_SECRET_VARIABLE = re.compile(r"(^|_)(TOKEN|API_?KEY|PASSWORD|PASSWD|SECRET|(ACCESS|ACCOUNT|PRIVATE|SECRET)_KEY)$")
"""Names of environment variables that do: ``HF_TOKEN``, ``WANDB_API_KEY``, ``AWS_SECRET_ACCESS_KEY``."""
_SHORTEST_SECRET = 8
"""Characters of a variable's value that is worth hiding: ``1`` or ``true`` is not."""
_SECRET_VALUE = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{16,}|sk-[A-Za-z0-9_-]{16,}|gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,}"
    r"|wandb_v1_[A-Za-z0-9_]{16,}|(?:AKIA|ASIA)[A-Z0-9]{16})\b"
)
_IN_ADDRESS = re.compile(r"""(?<=://)[^\s/@:"']*:[^\s/@"']*(?=@)|((?<=https://)|(?<=http://))[^\s/@"']+(?=@)""")
"""Who asks, and with which password, in the address of something elsewhere."""
_IN_QUERY = re.compile(
    r"(://[^\s#\"']*?[?&](?:[\w-]*(?:signature|credential|token|secret|password|api_?key|accesskeyid)|sig|key)=)"
    rf"(?!{REDACTED})[^&\s#\"']+",
    re.I,
)


@dataclass(frozen=True)
class Problem:
    """One thing to mend: the ``field`` as the user writes it, its ``value``, what is ``wrong`` and the ``remedy``."""

    field: str
    value: Any
    wrong: str
    remedy: str

    def __str__(self) -> str:
        shown = repr(REDACTED) if self.value and SECRET_NAME.search(self.field) else redacted(repr(self.value))
        if len(shown) > 120:
            shown = shown[:117] + "..."
        return f"{self.field} = {shown}: {self.wrong}\n      remedy: {self.remedy}"


class UserError(ValueError):
    """Raised with every :class:`Problem` found; ``str()`` is the message a user reads."""

    on_one_rank = False
    """Whether a single rank may have found it, so that this rank has to speak for itself."""
    stands = "nothing was started"
    """What has become of the work."""
    exit_code = ExitCode.USER_ERROR
    """Of the command."""

    def __init__(self, problems: Problem | Iterable[Problem]):
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        head = "1 problem found" if count == 1 else f"{count} problems found"
        lines = [f"  {number}. {problem}" for number, problem in enumerate(self.problems, 1)]
        return "\n".join([f"{head}; {self.stands}:", *lines])


class DiskError(UserError):
    """Raised where a disk is full, read-only or not this user's, and work had begun."""

    on_one_rank = True
    stands = "what was written before stays, and nothing is half written"


def raise_if_any(problems: list[Problem]) -> None:
    """Raise one :class:`UserError` holding all ``problems``, if there are any."""
    if problems:
        raise UserError(problems)


@contextlib.contextmanager
def collecting(problems: list[Problem], field: str = "{}") -> Iterator[None]:
    """Add what a :class:`UserError` within the block says to ``problems``, each once, and go on behind it.

    Args:
        problems: those that are known.
        field: how the block's fields are written here: ``"--{}"`` where they are options.
    """
    try:
        yield
    except UserError as error:
        named = (replace(each, field=field.format(each.field)) for each in error.problems)
        problems += [each for each in named if each not in problems]


def check_folder(field: str, given: str | Path) -> list[Problem]:
    """Whether ``given`` can be a folder of results: it need not be there yet."""
    taken = storage.in_the_way(Path(given))
    return [] if taken is None else [Problem(field, str(given), f"{taken} is a file", "name a folder")]


def disk_error(
    error: BaseException, field: str = "disk", folder: str | Path | None = None, remedy: str | None = None
) -> DiskError | None:
    """Return what to raise for a disk that refused, where one is behind ``error`` (:func:`tape_ds.storage.refusal`),
    else None.

    Args:
        error: that was met in writing.
        field: what names the folder.
        folder: what was written to; None: where the refused file lies, if the error says so.
        remedy: beside making room there; None: to name another place and start again.
    """
    refused = storage.refusal(error)
    if refused is None:
        return None
    make = f"make room on that disk{'' if refused.errno in storage.FULL else ', or let this user write to it'}; "
    remedy = make + (remedy or "or name another place, and start it again")
    file = Path(os.fsdecode(refused.filename)) if isinstance(refused.filename, str | bytes) else None
    if folder is None and file is None:
        wrong = f"it refused what was written, and the error does not say which file ({refused.strerror or refused})"
        return DiskError(Problem(field, None, wrong, remedy))
    if file is not None and (folder is None or not storage.same_disk(file, Path(folder))):
        folder = file.parent
    assert folder is not None
    return DiskError(Problem(field, str(folder), storage.explain(refused, Path(folder)), remedy))


def redacted(text: str) -> str:
    """``text`` with ``<redacted>`` for everything in it that is, or looks like, a credential: the values of this
    process's variables such as ``HF_TOKEN`` and ``WANDB_API_KEY``, keys of known forms, and what stands before the
    ``@`` or is signed in the query of a URL."""
    for secret in _secrets():
        text = text.replace(secret, REDACTED)
    text = _SECRET_VALUE.sub(REDACTED, text)
    text = _IN_ADDRESS.sub(REDACTED, text)
    while (shorter := _IN_QUERY.sub(rf"\g<1>{REDACTED}", text)) != text:  # one of an address at a time
        text = shorter
    return text


def _secrets() -> list[str]:
    """Return values of the environment's variables that hold a credential, the longest first: one may be part of
    another."""
    found = {value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)}
    return sorted((value for value in found if len(value) >= _SHORTEST_SECRET), key=len, reverse=True)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """``"did you mean 'x'?"`` for the closest candidate, else the list of candidates (cut when it is long)."""
    names = sorted(str(candidate) for candidate in candidates)
    begun = [each for each in names if len(str(name)) > 2 and each.startswith(str(name))]
    close = difflib.get_close_matches(str(name), begun or names, n=1, cutoff=0.0 if begun else 0.6)
    if close:
        return f"did you mean {close[0]!r}?"
    return "one of: " + ", ".join(names[:20]) + (" ..." if len(names) > 20 else "")


def is_main_process() -> bool:
    """Return whether this process speaks for the job (rank 0, or not distributed); works before any process group
    exists."""
    return os.environ.get("RANK", "0") == "0"


def command(main: Callable[..., int | None]) -> Callable[..., int]:
    """Wrap a command's ``main``: a :class:`UserError` is printed by rank 0 alone (or where it was found) and becomes
    exit code 2, and so does a disk that refuses what is written. Where nobody reads on, it ends with 1 and no word."""

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> int:
        try:
            code = main(*args, **kwargs) or 0
            sys.stdout.flush()
            return code
        except UserError as error:
            return _tell(error)
        except BrokenPipeError:
            if _is_read():
                raise  # another pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what Python flushes at its exit goes there
            return 1
        except Exception as error:
            refused = disk_error(error)
            if refused is None:
                raise
            return _tell(refused)

    return wrapped


def _is_read() -> bool:
    """Return whether somebody still reads what this process writes; ``| head`` ends when it has its lines."""
    look = select.poll()
    look.register(sys.stdout.fileno(), 0)
    return not look.poll(0)


def _tell(error: UserError) -> int:
    """Say what is wrong, if it is this process's to say, and give the exit code."""
    if is_main_process() or error.on_one_rank:
        print(f"\nerror: {redacted(str(error))}", file=sys.stderr, flush=True)
    else:
        time.sleep(GRACE_SECONDS)
    return error.exit_code
