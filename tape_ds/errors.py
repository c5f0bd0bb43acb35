"""The error class for everything that a user can cause, and how commands report it.

A check collects all its :class:`Problem` objects and raises them together, so that one message names every field to
correct. Commands run their ``main`` under :func:`command`, which turns a :class:`UserError` into that message and exit
code 2, once per job, without a traceback. A disk that refuses a write (:class:`DiskError`) is reported in the same way.

:func:`redacted` removes credentials from everything that is shown or stored.
"""

import contextlib
import difflib
import errno
import functools
import os
import re
import resource
import select
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tape_ds import standard_streams, storage
from tape_ds.exit_codes import ExitCode

GRACE_SECONDS = 5
"""How long other ranks wait before they exit: a launcher kills the whole job at the first exit code that is not 0, and
rank 0 must have printed its message by then."""

REDACTED = "<redacted>"
# whole words only: `hub_token` is a credential, `min_document_tokens` is not
SECRET_NAME = re.compile(
    r"(^|[_-])(hub_token|auth_token|access_token|api_key|apikey|password|secret)$|^token$", re.I
)
"""Names of options and fields that hold a credential."""
# HF_TOKEN, WANDB_API_KEY, AWS_SECRET_ACCESS_KEY
_SECRET_VARIABLE = re.compile(
    r"(^|_)(TOKEN|API_?KEY|PASSWORD|PASSWD|SECRET|(ACCESS|ACCOUNT|PRIVATE|SECRET)_KEY)$"
)
# characters; not `1` or `true`
_SHORTEST_SECRET = 8
_SECRET_TEXT = re.compile(
    r"""
    \b(?:(?:hf_|gh[pousr]_)[A-Za-z0-9]{16,}                # keys of known forms
        |(?:sk-|github_pat_|wandb_v1_)[\w-]{16,}
        |(?:AKIA|ASIA)[A-Z0-9]{16})\b
    |(?<=://)[^\s/@:"']*:[^\s/@"']*(?=@)                   # user:password of a URL
    |(?:(?<=https://)|(?<=http://))[^\s/@"']+(?=@)
    """,
    re.VERBOSE,
)
_URL = re.compile(r"(?<=://)[^\s#\"']+")
# signatures of presigned URLs too
_SECRET_PARAMETER = re.compile(
    r"([?&](?:[\w-]*(?:signature|credential|token|secret|password|api_?key|accesskeyid)|sig|key)=)[^&]+",
    re.I,
)


@dataclass(frozen=True)
class Problem:
    """One thing to correct; ``field`` is as the user writes it."""

    field: str
    value: Any
    wrong: str
    remedy: str

    def __str__(self) -> str:
        shown = redacted(repr(self.value))
        if self.value and SECRET_NAME.search(self.field):
            shown = repr(REDACTED)
        if len(shown) > 120:
            shown = shown[:117] + "..."
        return f"{self.field} = {shown}: {self.wrong}\n      remedy: {self.remedy}"


class UserError(ValueError):
    """Raised with every :class:`Problem` found; ``str()`` is the message for the user."""

    on_one_rank = False
    """Whether a single rank may have found it, so that every rank must report its own."""
    outcome = "nothing was started"
    exit_code: int = ExitCode.USER_ERROR

    def __init__(self, problems: Problem | Iterable[Problem]):
        self.problems = [problems] if isinstance(problems, Problem) else list(problems)
        super().__init__(self.problems)

    def __str__(self) -> str:
        count = len(self.problems)
        head = "1 problem found" if count == 1 else f"{count} problems found"
        lines = [f"  {number}. {problem}" for number, problem in enumerate(self.problems, 1)]
        return "\n".join([f"{head}; {self.outcome}:", *lines])


class DiskError(UserError):
    """Raised if a disk is full, read-only or not writable after work had begun."""

    on_one_rank = True
    outcome = "what was written before stays, and nothing is half written"


def raise_if_any(problems: list[Problem]) -> None:
    if problems:
        raise UserError(problems)


@contextlib.contextmanager
def collecting(problems: list[Problem], field: str = "{}") -> Iterator[None]:
    """Add the problems of a :class:`UserError` within the block to ``problems``, each once, and continue after it.
    ``field`` is how the block's fields are written here: ``"--{}"`` for options."""
    try:
        yield
    except UserError as error:
        renamed = (
            replace(problem, field=field.format(problem.field)) for problem in error.problems
        )
        problems += [problem for problem in renamed if problem not in problems]


@contextlib.contextmanager
def raised_together() -> Iterator[list[Problem]]:
    """Yield a list of problems; at the end of the block raise them, together with those of a :class:`UserError` that
    ended it early."""
    problems: list[Problem] = []
    with collecting(problems):
        yield problems
    raise_if_any(problems)


def check_folder(field: str, given: str | Path, *, writable: bool = True) -> list[Problem]:
    """Check that ``given`` can be a folder, and written to; it need not exist."""
    existing = storage.existing(Path(given))
    if not existing.exists():
        wrong = f"{existing} is a link to nothing"
    elif not existing.is_dir():
        wrong = f"{existing} is a file"
    elif writable and not os.access(existing, os.W_OK | os.X_OK):
        wrong = f"{existing} is not writable"
    else:
        return []
    return [Problem(field, str(given), wrong, "name another folder")]


