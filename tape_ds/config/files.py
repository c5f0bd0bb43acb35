"""Recipe files: YAML that may build on other recipes.

A file of ``launchers/recipes`` holds one recipe, and in ``variants`` others that build on it::

    variants:
      c4_155m_alibi:
        about: A bias on the scores that falls with distance.
        position_encoding: alibi

Nothing is interpreted here beyond YAML itself: the result has, for every name, its value and its line, for the messages
of later checks.
"""

import copy
import functools
import os
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tape_ds import paths
from tape_ds.distributed.launch_command import COMMANDS
from tape_ds.errors import Problem, UserError, did_you_mean
from tape_ds.installation import RECIPES

MOST_ALIASES = 20
"""In a file: more of them can stand for billions of values in a few lines."""


@dataclass
class Given:
    """One value, uninterpreted."""

    value: Any
    where: str
    """For messages: ``demo.yaml line 3`` or ``command line``."""
    level: int = 0
    """0: the command line; 1: the recipe that is named; 2: its base; and so on."""


Collected = dict[str, Given]


class RecipeLine(NamedTuple):
    """The place of a recipe."""

    path: Path
    variant: str | None = None
    """Its name in the file's ``variants``; None for the file's own recipe."""

    def __str__(self) -> str:
        return self.variant or self.path.name


class RecipeFile(NamedTuple):
    """The recipes of one file, and what is wrong with its form."""

    own: Collected
    variants: dict[str, Collected]
    problems: list[Problem]


class _Loader(yaml.SafeLoader):
    """``SafeLoader`` that notes repeated keys, of which YAML silently takes the last, and reads 1e-4 as a number, which
    YAML 1.1 takes for a text."""

    def __init__(self, stream: str):
        super().__init__(stream)
        self.repeated: list[tuple[str, int]] = []
        self.aliases = 0

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                if key.value in seen:
                    self.repeated.append((key.value, key.start_mark.line + 1))
                seen.add(key.value)
        return node

    def fetch_alias(self) -> None:
        self.aliases += 1
        if self.aliases > MOST_ALIASES:
            wrong = f"more than {MOST_ALIASES} aliases (*): write the values"
            raise yaml.scanner.ScannerError(None, None, wrong, self.get_mark())
        super().fetch_alias()

    def collected(self, node: yaml.MappingNode, path: Path) -> Collected:
        """Return the values of a mapping with their lines."""
        self.flatten_mapping(node)
        return {
            str(self.construct_object(key, deep=True)): Given(
                self.construct_object(value, deep=True),
                f"{path.name} line {key.start_mark.line + 1}",
            )
            for key, value in node.value
        }


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?(?:\d+\.?\d*|\.\d+)[eE][-+]?\d+$"),
    list("-+.0123456789"),
)


def read_recipe(name: str | RecipeLine, launcher: str, problems: list[Problem]) -> Collected:
    """Return all values of the recipe ``name`` (anywhere in ``launchers/recipes``, or a path) and of its bases.

    A recipe's values replace those of its base; a mapping is not merged into the base's, whose keys might not fit the
    new ones. For an unknown name the recipes of ``launcher`` are suggested.
    """
    below: str | RecipeLine | None = name
    folder = RECIPES
    field = "recipe"
    where = ""
    found: Collected = {}
    above: list[RecipeLine] = []
    while below is not None:
        place = find(below, folder) if isinstance(below, str) else below
        if place is None:
            known = recipes_of(launcher) if launcher else []
            remedy = f"{did_you_mean(Path(str(below)).stem, known)} (in {RECIPES}), or give the path of a .yaml file"
            problems.append(Problem(field, below, f"no such recipe{where}", remedy))
            # a shipped file that is broken hides its variants
            problems += [
                each for path in _shipped_paths(RECIPES) for each in _shipped_file(path).problems
            ]
            break
        if place in above:
            loop = " -> ".join(map(str, (*above[above.index(place) :], place)))
            wrong = f"recipes build on each other in a circle: {loop}"
            problems.append(Problem("base", str(place), wrong, "break the circle"))
            break
        is_shipped = place.path.is_relative_to(RECIPES.resolve())
        file = _shipped_file(place.path) if is_shipped else read_file(place.path, field)
        # else reported already
        if all(place.path != each.path for each in above):
            problems += file.problems
        own = dict(file.variants[place.variant]) if place.variant else dict(file.own)
        if place.variant:
            own.pop("about", None)
        base = own.pop("base", None)
        above.append(place)
        found = {name: replace(given, level=len(above)) for name, given in own.items()} | found
        folder = place.path.parent
        field = "base"
        below = None
        if base is None and place.variant:
            below = RecipeLine(place.path)
        elif base is not None and isinstance(base.value, str):
            below = base.value
            where = f" ({base.where})"
        elif base is not None:
            wrong = f"not the name of a recipe ({base.where})"
            problems.append(Problem("base", base.value, wrong, "give one name"))
    # a copy, since a shipped file is read once for all recipes of a process
    return copy.deepcopy(found)


