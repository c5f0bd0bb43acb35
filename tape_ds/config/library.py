"""Fields of transformers' TrainingArguments, read from the installed source: importing it takes seconds."""

import ast
import functools
import importlib.util
import re
from pathlib import Path
from typing import Any, Literal

from pydantic import create_model

from tape_ds.fields import Section

_PLAIN = {
    "bool": bool,
    "int": int,
    "float": float,
    "str": str,
    "dict": dict,
    "list": list,
    "Any": Any,
}


@functools.cache
def source(module: str) -> str:
    library, *parts = module.split(".")
    found = importlib.util.find_spec(library)
    assert found is not None and found.origin is not None, f"{library} is not installed"
    return Path(found.origin).parent.joinpath(*parts).with_suffix(".py").read_text(encoding="utf-8")


@functools.cache
def _classes() -> dict[str, list[ast.stmt]]:
    modules = [
        ast.parse(source(f"transformers.{name}")) for name in ("trainer_utils", "training_args")
    ]
    return {
        each.name: each.body
        for module in modules
        for each in module.body
        if isinstance(each, ast.ClassDef)
    }


def choices(name: str) -> Any:
    """Return an enum of transformers as the ``Literal`` of its values; None where it is no enum."""
    body = _classes().get(name, [])
    values = [
        each.value.value
        for each in body
        if isinstance(each, ast.Assign) and isinstance(each.value, ast.Constant)
    ]
    if values:
        return Literal[tuple(values)]
    return None


def trackers() -> list[str]:
    text = source("transformers.integrations.integration_utils")
    table = re.search(r"^INTEGRATION_TO_CALLBACK = {(.*?)^}", text, re.M | re.S)
    if table:
        return re.findall(r'^ +"(\w+)":', table[1], re.M)
    return []


def training_arguments() -> type[Section]:
    """Return a section of the fields of TrainingArguments with their types and defaults, as far as these are plain;
    ``local_rank`` is the launcher's, and checkpointing has its new name alone."""
    body = _classes()["TrainingArguments"]
    # a default may be a name, assigned in branches: the last is a current torch's
    assigned = [
        each for statement in body for each in ast.walk(statement) if isinstance(each, ast.Assign)
    ]
    names = {ast.unparse(each.targets[0]): each.value for each in assigned}
    found: dict[str, Any] = {}
    for each in body:
        if isinstance(each, ast.AnnAssign) and isinstance(each.value, ast.Call):
            given = {keyword.arg: keyword.value for keyword in each.value.keywords}
            value = given.get("default")
            if isinstance(value, ast.Name):
                value = names[value.id]
            default = (
                ast.literal_eval(value)
                if value is not None
                else {"list": [], "dict": {}}[ast.unparse(given["default_factory"])]
            )
            name = ast.unparse(each.target)
            if "init" not in given and not name.startswith(
                ("gradient_checkpointing", "local_rank")
            ):
                found[name] = (_type(each.annotation), default)
    made: type[Section] = create_model("TrainingArguments", __base__=Section, **found)
    return made


def _type(annotation: ast.expr) -> Any:
    """Return the type of an annotation; Any where a file can hold no such value."""
    if isinstance(annotation, ast.BinOp):
        left = _type(annotation.left)
        right = _type(annotation.right)
        # of "Enum | str" the enum is meant
        if right is str and not isinstance(left, type) and left is not None:
            return left
        return left | right
    if isinstance(annotation, ast.Constant):
        return annotation.value
    if isinstance(annotation, ast.Subscript):
        items = (
            annotation.slice.elts if isinstance(annotation.slice, ast.Tuple) else [annotation.slice]
        )
        if ast.unparse(annotation.value) == "Literal":
            return Literal[tuple(ast.literal_eval(item) for item in items)]
        kind: Any = _PLAIN[ast.unparse(annotation.value)]
        return kind[tuple(map(_type, items))]
    name = ast.unparse(annotation)
    return _PLAIN.get(name) or choices(name) or Any
