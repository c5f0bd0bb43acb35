"""What is compared, as a user writes it: ``NAME`` or ``NAME{"field": value}``, and arguments for every run."""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from tape_ds.errors import Problem, UserError


@dataclass(frozen=True)
class Entry:
    """One thing that is compared, with its options."""

    name: str
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        """How tables call it: ``tape form=vector``."""
        return " ".join([self.name, *(f"{name}={value}" for name, value in self.options.items())])

    @property
    def folder(self) -> str:
        """Name of its run's folder."""
        return re.sub(r"[^A-Za-z0-9.=+-]+", "_", self.label).strip("_")


def read(text: str, flag: str) -> Entry:
    """``NAME`` or ``NAME{"field": value}``, given by ``--flag``.

    Raises:
        UserError: what stands in braces is no JSON.
    """
    name, brace, rest = text.partition("{")
    try:
        given = json.loads(brace + rest) if brace else {}
    except json.JSONDecodeError as error:
        remedy = f"""write for example '{name}{{"seed": 8}}'"""
        raise UserError(Problem(flag, text, f"its options are no JSON ({error.msg})", remedy)) from None
    return Entry(name.strip(), given)


def read_all(texts: Sequence[str], flag: str, read_one: Callable[[str], Entry]) -> tuple[list[Entry], list[Problem]]:
    """Every entry of ``--flag`` as ``read_one`` reads it, and what is wrong: with one of them, or with two alike."""
    found: list[Entry] = []
    wrong: list[Problem] = []
    for text in texts:
        try:
            found.append(read_one(text))
        except UserError as error:
            wrong += error.problems
    labels = [entry.label for entry in found]
    twice = sorted({label for label in labels if labels.count(label) > 1})
    return found, wrong + [Problem(flag, label, "named twice", "name it once") for label in twice]


def split(argv: Sequence[str]) -> tuple[list[str], list[str]]:
    """Arguments of the comparing command, and those behind ``--`` for every run."""
    at = list(argv).index("--") if "--" in argv else len(argv)
    return list(argv[:at]), list(argv[at + 1 :])


def check_passed_on(passed_on: Sequence[str], own: Sequence[str]) -> list[Problem]:
    """Arguments for every run among the fields (``own``) that the command decides."""
    given = {name[2:].split("=")[0].split(".")[0].replace("-", "_") for name in passed_on if name.startswith("--")}
    return [
        Problem(name, "behind --", "decided by this command", "remove it from there")
        for name in sorted(given & set(own))
    ]
