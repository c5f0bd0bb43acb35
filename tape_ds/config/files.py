"""Recipe files: YAML that may build on other recipes.

A file of ``launchers/recipes`` holds one recipe, and in ``variants`` others that build on it::

    variants:
      c4_155m_alibi:
        about: A bias on the scores that falls with distance.
        position_encoding: alibi

Nothing is interpreted here beyond YAML itself: the result has, for every name, its value and the place where it is
written, for the messages of later checks.
"""

import copy
import functools
import os
import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tape_ds import paths
from tape_ds.distributed.launch_command import TRAINING
from tape_ds.errors import Problem, UserError, did_you_mean
from tape_ds.installation import RECIPES

LARGEST = 100_000
"""Values that a recipe may hold."""


@dataclass
class Given:
    """One value, uninterpreted."""

    value: Any
    where: str
    """For messages: ``demo.yaml line 3`` or ``command line``."""


Collected = dict[str, Given]


class RecipeLine(NamedTuple):
    """The place of a recipe."""

    path: Path
    variant: str | None = None
    """Its name in the file's ``variants``; None for the file's own recipe."""

    def __str__(self) -> str:
        return self.variant or self.path.name


_Document = tuple[yaml.Node, dict[Hashable, Any]]


class _File(NamedTuple):
    own: Collected
    variants: dict[str, Collected]
    problems: list[Problem]


