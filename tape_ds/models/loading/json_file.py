"""Read a small JSON file of a model's folder, or say what is wrong with it in words that help.

Imports neither torch nor transformers.
"""

import json
import math
import re
from pathlib import Path
from typing import Any

from tape_ds.errors import Problem, UserError

_COMMENT = re.compile(r"^\s*(//|#|/\*)", re.MULTILINE)
_COMMA = re.compile(r",\s*[}\]]")


def read(file: Path, field: str, value: Any) -> dict[str, Any]:
    """Return the content of ``file``, a mapping; ``field`` and ``value`` are for messages.

    Raises:
        UserError: no regular file, no JSON, no mapping, or a NaN among its numbers, which no setting means.
    """
    if not file.is_file():
        wrong = "is a pipe or a device" if file.exists() else "is not there"
        raise UserError(Problem(field, value, f"{file.name} {wrong}", "give the whole folder, as it was published"))
    text = ""
    try:
        text = file.read_text(encoding="utf-8")
        content = json.loads(text)
        if not isinstance(content, dict):
            raise ValueError("it is no mapping")
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        wrong = f"{file.name} is not readable ({reason})"
        raise UserError(Problem(field, value, wrong, f"{how_to_repair(text)} ({file})")) from error
    if names := _not_numbers(content):
        wrong = f"{file.name} has NaN, which is no number, as {', '.join(names)}"
        raise UserError(Problem(field, value, wrong, "take the file from where the model was published"))
    return content


def how_to_repair(text: str) -> str:
    """Return what to do about a text that is no JSON: the mistakes that editors and people make."""
    if text.startswith("\ufeff"):
        return "save it as UTF-8 without a byte order mark (BOM): JSON has none"
    if _COMMENT.search(text):
        return "take the comments out (lines with //, # or /*): JSON has none"
    if _COMMA.search(text):
        return "take out the comma before a closing } or ]: JSON has none there"
    return "repair it, or take it from where the model was published"


def _not_numbers(value: Any, name: str = "") -> list[str]:
    """Return the names of all NaNs, nested ones with dots."""
    if isinstance(value, dict):
        return [each for key, inner in value.items() for each in _not_numbers(inner, f"{name}.{key}".lstrip("."))]
    if isinstance(value, list):
        return [each for inner in value for each in _not_numbers(inner, name)]
    return [name] if isinstance(value, float) and math.isnan(value) else []
