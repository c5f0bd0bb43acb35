"""Checks: functions that say what is wrong with a recipe, each under the names of the fields that it reads.

Where one of these fields has a problem of its own, the check keeps silent, since it could only repeat that problem in
other words. A kind of recipe runs the checks that every run needs (:mod:`.trainer_checks`, :mod:`.address_checks`) and
its own.
"""

from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from tape_ds.errors import Problem

_Check = TypeVar("_Check", bound=Callable[[Any], Iterator[Problem]])


class Checks:
    """A group of checks."""

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[str, ...], Callable[[Any], Iterator[Problem]]]] = []

    def reads(self, *fields: str) -> Callable[[_Check], _Check]:
        """Decorator: the function joins the group and reads these fields of the recipe that it is given."""

        def register(check: _Check) -> _Check:
            self._entries.append((fields, check))
            return check

        return register

    def run(self, recipe: Any, broken: set[str]) -> list[Problem]:
        """Everything that the checks find.

        Args:
            recipe: all its fields filled, wrong ones with stand-ins.
            broken: names of the wrong ones.
        """
        problems: list[Problem] = []
        for fields, check in self._entries:
            if broken.isdisjoint(fields):
                problems += check(recipe)
        return problems
