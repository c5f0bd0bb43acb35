"""Types and bounds of ``position_options``, checked by pydantic as the sections of a recipe are."""

import dataclasses
import functools
from collections.abc import Mapping
from typing import Any, get_type_hints

from pydantic import ConfigDict, Field, create_model

from tape_ds.errors import Problem
from tape_ds.fields import Section


class _Options(Section):
    # looking for a source that is not there takes long
    model_config = ConfigDict(use_attribute_docstrings=False)
    AS_MEANT = False  # the dataclass takes the values as they are


@functools.cache
def _section(options: Any) -> type[_Options]:
    hints = get_type_hints(options)
    members: dict[str, Any] = {
        each.name: (hints[each.name], Field(each.default, **each.metadata))
        for each in dataclasses.fields(options)
    }
    return create_model(options.__name__, __base__=_Options, **members)


def problems(encoding: str, options: Any, given: Mapping[str, Any]) -> list[Problem]:
    found = []
    for each in _section(options).check(given):
        wrong = f"{encoding} has no such option" if each.wrong == "unknown field" else each.wrong
        found.append(dataclasses.replace(each, field=f"position_options.{each.field}", wrong=wrong))
    return found