def require_launcher(name: str, collected: Collected, launcher: str) -> None:
    """Remove ``launcher`` from the values of the recipe ``name``; a recipe without it fits any launcher. Raises
    UserError: it is a recipe of another launcher."""
    declared = collected.pop("launcher", None)
    if declared is None or declared.value == launcher:
        return
    if declared.value not in COMMANDS:
        remedy = f"one of: {', '.join(COMMANDS)}"
        raise UserError(
            Problem("launcher", declared.value, f"no such launcher ({declared.where})", remedy)
        )
    fitting = COMMANDS[declared.value]
    remedy = f"start {fitting} with it, or choose one of {COMMANDS[launcher]} --list"
    raise UserError(Problem("recipe", name, f"it is a recipe of {fitting}", remedy))


def shipped() -> dict[str, RecipeLine]:
    """Return every recipe of ``launchers/recipes`` and its folders by its unique name, sorted."""
    places = {}
    for path in _shipped_paths(RECIPES):
        places[path.stem] = RecipeLine(path)
        places |= {name: RecipeLine(path, name) for name in _shipped_file(path).variants}
    return dict(sorted(places.items()))


def recipes_of(launcher: str) -> list[str]:
    chains = {name: read_recipe(place, "", []) for name, place in shipped().items()}
    return sorted(
        name
        for name, each in chains.items()
        if "launcher" in each and each["launcher"].value == launcher
    )


def about(name: str) -> str:
    """Return one line on a shipped recipe: a variant's ``about``, or the first sentence of a file's first comment."""
    place = shipped()[name]
    if place.variant:
        about = _shipped_file(place.path).variants[place.variant].get("about")
        if about is None:
            return ""
        return str(about.value)
    comment = re.match(r"(?:# .*\n)*", place.path.read_text(encoding="utf-8"))
    joined = (
        " ".join(line.removeprefix("# ") for line in comment[0].splitlines()) if comment else ""
    )
    return re.split(r"(?<=[.!?]) (?=[A-Z])", joined)[0]


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
        if (
            stem in path.read_text(encoding="utf-8", errors="replace")
            and stem in _shipped_file(path).variants
        ):
            return RecipeLine(path, stem)
    return None


@functools.cache
def _shipped_paths(folder: Path) -> list[Path]:
    return sorted(path.resolve() for path in folder.rglob("*.yaml"))


@functools.cache
def _shipped_file(path: Path) -> RecipeFile:
    return read_file(path, "recipe")


def flow(text: str) -> Any:
    """Return the list or mapping that a text is in YAML; the text itself if it is none, or not readable."""
    try:
        value = _Loader(text).get_single_data()
    except Exception:  # building a value raises anything, see read_file
        return text
    if isinstance(value, list | dict):
        return value
    return text


def read_file(path: Path, field: str) -> RecipeFile:
    """Return a file's own recipe and its variants; its problems have the name ``field`` where they have no better."""
    own: Collected = {}
    variants: dict[str, Collected] = {}
    problems: list[Problem] = []
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
        if not isinstance(node, yaml.MappingNode):
            content = None
            if node is not None:
                content = loader.construct_object(node, deep=True)
            kind = "empty" if content is None else f"a {type(content).__name__}"
            problems.append(
                Problem(
                    field, str(path), f"not a mapping but {kind}", "write one 'field: value' a line"
                )
            )
            return RecipeFile({}, {}, problems)
        for name, number in loader.repeated:
            wrong = f"written twice in {path.name}, the second time in line {number}"
            problems.append(Problem(name, path.name, wrong, "keep one of the two"))
        own = loader.collected(node, path)
        table = own.pop("variants", None)
        if table is not None and not path.is_relative_to(RECIPES.resolve()):
            wrong = f"only recipes of {RECIPES} have variants ({table.where})"
            problems.append(
                Problem("variants", str(path), wrong, "write a file for each, with base: NAME")
            )
        elif table is not None and not isinstance(table.value, dict):
            remedy = "write 'name: {about: text, field: value}' for each"
            problems.append(
                Problem("variants", table.value, f"not a mapping ({table.where})", remedy)
            )
        elif table is not None:
            for key, value in next(
                inner for key, inner in node.value if key.value == "variants"
            ).value:
                if isinstance(value, yaml.MappingNode) and key.tag == "tag:yaml.org,2002:str":
                    variants[key.value] = loader.collected(value, path)
                else:
                    wrong = f"not a recipe ({path.name} line {key.start_mark.line + 1})"
                    remedy = "write a name, and its fields as a mapping"
                    problems.append(Problem("variants", key.value, wrong, remedy))
    except (OSError, UnicodeDecodeError) as error:
        problems.append(
            Problem(field, str(path), f"cannot be read ({error})", "make it a readable UTF-8 file")
        )
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        wrong = f"not readable as YAML, {f'line {mark.line + 1}' if mark else 'somewhere'}: {error.problem}"
        problems.append(
            Problem(field, str(path), wrong, "correct the YAML there; indent with spaces")
        )
    except Exception as error:
        # building a value raises anything for impossible characters, depth or tags
        reason = str(error).partition("\n")[0]
        wrong = f"not readable as YAML: characters, or a value that its own form or tag forbids ({reason})"
        remedy = "remove strange characters, write values in quotes, and brackets flat"
        problems.append(Problem(field, str(path), wrong, remedy))
    return RecipeFile(own, variants, problems)
