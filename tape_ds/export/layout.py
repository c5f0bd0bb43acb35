"""How a bundle looks on the page: imports, headings, blank lines."""

import ast
import sys
from collections.abc import Mapping

from tape_ds.export.modules import Import, Module, Statement

WIDTH = 120


def import_lines(origins: Mapping[str, Import]) -> list[str]:
    """The standard library's imports, then the others, sorted; ``origins`` by the name each is imported under."""
    groups: dict[bool, list[str]] = {True: [], False: []}
    together: dict[str, list[str]] = {}
    for alias, origin in sorted(origins.items()):
        if origin.attribute is not None:
            written = alias if alias == origin.attribute else f"{origin.attribute} as {alias}"
            together.setdefault(origin.module, []).append(written)
        else:
            bound = origin.module if alias == origin.module.split(".")[0] else f"{origin.module} as {alias}"
            groups[_is_standard(origin.module)].append(f"import {bound}")
    for module, names in sorted(together.items()):
        groups[_is_standard(module)].append(f"from {module} import {', '.join(names)}")
    return ["", *groups[True], "", *groups[False]]


def _is_standard(module: str) -> bool:
    return module.split(".")[0] in sys.stdlib_module_names


def heading(module: Module) -> str:
    """A ruler, where the lines below come from, and the module's docstring as a comment."""
    lines = [f"from {module.path}", "", *module.docstring.splitlines()]
    return "\n\n# " + "-" * (WIDTH - 2) + "\n" + "\n".join(f"# {line}".rstrip() for line in lines) + "\n"


def blank_lines(previous: Statement | None, statement: Statement) -> int:
    """Two around functions and classes, else as in the source."""
    large = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    if previous is None:
        return 1
    if isinstance(previous.node, large) or isinstance(statement.node, large):
        return 2
    return 0 if statement.first_line == previous.last_line + 1 else 1
