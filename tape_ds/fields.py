"""Sections of a recipe: pydantic models whose fields carry a type, bounds, facts and, as a docstring, their help.

A section may hold another one, whose fields then have its name as a prefix: ``chunks`` of ``pose`` is ``pose_chunks``
in a recipe and on the command line.
"""

import types
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Annotated, Any, ClassVar, Literal, TypeVar, Union, get_args, get_origin

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    field_validator,
)
from pydantic.fields import FieldInfo

from tape_ds import numbers
from tape_ds.errors import Problem, did_you_mean

DERIVED: Any = None
"""Default of a field that follows from others unless it is given."""


class Fact(Enum):
    """A fact of a field, in its ``Annotated``; this stack's own fields are fixed without one of the first two."""

    RISKY = "a resumed run may change it with resume_anyway: the numbers change from there on, nothing breaks"
    FREE = "a resumed run may change it: it changes no number, or a fingerprint of what it names is compared"
    FIXED = "a resumed run must keep it, although most fields of the trainer are free"
    COMPARED = "the arms of an experiment must share it for their rows to compare"


RISKY = Fact.RISKY
FREE = Fact.FREE
FIXED = Fact.FIXED
COMPARED = Fact.COMPARED


def _counted(value: Any) -> Any:
    if isinstance(value, str) and value[-1:] in ("k", "K"):
        return numbers.tokens(value) or value
    return value


Tokens = Annotated[int, BeforeValidator(_counted)]
"""A number of tokens, which may be written as 32k."""

_Rule = TypeVar("_Rule", bound=Callable[..., Iterator[Problem]])
_S = TypeVar("_S", bound="Section")


# Not pydantic's model_validator: it runs only once every field is valid and stops at its first error, and a recipe's
# rules have to name everything at once, in any section.
def rule(*names: str) -> Callable[[_Rule], _Rule]:
    """Mark a method that yields problems of the fields ``names`` together; it runs when each of them is valid."""

    def mark(method: _Rule) -> _Rule:
        method.reads = names  # type: ignore[attr-defined]
        return method

    return mark


def run_rules(checked: object, broken: set[str], *arguments: object) -> Iterator[Problem]:
    """Yield what the rules of a section or a recipe find, except those that read a field of ``broken``."""
    # of the class that overrides last, in the order in which names first appear
    methods: dict[str, Any] = {}
    for kind in reversed(type(checked).__mro__):
        methods.update(vars(kind))
    for method in methods.values():
        reads = getattr(method, "reads", None)
        if isinstance(reads, tuple) and broken.isdisjoint(reads):
            yield from method(checked, *arguments)


class WrongValueError(ValueError):
    """To raise in a pydantic validator of a field: what is wrong, and the remedy."""

    def __init__(self, wrong: str, remedy: str):
        super().__init__(wrong)
        self.remedy = remedy