class _Loader(yaml.SafeLoader):
    """``SafeLoader`` that notes repeated keys, of which YAML silently takes the last, and reads 1e-4 as a number, which
    YAML 1.1 takes for a text."""

    def __init__(self, stream: str):
        super().__init__(stream)
        self.repeated: list[tuple[str, int]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen = set()
        for key, _ in node.value:
            name = key.value if isinstance(key, yaml.ScalarNode) else None
            if name is not None and name != "<<":
                if name in seen:
                    self.repeated.append((name, key.start_mark.line + 1))
                seen.add(name)
        return super().construct_mapping(node, deep=True)


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def read_recipe(name: str, launcher: str, problems: list[Problem]) -> Collected:
    """Return all values of the recipe ``name`` (anywhere in ``launchers/recipes``, or a path) and of its bases.

    A recipe's values replace those of its base; a mapping is not merged into the base's, whose keys might not fit the
    new ones. For an unknown name the recipes of ``launcher`` are suggested.
    """
    place = _find_or_report(name, RECIPES, "recipe", problems, launcher)
    # a copy, since a shipped file is read once for all recipes of a process
    return {} if place is None else copy.deepcopy(_read_chain(place, "recipe", (), problems, launcher))


def require_launcher(name: str, collected: Collected, launcher: str) -> None:
    """Remove ``launcher`` from the values of the recipe ``name``; a recipe without it fits any launcher.

    Raises:
        UserError: it is a recipe of another launcher.
    """
    declared = collected.pop("launcher", None)
    if declared is None or declared.value == launcher:
        return
    known = [*TRAINING.values(), "finetune_scrolls"]
    if declared.value not in known:
        raise UserError(
            Problem("launcher", declared.value, f"no such launcher ({declared.where})", f"one of: {', '.join(known)}")
        )
    own = ", ".join(recipes_of(launcher))
    remedy = f"start launchers/{declared.value}.py with it, or choose a recipe of {launcher}.py: {own}"
    raise UserError(Problem("recipe", name, f"it is a recipe of {declared.value}.py", remedy))


def shipped() -> dict[str, RecipeLine]:
    """Return every recipe of ``launchers/recipes`` and its folders by its unique name, sorted."""
    places = {}
    for path in _shipped_paths(RECIPES):
        places[path.stem] = RecipeLine(path)
        places |= {name: RecipeLine(path, name) for name in _shipped_file(path).variants}
    return dict(sorted(places.items()))


def recipes_of(launcher: str) -> list[str]:
    chains = {name: _read_chain(place, "recipe", (), [], "") for name, place in shipped().items()}
    return sorted(name for name, each in chains.items() if "launcher" in each and each["launcher"].value == launcher)


def about(name: str) -> str:
    """Return one line on a shipped recipe: a variant's ``about``, or the first sentence of a file's first comment."""
    place = shipped()[name]
    if place.variant:
        about = _shipped_file(place.path).variants[place.variant].get("about")
        return "" if about is None else str(about.value)
    comment = re.match(r"(?:# .*\n)*", place.path.read_text(encoding="utf-8"))
    joined = " ".join(line.removeprefix("# ") for line in comment[0].splitlines()) if comment else ""
    return re.split(r"(?<=[.!?]) (?=[A-Z])", joined)[0]


def _read_chain(
    place: RecipeLine, field: str, above: tuple[RecipeLine, ...], problems: list[Problem], launcher: str
) -> Collected:
    if place in above:
        loop = " -> ".join(map(str, (*above[above.index(place) :], place)))
        wrong = f"recipes build on each other in a circle: {loop}"
        problems.append(Problem("base", str(place), wrong, "break the circle"))
        return {}
    file = _shipped_file(place.path) if _is_shipped(place.path) else _read_file(place.path, field)
    if all(place.path != each.path for each in above):  # else reported already
        problems += file.problems
    found = dict(file.own)
    if place.variant:
        found = {name: given for name, given in file.variants[place.variant].items() if name != "about"}
    base = found.pop("base", None)
    if base is None:
        below = RecipeLine(place.path) if place.variant else None
    elif isinstance(base.value, str):
        below = _find_or_report(base.value, place.path.parent, "base", problems, launcher, f" ({base.where})")
    else:
        problems.append(Problem("base", base.value, f"not the name of a recipe ({base.where})", "give one name"))
        below = None
    return found if below is None else _read_chain(below, "base", (*above, place), problems, launcher) | found


def _find_or_report(
    name: str, folder: Path, field: str, problems: list[Problem], launcher: str, where: str = ""
) -> RecipeLine | None:
    place = find(name, folder)
    if place is None:
        known = recipes_of(launcher) if launcher else []
        remedy = f"{did_you_mean(Path(name).stem, known)} (in {RECIPES}), or give the path of a .yaml file"
        problems.append(Problem(field, name, f"no such recipe{where}", remedy))
        # a shipped file that is broken hides its variants
        problems += [each for path in _shipped_paths(RECIPES) for each in _shipped_file(path).problems]
    return place


def find(name: str, folder: Path) -> RecipeLine | None:
    """Return the place of a recipe: a path, a recipe of ``folder``, or a shipped one, with or without its own folder
    (``scrolls/qasper``)."""
    if not name:
        return None
    is_path = name.endswith((".yaml", ".yml"))
    for path in [paths.of(name), folder / name] if is_path else [folder / f"{name}.yaml"]:
        if os.path.isfile(path):
            return RecipeLine(path.resolve())
    room, _, stem = name.rpartition("/")
    for path in [] if is_path else _shipped_paths(RECIPES):
        if room and path.relative_to(RECIPES.resolve()).parent.as_posix() != room:
            continue
        if path.stem == stem:
            return RecipeLine(path)
        # only a file that has the name is read as YAML: reading all takes longer than checking a recipe
        if stem in path.read_text(encoding="utf-8", errors="replace") and stem in _shipped_file(path).variants:
            return RecipeLine(path, stem)
    return None


@functools.cache
def _shipped_paths(folder: Path) -> list[Path]:
    return sorted(path.resolve() for path in folder.rglob("*.yaml"))


@functools.cache
def _shipped_file(path: Path) -> _File:
    return _read_file(path, "recipe")


def _is_shipped(path: Path) -> bool:
    return path.is_relative_to(RECIPES.resolve())


def _read_file(path: Path, field: str) -> _File:
    """Return one file's own recipe and its variants, with the problems of its form."""
    problems: list[Problem] = []
    document = _document(path, field, problems)
    if document is None:
        return _File({}, {}, problems)
    own = _with_lines(*document, path)
    table = own.pop("variants", None)
    variants: dict[str, Collected] = {}
    if table is not None and not _is_shipped(path):
        wrong = f"only recipes of {RECIPES} have variants ({table.where})"
        problems.append(Problem("variants", str(path), wrong, "write a file for each, with base: NAME"))
    elif table is not None and not isinstance(table.value, dict):
        wrong = f"not a mapping ({table.where})"
        problems.append(Problem("variants", table.value, wrong, "write 'name: {about: text, field: value}' for each"))
    elif table is not None:
        node = _children(document[0])["variants"]
        for name, given in _with_lines(node, table.value, path).items():
            if isinstance(given.value, dict) and name in _children(node):
                variants[name] = _with_lines(_children(node)[name], given.value, path)
            else:
                remedy = "write a name, and its fields as a mapping"
                problems.append(Problem("variants", name, f"not a recipe ({given.where})", remedy))
    return _File(own, variants, problems)


def _children(node: yaml.Node) -> dict[str, yaml.Node]:
    assert isinstance(node, yaml.MappingNode)
    return {key.value: value for key, value in node.value if isinstance(key, yaml.ScalarNode)}


def _with_lines(node: yaml.Node, content: dict[Hashable, Any], path: Path) -> Collected:
    assert isinstance(node, yaml.MappingNode)
    lines = {key.value: key.start_mark.line + 1 for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
    return {
        str(name): Given(value, f"{path.name} line {lines[str(name)]}" if str(name) in lines else path.name)
        for name, value in content.items()
    }


def read_yaml(path: Path, field: str, problems: list[Problem]) -> Collected:
    document = _document(path, field, problems)
    return {} if document is None else _with_lines(*document, path)


def _document(path: Path, field: str, problems: list[Problem]) -> _Document | None:
    """Return the mapping of a file, as YAML's nodes and as values; None, and a problem, if it is no mapping."""
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        content = loader.construct_document(node) if node is not None else None
    except (OSError, UnicodeDecodeError) as error:
        problem = Problem(field, str(path), f"cannot be read ({error})", "make it a readable UTF-8 file")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}" if mark else "somewhere"
        wrong = f"not readable as YAML, {line}: {error.problem}"
        problem = Problem(field, str(path), wrong, "mend the YAML there; indent with spaces")
    except Exception as error:  # building a value raises anything for impossible characters, depth or tags
        reason = str(error).partition("\n")[0]
        wrong = f"not readable as YAML: characters, or a value that its own form or tag forbids ({reason})"
        remedy = "remove strange characters, write values in quotes, and brackets flat"
        problem = Problem(field, str(path), wrong, remedy)
    else:
        if _is_small(content):
            for name, number in loader.repeated:
                wrong = f"written twice in {path.name}, the second time in line {number}"
                problems.append(Problem(name, path.name, wrong, "keep one of the two"))
            if isinstance(content, dict) and node is not None:
                return node, content
            kind = "empty" if content is None else f"a {type(content).__name__}"
            problem = Problem(field, str(path), f"not a mapping but {kind}", "write one 'field: value' a line")
        else:
            wrong = f"it stands for more than {LARGEST:,} values"
            problem = Problem(field, str(path), wrong, "write it without aliases (& and *)")
    problems.append(problem)
    return None


def _is_small(content: Any) -> bool:
    """Return whether a document has no more than :data:`LARGEST` values once its aliases are followed: a few lines of
    aliases of aliases can stand for billions."""
    waiting, count = [content], 0
    while waiting and count <= LARGEST:
        value = waiting.pop()
        count += 1
        if isinstance(value, dict):
            waiting += [*value.keys(), *value.values()]
        elif isinstance(value, list | tuple | set):
            waiting += value
    return count <= LARGEST
