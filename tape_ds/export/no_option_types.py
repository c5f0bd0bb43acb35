"""In place of :mod:`tape_ds.encodings.option_types`: an export needs no pydantic, and its options were checked."""

from collections.abc import Mapping
from typing import Any

from tape_ds.errors import Problem


def problems(encoding: str, options: Any, given: Mapping[str, Any]) -> list[Problem]:
    """Refuse unknown names; types are not checked."""
    unknown = given.keys() - options.__dataclass_fields__.keys()
    wrong = f"{encoding} has no such option"
    return [Problem(f"position_options.{name}", given[name], wrong, "remove it") for name in sorted(unknown)]
