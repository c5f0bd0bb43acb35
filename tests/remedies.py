"""Follow a remedy as it is written: read what it says to set, to leave out or to rename, and do that.

Remedies have a regular form, which a person can copy from and this can read::

    NAME: VALUE           as in a recipe's file; --NAME VALUE as on the command line
    NAME: A, B, C         any of them; NAME: one of A, B the same
    give X                for the field of the problem; give X or more, give X to Y, one of: A, B
    did you mean 'X'?     the name, where the name was wrong; else the value
    remove it             leave the field out, which on the command line is --NAME null; leave it out is the same
    FIRST and SECOND      both; "; or" and ", or" stand between ways out
"""

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from tape_ds.errors import Problem

_VALUE = r"(\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"|[\w.+-]*[\w+])"
_OTHERS = r"((?:, (?!or\b)[\w+-]+(?![\w.+-]*:)(?! [a-z]))*)"
_NUMBER = r"-?\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?"
_WRONG_NAME = (
    *("unknown field", "no field any more", "unknown key"),
    *("no such option", "not an option", "not a parameter"),
)
_LEAVE_OUT = re.compile(r"\b(?:remove|leave) (?:it|this|[a-z]+) out\b|\bremove it\b")


@dataclass(frozen=True)
class Step:
    """Give a field a value as the remedy writes it, in YAML; None: leave the field out."""

    field: str
    value: str | None = None
    renamed_from: str | None = None
    """The wrong name, whose value the right one gets."""

    @property
    def is_for_a_file(self) -> bool:
        """Whether a flag more cannot do it: a name that is wrong, or a key of DeepSpeed's JSON."""
        return self.renamed_from is not None or self.field.startswith("deepspeed.")

    def edited(self, content: dict[str, Any]) -> bool:
        """Do it in a file's content; return whether the content has the field."""
        *above, last = (self.renamed_from or self.field).split(".")
        place: Any = content
        for key in above:
            place = place.get(key) if isinstance(place, dict) else None
        if not isinstance(place, dict) or last not in place:
            return False
        value = place.pop(last)
        if self.renamed_from is not None:
            place[self.field.rpartition(".")[2]] = value
        elif self.value is not None:
            place[last] = yaml.safe_load(self.value)
        return True


Way = tuple[Step, ...]
"""One way out; its steps belong together."""


def ways(problem: Problem, fields: Collection[str]) -> list[Way]:
    """Return every way out that the remedy names by a field, an option or a value; empty: it is in words alone.

    ``fields``: names of the recipe's fields.
    """
    found: list[Way] = []
    for text in re.split(r"; (?:or )?|, or ", problem.remedy):
        steps = list(dict.fromkeys(_steps(replace(problem, remedy=text), fields)))
        if " and " in text and steps:
            found.append(tuple(steps))
        else:
            found += [(step,) for step in steps]
    return list(dict.fromkeys(found))


def _steps(problem: Problem, fields: Collection[str]) -> Iterator[Step]:
    own, remedy = problem.field, problem.remedy
    meant = re.search(r"\bdid you mean '([^']+)'\?", remedy)
    leaves_out = _LEAVE_OUT.search(remedy)
    yield from _named(remedy, fields)
    if any(words in problem.wrong for words in _WRONG_NAME):
        if meant:
            yield _renamed(problem, meant[1])
        if leaves_out:
            yield Step(own)
    elif own.partition(".")[0] in fields:
        if meant:
            yield Step(own, meant[1])
        if leaves_out:
            yield Step(own)
        yield from (Step(own, value) for value in _given(remedy))


def _renamed(problem: Problem, right: str) -> Step:
    above, dot, last = problem.field.rpartition(".")
    if problem.wrong == f"unknown field {above!r}":  # --abov.key
        return Step(f"{right}.{last}", renamed_from=problem.field)
    return Step(f"{above}{dot}{right}", renamed_from=problem.field)


def _named(remedy: str, fields: Collection[str]) -> Iterator[Step]:
    """Yield the steps that name their field."""
    names = "|".join(sorted(fields, key=len, reverse=True))
    name = rf"((?:{names})(?:\.\w+)*)"
    said = re.findall(rf"(?<![\w.'/-]){name}: (?:one of )?{_VALUE}{_OTHERS}", remedy)
    flags = re.findall(rf"--{name} {_VALUE}()", remedy)
    for field, value, others in (*said, *flags):
        if value.isupper() or (field == "tokenizer" and value == "a"):
            continue  # NAME VALUE: for what a person knows
        yield from (Step(field, each) for each in [value, *re.findall(r"[\w+-]+", others)])


def _given(remedy: str) -> Iterator[str]:
    """Yield the values that the remedy gives the problem's own field."""
    plain = re.sub(r" ?\([^)]*\)", "", remedy)
    if choices := re.search(r"\bone of: ([^;]*)", plain):
        listed = re.sub(r"( \.\.\.| as JSON|, or .*)*$", "", choices[1])
        yield from (choice.strip() for choice in listed.split(","))
    if 'write "auto"' in remedy:
        yield '"auto"'
    for each in re.finditer(r"\bgive ([^;]*)", plain):
        said = each[1]
        if span := re.match(rf"({_NUMBER}) to ({_NUMBER})\b", said):
            yield from (span[1], span[2])
        elif number := re.match(rf"({_NUMBER})(?![\w.]*:)\b", said):
            yield number[1]
        elif word := re.match(r"(true or false|true|false|auto|all-linear)\b", said):
            yield from word[1].split(" or ")
    if remedy == "null":
        yield remedy


def follow(way: Way, argv: list[str], folder: Path) -> list[str]:
    """Do the steps, in the files of ``folder`` where a flag cannot; return the command line."""
    argv = list(argv)
    for step in way:
        flag = f"--{step.renamed_from}"
        if flag in argv:
            argv[argv.index(flag)] = f"--{step.field}"
        elif step.is_for_a_file:
            edited = [
                _edit(path, step) for path in (*folder.glob("*.yaml"), *folder.glob("*.json"))
            ]
            assert any(edited), step
        else:
            argv += [f"--{step.field}", "null" if step.value is None else step.value]
    return argv


def _edit(path: Path, step: Step) -> bool:
    """Do a step in a recipe, or in DeepSpeed's JSON, whose keys have no ``deepspeed.`` before them."""
    is_json = path.suffix == ".json"
    try:
        content = json.loads(path.read_text()) if is_json else yaml.safe_load(path.read_text())
    except (ValueError, yaml.YAMLError):
        return False
    if is_json:
        before = None if step.renamed_from is None else step.renamed_from.removeprefix("deepspeed.")
        step = replace(step, field=step.field.removeprefix("deepspeed."), renamed_from=before)
    if not isinstance(content, dict) or not step.edited(content):
        return False
    path.write_text(json.dumps(content) if is_json else yaml.safe_dump(content))
    return True
