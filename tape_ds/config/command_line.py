"""A launcher's command line: ``--field value`` overrides a recipe's file.

NAME_OR_PATH                 as the first word, or after --recipe: which recipe; the launcher's default without it
--field VALUE                any field; a list as a,b or a b; lists and mappings as JSON or YAML on one line
--flag                       true
--no_flag                    false
--field.key VALUE            one key of a mapping; of a flag that is given twice, the last one counts
--field null                 null, as in a recipe's file: the field's default; the text of that name is '"null"'
"""

import json
import math
import re
from collections.abc import Mapping
from typing import Any, get_args, get_origin

from pydantic.fields import FieldInfo

from tape_ds.config import files
from tape_ds.config.files import Collected, Given
from tape_ds.data.sources import KINDS
from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import takes

WHERE = "command line"
_FLAG = re.compile(r"--([A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_KIND = f"(?:{'|'.join(KINDS)})"
_HAS_A_SPEC = re.compile(rf"(?:^|,)\s*{_KIND}:")
_BEFORE_A_SPEC = re.compile(rf",(?=\s*{_KIND}(?:[:#,]|\s*$))")


def read(argv: list[str], problems: list[Problem]) -> dict[str, list[str]]:
    """Return the texts of ``--name value ...``, ``--name=value`` or lone ``--name``; dashes become underscores. Words
    before every flag are the texts of ``recipe``.

    The last of several flags of one name counts, so that a wrapper's defaults can be overridden. A recipe that is named
    in both ways stays with both texts.
    """
    found: dict[str, list[str]] = {}
    first: list[str] = []
    current: list[str] | None = None
    for token in argv:
        match = _FLAG.fullmatch(token)
        if match:
            name = match[1].replace("-", "_")
            found.pop(name, None)  # the place among all flags is that of the last one
            current = found[name] = []
            if match[2] is not None:
                current.append(match[2])
                current = None
        elif current is not None and (not token.startswith("-") or plain(token) != token):
            current.append(token)
        elif found.keys() <= {"local_rank"}:  # which DeepSpeed's launcher puts before everything
            first.append(token)
        else:
            known = files.find(token, files.RECIPES)
            remedy = "write --field value"
            if known:
                remedy = f"did you mean --recipe {token}?"
            problems.append(Problem(WHERE, token, "belongs to no --field", remedy))
    if first:
        found["recipe"] = [*first, *found.get("recipe", [])]
    return found


def switch(name: str, flags: dict[str, list[str]], problems: list[Problem]) -> bool:
    """Remove ``--name`` from ``flags``, and return whether it is there, alone or with ``true``."""
    texts = flags.pop(name, ["false"])
    value = plain(texts[-1]) if texts else True
    if not isinstance(value, bool):
        problems.append(Problem(name, texts[-1], f"wrong type ({WHERE})", "give true or false"))
    return value is True


def override(
    collected: Collected,
    flags: Mapping[str, list[str]],
    fields: Mapping[str, FieldInfo],
    problems: list[Problem],
) -> Collected:
    """Return ``collected``, the files' values, with those of the command line in their place.

    Args:
        collected: by name.
        flags: see :func:`read`.
        fields: by name. A name that it lacks passes through to the one check of names that also covers the files.
        problems: gets what is wrong.
    """
    merged = dict(collected)
    for flag, texts in flags.items():
        name, _, key = flag.partition(".")
        denied = name.removeprefix("no_")
        if (
            not texts
            and denied != name
            and denied in fields
            and takes(fields[denied].annotation, bool)
        ):
            merged[denied] = Given(False, WHERE)
            continue
        words = " ".join(texts)
        before = merged[name].value if name in merged else None
        annotation = fields[name].annotation if name in fields else None
        is_list = len(texts) > 1 and not key and takes(annotation, list)
        if len(texts) > 1 and name in fields and not is_list:
            problems.append(Problem(flag, words, "several values are given", "keep one of them"))
        if name not in fields and not key:
            merged[name] = Given(texts[0] if texts else None, WHERE)
        elif name not in fields:
            problems.append(
                Problem(flag, words, f"unknown field {name!r}", did_you_mean(name, fields))
            )
        elif is_list:
            merged[name] = Given(
                [part for text in texts for part in _items(text, annotation)], WHERE
            )
        elif texts and not key:
            merged[name] = Given(meant(texts[0], annotation), WHERE)
        elif not key and takes(annotation, bool):
            merged[name] = Given(True, WHERE)
        elif not key:
            problems.append(Problem(name, None, "the flag has no value", f"write --{name} VALUE"))
        elif not takes(annotation, dict):
            problems.append(
                Problem(flag, words, f"{name} is not a mapping", f"write --{name} VALUE")
            )
        elif not isinstance(before, dict | None):
            remedy = f"change the file that {name} names, or give {name} as a mapping in the recipe"
            problems.append(Problem(flag, words, f"{name} is {before!r}, not a mapping", remedy))
        else:  # one key, such as a.b, inside the mapping
            *path, last = key.split(".")
            top = place = dict(before or {})
            for part in path:
                inner = place.get(part)
                place[part] = dict(inner) if isinstance(inner, dict) else {}
                place = place[part]
            quoted = _quoted(texts[0]) if texts else None
            place[last] = quoted or (plain(texts[0]) if texts else True)
            merged[name] = Given(top, WHERE)
    return merged


def meant(text: str, annotation: Any) -> Any:
    """Return the value of a text in a field of this type; the text itself if the field does not take its value.

    ``null`` is null whatever the type is, as in a file.
    """
    value = plain(text)
    if value is None:
        return None
    if takes(annotation, list) and not (
        takes(annotation, str) and "," not in text and text[:1] != "["
    ):
        if text.startswith("["):
            return value
        return _items(text, annotation)
    if takes(annotation, str) and (quoted := _quoted(text)) is not None:
        return quoted
    if isinstance(value, str) or not takes(annotation, str):
        return value
    kinds = (int, float) if type(value) is int else (type(value),)
    if any(takes(annotation, kind) for kind in kinds):
        return value
    return text


def _quoted(text: str) -> str | None:
    """Return the inside of ``"null"`` or ``"5"``: quotes are needed only where the inside alone is no text."""
    if len(text) < 3 or text[0] != '"' or text[-1] != '"':
        return None
    inside = text[1:-1]
    if plain(inside) == inside:
        return None
    return inside


def _items(text: str, annotation: Any) -> list[Any]:
    if isinstance(value := plain(text), list):
        return value
    lists = [member for member in (get_args(annotation) or ()) if get_origin(member) is list] or [
        annotation
    ]
    item = (get_args(lists[0]) or (str,))[0]
    return [meant(part.strip(), item) for part in _parts(text) if part.strip()]


def _parts(text: str) -> list[str]:
    """Return what commas separate; in a data spec they may be of a path or an option, unless another spec follows."""
    if _HAS_A_SPEC.search(text):
        return _BEFORE_A_SPEC.split(text)
    return text.split(",")


def plain(text: str) -> Any:
    """Return the value of a text without a declared type: null, a truth value, a number, JSON or itself."""
    words = {"null": None, "true": True, "false": False}
    if text.lower() in words:
        return words[text.lower()]
    try:
        number = float(text) if set(text) & set(".eE") else int(text)
        if math.isfinite(number):
            return number
    except (ValueError, OverflowError):
        pass
    if text[:1] in ("[", "{"):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            return files.flow(text)
    return text
