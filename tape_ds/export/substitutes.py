"""Substitutes in an exported model for modules that need more than torch: Triton's kernels, pydantic's checks."""

import re
from collections.abc import Mapping
from typing import Any

from tape_ds.errors import Problem

NAMESPACE = "tape_" + re.sub(r"\W", "_", __name__)
"""Namespace of its operators. torch has one operator of a name in a process: under this package's names, an exported
model would replace the package's own operators, or those of another export."""


def fits(*_: Any) -> bool:
    """Return False: there is no Triton kernel, and the PyTorch forms compute the same on every device."""
    return False


def problems(encoding: str, options: Any, given: Mapping[str, Any]) -> list[Problem]:
    """Refuse unknown names, in place of :mod:`tape_ds.encodings.option_types`; the training run checked types."""
    wrong = f"{encoding} has no such option"
    problems = []
    for name in sorted(given.keys() - options.__dataclass_fields__.keys()):
        problems.append(Problem(f"position_options.{name}", given[name], wrong, "remove it"))
    return problems
