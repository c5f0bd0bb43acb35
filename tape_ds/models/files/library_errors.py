"""Errors of libraries that read other people's files, as messages: one place for every command.

Of a file in another form transformers, peft, tokenizers and torch raise anything: KeyError, AssertionError, a bare
Exception. A person needs the name of what was read, the library's words and a remedy, not a traceback. Only the calls
of a library are put under :func:`as_message`; an error that this project's own code raised passes, since it is a bug.

Imports neither torch nor transformers.
"""

import contextlib
import pickle
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tape_ds import paths, storage
from tape_ds.errors import Problem, UserError

READ_AGAIN = "fetch or copy the file again, or take it from an earlier checkpoint"
TENSORS_ALONE = "give safetensors, or a file that holds tensors alone"
RUN_CODE = "read the code, and give --trust_remote_code to run it"
"""Remedy of commands that have this option."""
_PACKAGE = Path(__file__).resolve().parents[2]
_SHOWN = 600
"""Characters of a library's own words."""
_OF_THE_MACHINE = (
    "torch.OutOfMemoryError",
    "torch.AcceleratorError",
    "torch.distributed.DistError",
)
_SIMPLE = (
    "UserError",
    "ValueError",
    "OSError",
    "RuntimeError",
    "Exception",
    "SafetensorError",
    "TemplateError",
)
"""Types whose name adds nothing to their words."""
_WHOLE_NUMBER = re.compile(
    r"Field '(\w+)' expected int, got (?:float|str) \(value: '?(\d+)(?:\.0*)?'?\)"
)
"""transformers' message for a length of 12288.0, as LLaMA-Factory wrote it with transformers 4."""


@contextlib.contextmanager
def as_message(
    wrong: str, field: str, value: Any, remedy: str, *, trust_remote_code: bool | None = None
) -> Iterator[None]:
    """Raise a :class:`UserError` for whatever a library raises in this block.

    Args:
        wrong: what failed, such as "no tokenizer could be read"; the library's words follow in brackets.
        field: of the recipe, or an option.
        value: as the user wrote it. A folder that holds git-lfs pointers is reported as such.
        remedy: for this error, unless it is of a kind that has its own: a pickle that would call something, code that
            comes with a model.
        trust_remote_code: whether code that comes with it may be run; None: no, and the command has no such option.

    Raises:
        UserError: as it is, if the block raised one.
        Exception: as it is, if this project's own code raised it, or the machine did: memory, a disk, another process.
    """
    try:
        yield
    except (UserError, MemoryError):
        raise
    except Exception as error:
        if is_own(error) or _is_of_the_machine(error) or storage.refusal(error) is not None:
            raise
        raise UserError(_problems(error, wrong, field, value, remedy, trust_remote_code)) from error


def is_own(error: BaseException) -> bool:
    """Return whether the line that raised ``error`` is one of this project."""
    frames = list(traceback.walk_tb(error.__traceback__))
    if not frames:
        return False
    innermost, _ = frames[-1]
    return Path(innermost.f_code.co_filename).resolve().is_relative_to(_PACKAGE)


def words(error: BaseException) -> str:
    """Return a library's own words in one line, with the type of the error where that says more."""
    text = " ".join(str(error).split("Re-running")[0].split())[:_SHOWN]
    kind = type(error).__name__
    if text and kind in _SIMPLE:
        return text
    if text:
        return f"{kind}: {text}"
    return kind


def _problems(
    error: Exception,
    wrong: str,
    field: str,
    value: Any,
    remedy: str,
    trust_remote_code: bool | None,
) -> list[Problem]:
    if pointers := paths.check_fetched(field, paths.of(str(value))):
        return pointers
    reason = words(error)
    if isinstance(error, pickle.UnpicklingError):
        wrong = (
            f"{wrong}: it holds more than tensors, or is damaged; nothing in it was run ({reason})"
        )
        return [Problem(field, value, wrong, TENSORS_ALONE)]
    if "trust_remote_code" in reason:
        allowed = remedy if trust_remote_code is None else RUN_CODE
        return [
            Problem(field, value, f"{wrong} without running the code that comes with it", allowed)
        ]
    if number := _WHOLE_NUMBER.search(reason):
        remedy = f'write it as a whole number into config.json: "{number[1]}": {number[2]}'
    return [Problem(field, value, f"{wrong} ({reason})", remedy)]


def _is_of_the_machine(error: Exception) -> bool:
    """Return whether a device or another process failed, and no file: too little memory, a broken connection."""
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(error).__mro__}
    return not kinds.isdisjoint(_OF_THE_MACHINE)
