"""Read a small JSON file, such as those of a model's folder, or say what is wrong with it in words that help.

Imports neither torch nor transformers.
"""

import json
import math
from pathlib import Path
from typing import Any

from tape_ds.errors import Problem, UserError


def read(file: Path, field: str, value: Any) -> dict[str, Any]:
    """Return the content of ``file``, a mapping; ``field`` and ``value`` are for messages.

    Raises:
        UserError: no regular file, no JSON, no mapping, or a NaN among its numbers, which no setting means.
    """
    if not file.is_file():
        wrong = "is a pipe or a device" if file.exists() else "is not there"
        raise UserError(
            Problem(
                field, value, f"{file.name} {wrong}", "give the whole folder, as it was published"
            )
        )
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(content, dict):
            raise ValueError("it is no mapping")
    except (OSError, ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200]
        wrong = f"{file.name} is not readable ({reason})"
        remedy = how_to_repair(error) or "repair it, or take it from where the model was published"
        raise UserError(Problem(field, value, wrong, f"{remedy} ({file})")) from error
    if names := _not_numbers(content):
        wrong = f"{file.name} has NaN, which is no number, as {', '.join(names)}"
        raise UserError(
            Problem(field, value, wrong, "take the file from where the model was published")
        )
    return content


def how_to_repair(error: Exception) -> str:
    """Return what to do about a text that json could not read, of the mistakes that editors and people make; empty if
    it is none of them."""
    if not isinstance(error, json.JSONDecodeError):
        return ""
    before = error.doc[: error.pos].rstrip()
    at = error.doc[error.pos : error.pos + 1]
    place = f"line {error.lineno} column {error.colno}"
    if error.doc.startswith("\ufeff"):
        return "save it as UTF-8 without a byte order mark (BOM): JSON has none"
    if at in ("/", "#"):
        return f"take the comments out (//, # or /*), the first of them at {place}: JSON has none"
    if at in ("}", "]") and before.endswith(","):
        return f"take out the comma before the {at} at {place}: JSON has none there"
    # since Python 3.13, which points at the comma
    if "trailing comma" in error.msg:
        return f"take out the comma at {place}: JSON has none there"
    return ""


def _not_numbers(value: Any, name: str = "") -> list[str]:
    """Return the names of all NaNs, nested ones with dots."""
    if isinstance(value, dict):
        return [
            each
            for key, inner in value.items()
            for each in _not_numbers(inner, f"{name}.{key}".lstrip("."))
        ]
    if isinstance(value, list):
        return [each for inner in value for each in _not_numbers(inner, name)]
    if isinstance(value, float) and math.isnan(value):
        return [name]
    return []