class Section(BaseModel):
    """Fields that belong together. Types are strict: no number for a truth value, no text for a number."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, strict=True, allow_inf_nan=False, use_attribute_docstrings=True
    )

    AS_MEANT: ClassVar[bool] = True
    """Whether values that YAML spells otherwise than their type are taken."""

    @field_validator("*", mode="wrap")
    @classmethod
    def _as_meant(
        cls, value: Any, validated: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Any:
        """Validate what YAML gave, spelled as the type has it: a text as a list of one, 1e6 as a whole number, and what
        YAML takes for a truth value as a choice called ``off``."""
        annotation = cls.model_fields[str(info.field_name)].annotation
        # JSON and tensors could not hold it
        if isinstance(value, int) and abs(value) >= 2**63:
            raise WrongValueError("wrong type", "give a number of 64 bits")
        if not cls.AS_MEANT:
            return validated(value)
        if isinstance(value, str) and value[:1] != "[":
            if takes(annotation, list) and not takes(annotation, str):
                value = [value]
        elif isinstance(value, float) and value.is_integer():
            if takes(annotation, int) and not takes(annotation, float):
                value = int(value)
        elif isinstance(value, bool) and not takes(annotation, bool):
            value = _choice_of(value, annotation)
        valid = validated(value)
        # 5 stays 5 where 5.0 is a value as well
        if type(value) is int and valid == value:
            return value
        return valid

    @classmethod
    def flat_fields(cls, prefix: str = "") -> dict[str, FieldInfo]:
        """Return the fields by their names in a recipe."""
        flat: dict[str, FieldInfo] = {}
        for name, field in cls.model_fields.items():
            inner = _section(field)
            if inner is None:
                flat[prefix + name] = field
            else:
                flat |= inner.flat_fields(f"{prefix}{name}_")
        return flat

    @classmethod
    def check(cls, flat: Mapping[str, Any]) -> list[Problem]:
        """Return what is wrong with each of ``flat``, values by their names in a recipe, and what is missing."""
        try:
            cls.build(flat)
        except ValidationError as invalid:
            # the first of a field: pydantic has one for each member of a union
            problems: dict[str, Problem] = {}
            for error in invalid.errors(include_url=False):
                section = cls
                name = str(error["loc"][0])
                field_name = name
                if (
                    field_name in cls.model_fields
                    and (inner := _section(cls.model_fields[field_name]))
                    and len(error["loc"]) > 1
                ):
                    section = inner
                    field_name = str(error["loc"][1])
                    name = f"{name}_{field_name}"
                value = flat.get(name)
                kind = error["type"]
                cause = error.get("ctx", {}).get("error")
                if kind == "extra_forbidden":
                    problem = Problem(
                        name, value, "unknown field", did_you_mean(field_name, section.model_fields)
                    )
                elif kind == "missing":
                    problem = Problem(
                        name, None, "missing", f"write {name}: in the recipe, or --{name} VALUE"
                    )
                elif isinstance(cause, WrongValueError):
                    problem = Problem(name, value, str(cause), cause.remedy)
                elif kind.startswith(("greater_than", "less_than")):
                    field = section.model_fields[field_name]
                    # an item of a list has its bounds in the error
                    bounds = _bounds(field) or error["ctx"]
                    remedy = _RANGES[tuple(sorted(bounds))].format(**bounds)
                    optional = ""
                    if takes(field.annotation, type(None)):
                        optional = ", or null"
                    problem = Problem(name, value, "out of range", remedy + optional)
                else:
                    annotation = section.model_fields[field_name].annotation
                    quotes = ""
                    if takes(annotation, str):
                        quotes = " (in quotes if it looks like a number)"
                    problem = Problem(
                        name, value, "wrong type", f"give {spelled(annotation)}{quotes}"
                    )
                problems.setdefault(name, problem)
            return list(problems.values())
        return []

    @classmethod
    def build(cls: type[_S], flat: Mapping[str, Any]) -> _S:
        """Return the section of values by their names in a recipe; names of its inner sections alone may be unknown."""
        nested: dict[str, Any] = dict(flat)
        for name, field in cls.model_fields.items():
            if (inner := _section(field)) is not None:
                given = [
                    flat_name for flat_name in inner.flat_fields(f"{name}_") if flat_name in nested
                ]
                nested[name] = {
                    flat_name.removeprefix(f"{name}_"): nested.pop(flat_name) for flat_name in given
                }
        return cls.model_validate(nested)

    def flat(self, prefix: str = "") -> dict[str, Any]:
        """Return the values by their names in a recipe."""
        flat: dict[str, Any] = {}
        for name in type(self).model_fields:
            value = getattr(self, name)
            if isinstance(value, Section):
                flat |= value.flat(f"{prefix}{name}_")
            else:
                flat[prefix + name] = value
        return flat


def _section(field: FieldInfo) -> type[Section] | None:
    kind = field.annotation
    if isinstance(kind, type) and issubclass(kind, Section):
        return kind
    return None


def _bounds(field: FieldInfo) -> dict[str, Any]:
    bounds = {}
    for mark in field.metadata:
        for side in _SIDES:
            bound = getattr(mark, side, None)
            if bound is not None:
                bounds[side] = bound
    return bounds


def _choice_of(value: bool, annotation: Any) -> Any:
    """Return the choice that YAML has taken for a truth value; the value itself where there is none."""
    choices: list[Any] = []
    for member in _members(annotation):
        if get_origin(member) is Literal:
            choices += get_args(member)
    for word in ("on", "yes") if value else ("off", "no"):
        if word in choices:
            return word
    return value


def takes(annotation: Any, kind: type) -> bool:
    """Return whether a type, or one member of a union, is ``kind``."""
    return any((get_origin(member) or member) is kind for member in _members(annotation))


def _members(annotation: Any) -> tuple[Any, ...]:
    """Return the members of a union, without their bounds; of any other type, itself."""
    members = (
        get_args(annotation)
        if get_origin(annotation) in (Union, types.UnionType)
        else (annotation,)
    )
    return tuple(
        get_args(member)[0] if get_origin(member) is Annotated else member for member in members
    )


_SIDES = ("ge", "gt", "le", "lt")
_RANGES = {
    ("ge", "le"): "give {ge} to {le}",
    ("ge", "lt"): "give a number from {ge} to below {lt}",
    ("gt", "lt"): "give a number above {gt} and below {lt}",
    ("gt", "le"): "give a number above {gt}, {le} at most",
    ("gt",): "give a number above {gt}",
    ("ge",): "give {ge} or more",
}
"""Bounds that fields have -> the remedy."""


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
        kind = get_origin(member) or member
        inner = get_args(member)
        if kind is Literal:
            names.append("one of: " + ", ".join(map(str, inner)))
        elif kind is list and inner:
            names.append(f"a list, each item {spelled(inner[0])}")
        else:
            names.append(_WORDS.get(kind, "anything"))
    return ", or ".join(dict.fromkeys(names))