def disk_error(
    error: BaseException,
    field: str = "disk",
    folder: str | Path | None = None,
    remedy: str | None = None,
) -> DiskError | None:
    """Return the error to raise if a disk's refusal caused ``error`` (:func:`tape_ds.storage.refusal`), else None.
    ``folder`` is the one written to, by default the refused file's; ``remedy`` is added to making room."""
    refused = storage.refusal(error)
    if refused is None:
        return None
    again = "or name another place, and start it again"
    # a limit of the process holds in every place
    if refused.errno == errno.EFBIG:
        first = "name a disk whose file system allows larger files"
        if storage.file_limit() is not None:
            first = "raise the limit (ulimit -f unlimited)"
        again = "then start it again"
    elif refused.errno in storage.FULL:
        first = "make room on that disk"
    else:
        first = "make room on that disk, or let this user write to it"
    remedy = f"{first}; {remedy or again}"
    file = None
    if isinstance(refused.filename, str | bytes):
        file = Path(os.fsdecode(refused.filename))
    if file is not None and (
        folder is None or storage.disk_of(file) != storage.disk_of(Path(folder))
    ):
        folder = file.parent
    if folder is None:
        wrong = f"it refused a write, and the error names no file ({refused.strerror or refused})"
        return DiskError(Problem(field, None, wrong, remedy))
    return DiskError(Problem(field, str(folder), storage.explain(refused, Path(folder)), remedy))


def too_many_files(error: BaseException) -> DiskError | None:
    """Return the error to raise if the limit on a process's open files caused ``error``, else None."""
    for cause in storage.causes(error):
        if isinstance(cause, OSError) and cause.errno in (errno.EMFILE, errno.ENFILE):
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            wrong = f"too many open files ({cause.filename or cause.strerror})"
            return DiskError(
                Problem("ulimit -n", limit, wrong, "raise it, for example: ulimit -n 4096")
            )
    return None


def redacted(text: str) -> str:
    """Return ``text`` with ``<redacted>`` for credentials: values of environment variables such as ``HF_TOKEN``, keys
    of known forms, and passwords and signatures in URLs."""
    secrets = {value for name, value in os.environ.items() if _SECRET_VARIABLE.search(name)}
    # longest first: one may be part of another
    for secret in sorted(secrets, key=len, reverse=True):
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, REDACTED)
    # keys of known forms, which no variable of this process need hold
    text = _SECRET_TEXT.sub(REDACTED, text)
    return _URL.sub(lambda url: _SECRET_PARAMETER.sub(rf"\g<1>{REDACTED}", url.group()), text)


def did_you_mean(name: str, candidates: Iterable[str]) -> str:
    """``"did you mean 'x'?"`` for the closest candidate, else the list of candidates (cut if it is long)."""
    names = sorted(map(str, candidates))
    # a beginning is meant, however much of the name is missing
    completions = [known for known in names if len(str(name)) > 2 and known.startswith(str(name))]
    close = difflib.get_close_matches(
        str(name), completions or names, n=1, cutoff=0.0 if completions else 0.6
    )
    if close:
        return f"did you mean {close[0]!r}?"
    if len(names) > 20:
        return f"one of: {', '.join(names[:20])} ..."
    return f"one of: {', '.join(names)}"


def is_main_process() -> bool:
    """Return whether this process reports for the job (rank 0, or not distributed), before any process group exists."""
    return os.environ.get("RANK", "0") == "0"


def report(message: str, everywhere: bool = False) -> None:
    """Print an error from rank 0, or from every rank; a rank that does not print waits until rank 0 has."""
    if is_main_process() or everywhere:
        print(f"error: {redacted(message)}", file=sys.stderr, flush=True)
    else:
        time.sleep(GRACE_SECONDS)


def command(main: Callable[..., int | None]) -> Callable[..., int]:
    """Wrap a command's ``main``: a :class:`UserError`, or a limit of the disk or the system, is printed by rank 0 alone
    (or where it was found) and becomes exit code 2. On a broken pipe, exit with 1 silently. A standard stream that is
    closed is no error: what would go there is dropped."""

    @functools.wraps(main)
    def wrapped(*args: Any, **kwargs: Any) -> int:
        standard_streams.open_closed()
        try:
            code = main(*args, **kwargs) or 0
            sys.stdout.flush()
            return code
        except BrokenPipeError:
            poll = select.poll()
            poll.register(sys.stdout.fileno(), 0)
            if not poll.poll(0):
                # stdout is still read: it was another pipe
                raise
            # Python flushes stdout at exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            return ExitCode.FAILURE
        except Exception as error:
            mistake: UserError | None = disk_error(error) or too_many_files(error)
            if isinstance(error, UserError):
                mistake = error
            if mistake is None:
                raise
            report(str(mistake), mistake.on_one_rank)
            return mistake.exit_code

    return wrapped
