"""One value against one declared type: strict about meaning, friendly about spelling.

YAML 1.1 reads ``1e-4`` (no dot) as text, and everything on a command line is text, so a number may arrive as text; a
number never stands for a truth value, nor a truth value for a number. :func:`convert` is the only place that decides.
"""

import enum
import json
import math
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

NUMBERS = (int, float)


class MismatchError(ValueError):
    """A value that its type cannot take; ``str()`` says what would do."""


def convert(value: Any, hint: Any, text: bool = False) -> Any:
    """``value`` as ``hint`` wants it.

    Args:
        value: as YAML or the command line gave it.
        hint: a type of a dataclass field: bool, int, float, str, enums, literals, list[...], dict, unions of these.
        text: the value was typed on a command line, where nothing but text exists.

    Raises:
        MismatchError: saying what the type takes.
    """
    if hint is Any:
        return value
    if get_origin(hint) in (Union, types.UnionType):
        return _convert_union(value, get_args(hint), text)
    if hint is None or hint is type(None):
        if value is None or (text and value == "null"):
            return None
        raise MismatchError("give null")
    if get_origin(hint) is Literal:
        return _convert_choice(value, get_args(hint))
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return _convert_choice(value, [member.value for member in hint])
    kind: Any = get_origin(hint) or hint
    if kind not in _CONVERTERS:
        raise MismatchError("this field cannot be given in a recipe")
    return _CONVERTERS[kind](value, hint, text)


def _convert_union(value: Any, members: tuple[Any, ...], text: bool) -> Any:
    """The first member that takes the value; text is tried against the exacter types first, as a plain text last."""
    chosen = [member for member in members if isinstance(member, type) and issubclass(member, enum.Enum)]
    if chosen:  # transformers declares its choices "Enum | str"; the enum is what it means
        members = tuple(member for member in members if member is not str)
    ordered = sorted(members, key=lambda member: member is str)
    if not text:
        ordered = sorted(ordered, key=_is_list)
    wanted = []
    for member in ordered:
        if text and _is_list(member) and str in members and "," not in str(value) and value[:1] != "[":
            continue  # one text is a text, not a list of one
        try:
            return convert(value, member, text)
        except MismatchError as mismatch:
            wanted.append(str(mismatch))
    raise MismatchError(", or ".join(dict.fromkeys(wanted)))


def _is_list(hint: Any) -> bool:
    kind: Any = get_origin(hint)
    return kind is list


def _convert_choice(value: Any, choices: Any) -> Any:
    names = list(choices)
    if isinstance(value, bool):  # what YAML 1.1 makes of these bare words
        for word in ("yes", "on") if value else ("no", "off"):
            if word in names:
                return word
    if isinstance(value, str) and value in names:
        return str(value)
    if not isinstance(value, str) and any(value is name for name in names):
        return value
    raise MismatchError("one of: " + ", ".join(map(str, names)))


def _convert_bool(value: Any, hint: Any, text: bool) -> bool:
    if isinstance(value, bool):
        return value
    if text and isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise MismatchError("give true or false")


def _convert_int(value: Any, hint: Any, text: bool) -> int:
    number = _number(value)
    if number is None or number != int(number) or abs(number) >= 2**63:
        raise MismatchError("give a whole number" if number is None or abs(number) < 2**63 else "give one of 64 bits")
    return int(number)


def _convert_float(value: Any, hint: Any, text: bool) -> float:
    number = _number(value)
    if number is None:
        raise MismatchError("give a number")
    return number if isinstance(number, int) else float(number)


def _number(value: Any) -> int | float | None:
    """The finite number that ``value`` is or spells, else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, str):
        try:
            value = float(value) if set(value) & set(".eE") else int(value)
        except ValueError:
            return None
    try:
        return value if isinstance(value, NUMBERS) and math.isfinite(value) else None
    except OverflowError:  # a whole number beyond every float
        return None


def _convert_str(value: Any, hint: Any, text: bool) -> str:
    if isinstance(value, str):
        return value
    raise MismatchError("give a text (in quotes if it looks like a number)")


def _convert_list(value: Any, hint: Any, text: bool) -> list[Any]:
    item = (get_args(hint) or (Any,))[0]
    if isinstance(value, str):
        value = _json(value, list, "[1, 2]") if text and value.startswith("[") else _split(value, text)
    if not isinstance(value, (list, tuple)):
        raise MismatchError("give a list")
    try:
        return [convert(each, item, text and isinstance(each, str)) for each in value]
    except MismatchError as mismatch:
        raise MismatchError(f"give a list; of each item: {mismatch}") from None


def _split(value: str, text: bool) -> list[str]:
    """A lone text is a list of one; on a command line commas separate."""
    return [part.strip() for part in value.split(",") if part.strip()] if text else [value]


def _convert_dict(value: Any, hint: Any, text: bool) -> dict[str, Any]:
    if text and isinstance(value, str):
        value = _json(value, dict, '{"key": 1}')
    if not isinstance(value, Mapping):
        raise MismatchError("give a mapping (key: value)")
    strange = [key for key in value if not isinstance(key, str)]
    if strange:
        raise MismatchError(f"the key {strange[0]!r} is not a text")
    return dict(value)


def _json(value: str, kind: type, example: str) -> Any:
    try:
        found = json.loads(value)
    except json.JSONDecodeError as error:
        raise MismatchError(f"give JSON such as {example} ({error.msg}, character {error.pos})") from None
    except (ValueError, RecursionError):  # thousands of digits, or of brackets
        raise MismatchError(f"give JSON such as {example}") from None
    if not isinstance(found, kind):
        raise MismatchError(f"give JSON such as {example}")
    return found


def plain(text: str) -> Any:
    """What a text means where no type is declared (inside a mapping): null, a truth value, a number, JSON or itself."""
    words = {"null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    number = _number(text)
    if number is not None:
        return number
    if text[:1] in "[{" and text:
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return text
    return text


_CONVERTERS = {
    bool: _convert_bool,
    int: _convert_int,
    float: _convert_float,
    str: _convert_str,
    list: _convert_list,
    dict: _convert_dict,
}
