"""Where a recipe's values come from: YAML files that build on one another, then the command line.

Nothing is interpreted here beyond YAML itself: the result is, for every name that was written, the value and the place
where it was written, so that later checks can point there.
"""

import itertools
import re
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tape_ds.errors import Problem, UserError, did_you_mean
from tape_ds.installation import ROOT
from tape_ds.training.recipe import paths

LAUNCHERS = ROOT / "launchers"
RECIPES = LAUNCHERS / "recipes"
LARGEST = 100_000
"""Values that a recipe may hold."""


@dataclass
class Given:
    """One value as somebody wrote it."""

    value: Any
    where: str
    """For messages: ``demo.yaml line 3`` or ``command line``."""


Collected = dict[str, Given]


class _Loader(yaml.SafeLoader):
    """``SafeLoader`` that remembers every key written twice, which YAML would silently let win, and reads 1e-4 as the
    number that it is, which YAML 1.1 takes for a text."""

    def __init__(self, stream: str):
        super().__init__(stream)
        self.repeated: list[tuple[str, int]] = []

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """The mapping, noting keys that stand in it twice."""
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
    """Everything that the recipe ``name`` (anywhere in ``launchers/recipes``, or a path) says, its bases included.

    A file's values replace those of its base whole; a mapping is not merged into the base's mapping, whose keys might
    not fit the new ones. Where there is no such recipe, those of ``launcher`` are suggested.
    """
    return _read_chain(name, RECIPES, "recipe", (), problems, launcher)


def require_launcher(name: str, collected: Collected, launcher: str) -> None:
    """Take ``launcher`` out of what the recipe ``name`` says. A recipe that does not say it fits any launcher.

    Raises:
        UserError: it is a recipe of another launcher; its fields would all read as unknown ones.
    """
    said = collected.pop("launcher", None)
    if said is None or said.value == launcher:
        return
    known = sorted(file.stem for file in LAUNCHERS.glob("*.py") if file.stem != "keep_alive")
    if said.value not in known:
        raise UserError(
            Problem("launcher", said.value, f"no such launcher ({said.where})", f"one of: {', '.join(known)}")
        )
    own = ", ".join(recipes_of(launcher))
    remedy = f"start launchers/{said.value}.py with it, or choose a recipe of {launcher}.py: {own}"
    raise UserError(Problem("recipe", name, f"it is a recipe of {said.value}.py", remedy))


def shipped() -> dict[str, Path]:
    """Every recipe of ``launchers/recipes`` and its folders by its name, which no other folder has."""
    return {path.stem: path for path in sorted(RECIPES.rglob("*.yaml"))}


def recipes_of(launcher: str) -> list[str]:
    """Names of the shipped recipes for a launcher."""
    chains = {name: _read_chain(name, RECIPES, "recipe", (), [], "") for name in shipped()}
    return sorted(name for name, said in chains.items() if "launcher" in said and said["launcher"].value == launcher)


def about(name: str) -> str:
    """What a shipped recipe is, in one line: the first sentence of the comment that it begins with."""
    lines = shipped()[name].read_text(encoding="utf-8").splitlines()
    comment = itertools.takewhile(lambda line: line.startswith("#"), lines)
    return " ".join(line.lstrip("# ") for line in comment).split(". ")[0].rstrip(".") + "."


def _read_chain(
    name: str, folder: Path, field: str, above: tuple[Path, ...], problems: list[Problem], launcher: str
) -> Collected:
    path = find(name, folder)
    if path is None:
        known = recipes_of(launcher) if launcher else []
        remedy = f"{did_you_mean(name, known)} (in {RECIPES}), or give the path of a .yaml file"
        problems.append(Problem(field, name, "no such recipe", remedy))
        return {}
    if path in above:
        loop = " -> ".join(file.name for file in (*above[above.index(path) :], path))
        problems.append(Problem("base", name, f"recipes build on each other in a circle: {loop}", "break the circle"))
        return {}
    found = read_yaml(path, field, problems)
    if "base" not in found:
        return found
    base = found.pop("base")
    if not isinstance(base.value, str):
        problems.append(Problem("base", base.value, f"not the name of a recipe ({base.where})", "give one name"))
        return found
    return _read_chain(base.value, path.parent, "base", (*above, path), problems, launcher) | found


def find(name: str, folder: Path) -> Path | None:
    """The file that ``name`` means: a path as it is, or a recipe of ``folder`` or of the shipped ones."""
    if not name:
        return None
    if name.endswith((".yaml", ".yml")):
        candidates = [paths.of(name), folder / name]
    else:
        candidates = [folder / f"{name}.yaml", shipped().get(name, RECIPES / f"{name}.yaml")]
    return next((path.resolve() for path in candidates if paths.is_file(path)), None)


def read_yaml(path: Path, field: str, problems: list[Problem]) -> Collected:
    """The top level of one file, each value with its line."""

    def refuse(wrong: str, remedy: str) -> Collected:
        problems.append(Problem(field, str(path), wrong, remedy))
        return {}

    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        return refuse(f"cannot be read ({error})", "make it a readable UTF-8 file")
    loader = None
    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        content = loader.construct_document(node) if node is not None else None
        if not _is_small(content):
            return refuse(f"it stands for more than {LARGEST:,} values", "write it without aliases (& and *)")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}" if mark else "somewhere"
        tab = "\t" in text.splitlines()[mark.line] if mark and mark.line < len(text.splitlines()) else False
        hint = "indent with spaces: YAML forbids tabs" if tab else "mend the YAML there"
        return refuse(f"not readable as YAML, {line}: {error.problem}", hint)
    except yaml.YAMLError as error:  # characters that YAML does not allow at all
        return refuse(f"not readable as YAML: {str(error).splitlines()[0]}", "remove the strange character")
    except RecursionError:
        return refuse("not readable as YAML: its brackets lie too deep in one another", "write it flat")
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:  # a tag that does not fit
        return refuse(f"not readable as YAML: a value that its own form or tag forbids ({error})", "write it in quotes")
    finally:
        if loader is not None:
            loader.dispose()
    for name, number in loader.repeated:
        wrong = f"written twice in {path.name}, the second time in line {number}"
        problems.append(Problem(name, path.name, wrong, "keep one of the two"))
    if not isinstance(content, dict):
        kind = "empty" if content is None else f"a {type(content).__name__}"
        return refuse(f"not a mapping but {kind}", "write one 'field: value' a line")
    assert isinstance(node, yaml.MappingNode)
    lines = {key.value: key.start_mark.line + 1 for key, _ in node.value if isinstance(key, yaml.ScalarNode)}
    return {
        str(name): Given(value, f"{path.name} line {lines[str(name)]}" if str(name) in lines else path.name)
        for name, value in content.items()
    }


def _is_small(content: Any) -> bool:
    """Whether a document stands for no more than :data:`LARGEST` values once its aliases are followed. A few lines of
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
