"""Fields of a recipe in sections: typed, bounded and described once, by pydantic, with the rules between them beside.

A section is a :class:`Section` whose fields have a type, bounds (``Field(ge=1)``) and a docstring, which ``--help``
shows. What fields forbid each other is a :func:`rule`. Unlike pydantic's validators, which stop at the first field that
is wrong, a rule runs whenever the fields that *it* reads are right: one message names everything.

A section may hold another one; its fields are then written with its name in front: ``chunks`` of ``pose`` is
``pose_chunks``, in a recipe and on the command line.
"""

import types
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationError

from tape_ds.errors import Problem, did_you_mean

DERIVED: Any = None
"""Default of a field that follows from others when nobody gives it; a loaded recipe has a value there, but for fields
that only other tasks have."""


def missing(value: Any) -> bool:
    """Return whether a :data:`DERIVED` field has got no value."""
    return value is None


_Rule = TypeVar("_Rule", bound=Callable[..., Iterator[Problem]])
_S = TypeVar("_S", bound="Section")


def rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Decorator of a section's or a recipe's method that yields problems: it reads the fields ``names``, and keeps
    silent where one of them is wrong by itself."""

    def mark(method: _Rule) -> _Rule:
        method.reads = names  # type: ignore[attr-defined]
        return method

    return mark


def run_rules(checked: object, broken: set[str], *arguments: object) -> Iterator[Problem]:
    """What the rules of ``checked`` find, but for those that read one of the fields ``broken``.

    Args:
        checked: a section or a recipe.
        broken: names of fields whose value is wrong by itself.
        arguments: for each rule, behind ``self``.
    """
    methods = {name: method for kind in reversed(type(checked).__mro__) for name, method in vars(kind).items()}
    for method in methods.values():
        reads = getattr(method, "reads", None)
        if isinstance(reads, tuple) and broken.isdisjoint(reads):
            yield from method(checked, *arguments)


class Section(BaseModel):
    """Fields that belong together. Types are strict: no number for a truth value, no text for a number."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    @classmethod
    def flat_fields(cls, prefix: str = "") -> dict[str, tuple[type["Section"], str]]:
        """Name in a recipe -> the section that has the field, and its name there."""
        found: dict[str, tuple[type[Section], str]] = {}
        for name, field in cls.model_fields.items():
            inner = field.annotation
            if isinstance(inner, type) and issubclass(inner, Section):
                found |= inner.flat_fields(f"{prefix}{name}_")
            else:
                found[prefix + name] = (cls, name)
        return found

    @classmethod
    def build(cls: type[_S], flat: Mapping[str, Any], prefix: str = "") -> _S:
        """Return the section of values that are valid, by their names in a recipe; defaults for those that are not
        there."""
        own: dict[str, Any] = {}
        for name, field in cls.model_fields.items():
            inner = field.annotation
            if isinstance(inner, type) and issubclass(inner, Section):
                own[name] = inner.build(flat, f"{prefix}{name}_")
            elif prefix + name in flat:
                own[name] = flat[prefix + name]
        return cls.model_construct(**own)  # type: ignore[return-value]

    def flat(self, prefix: str = "") -> dict[str, Any]:
        """Return the values by their names in a recipe."""
        found: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            found |= value.flat(f"{prefix}{name}_") if isinstance(value, Section) else {prefix + name: value}
        return found


class WrongValueError(ValueError):
    """To raise in a pydantic validator of a field: what is wrong, and the remedy."""

    def __init__(self, wrong: str, remedy: str):
        super().__init__(wrong)
        self.remedy = remedy


def as_meant(value: Any, annotation: Any) -> Any:
    """``value`` as YAML gave it, spelled as the type wants it: one text is a list of one, 1e6 a whole number, and what
    YAML takes for a truth value may be a choice called ``off``."""
    members = _members(annotation)
    if isinstance(value, str) and value[:1] != "[" and takes(annotation, list) and not takes(annotation, str):
        return [value]
    if isinstance(value, float) and value.is_integer() and takes(annotation, int) and not takes(annotation, float):
        return int(value)
    choices = [choice for member in members if get_origin(member) is Literal for choice in get_args(member)]
    if isinstance(value, bool) and not takes(annotation, bool):
        return next((word for word in (("on", "yes") if value else ("off", "no")) if word in choices), value)
    return value


def takes(annotation: Any, kind: type) -> bool:
    """Return whether a type, or one member of a union, is ``kind``."""
    return any((get_origin(member) or member) is kind for member in _members(annotation))


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, without their bounds; of any other type, itself."""
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return tuple(get_args(member)[0] if get_origin(member) is Annotated else member for member in members)


def check(section: type[Section], values: Mapping[str, Any]) -> list[Problem]:
    """Return what is wrong with each of ``values`` by itself, one problem for a field; fields that are not there are no
    problem. Names are the section's own."""
    found = {
        name: Problem(name, value, "wrong type", "give a number of 64 bits")
        for name, value in values.items()
        if isinstance(value, int) and abs(value) >= 2**63
    }
    try:
        section.model_validate({name: value for name, value in values.items() if name not in found})
    except ValidationError as error:
        for each in error.errors(include_url=False):
            name = str(each["loc"][0])
            if name not in found and each["type"] != "missing":
                found[name] = _problem(section, name, values[name], dict(each))
    return list(found.values())


_OUT_OF_RANGE = ("greater_than", "greater_than_equal", "less_than", "less_than_equal")
_RANGES = {
    ("ge", "le"): "give {ge} to {le}",
    ("ge", "lt"): "give a number from {ge} to below {lt}",
    ("gt", "lt"): "give a number above {gt} and below {lt}",
    ("gt", "le"): "give a number above {gt}, {le} at most",
    ("gt",): "give a number above {gt}",
    ("ge",): "give {ge} or more",
}
"""Bounds that fields have -> the remedy."""


def _problem(section: type[Section], name: str, value: Any, error: Mapping[str, Any]) -> Problem:
    """What pydantic says of a field, as a person wants to read it."""
    if error["type"] == "extra_forbidden":
        return Problem(name, value, "unknown field", did_you_mean(name, section.model_fields))
    cause = error.get("ctx", {}).get("error")
    if isinstance(cause, WrongValueError):
        return Problem(name, value, str(cause), cause.remedy)
    if error["type"] in _OUT_OF_RANGE:
        field = section.model_fields[name]
        bounds = {
            kind: getattr(mark, kind)
            for mark in field.metadata
            for kind in ("ge", "gt", "le", "lt")
            if hasattr(mark, kind)
        } or error["ctx"]  # of an item of a list
        optional = ", or null" if takes(field.annotation, type(None)) else ""
        return Problem(name, value, "out of range", _RANGES[tuple(sorted(bounds))].format(**bounds) + optional)
    annotation = section.model_fields[name].annotation
    quotes = " (in quotes if it looks like a number)" if takes(annotation, str) else ""
    return Problem(name, value, "wrong type", f"give {spelled(annotation)}{quotes}")


_WORDS = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    dict: "a mapping",
    list: "a list",
    type(None): "null",
}


def spelled(annotation: Any) -> str:
    """Return a type in words: ``a whole number``, ``a list, each item a text``, ``one of: a, b``."""
    names = []
    for member in _members(annotation):
        kind, inner = get_origin(member) or member, get_args(member)
        if kind is Literal:
            names.append("one of: " + ", ".join(map(str, inner)))
        elif kind is list and inner:
            names.append(f"a list, each item {spelled(inner[0])}")
        else:
            names.append(_WORDS.get(kind, "anything"))
    return ", or ".join(dict.fromkeys(names))
