"""A module's source taken apart: its docstring, its imports, and its top-level statements with their comments."""

import ast
import functools
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import tape_ds
from tape_ds.export.scopes import Lines, Reference, bound_names, references

PACKAGE = "tape_ds"
ROOT = Path(tape_ds.__file__).parent


class BundleError(RuntimeError):
    """The package's sources are no longer of the shape that the export knows: a mistake of ours, not of a user."""


class Import(NamedTuple):
    """What an imported name stands for."""

    module: str
    attribute: str | None
    """None: the module itself."""
    type_only: bool
    """Imported under ``TYPE_CHECKING``."""

    @property
    def own(self) -> bool:
        """Whether it comes from this package."""
        return self.module.split(".")[0] == PACKAGE


@dataclass(frozen=True, eq=False)
class Statement:
    """One top-level statement of a module."""

    module: "Module"
    node: ast.stmt
    names: tuple[str, ...]
    """What it binds."""
    anchor: str | None
    """For one that binds nothing (a call, a function named ``_``): the name that it does something to."""
    first_line: int
    """Of the comment above it, if there is one."""
    last_line: int
    """Of the string below that documents it, if there is one."""

    @functools.cached_property
    def references(self) -> list[Reference]:
        """Where it names something of its module."""
        return references(self.node, self.module.lines)


@dataclass(eq=False)
class Module:
    """A parsed module."""

    name: str
    text: str
    docstring: str = ""
    imports: dict[str, Import] = field(default_factory=dict)
    statements: list[Statement] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.lines = Lines(self.text)
        tree = ast.parse(self.text)
        self.docstring = ast.get_docstring(tree) or ""
        for position, node in enumerate(tree.body):
            self._take(node, is_docstring=position == 0 and bool(self.docstring))

    @property
    def path(self) -> str:
        """Relative to the folder that holds the package."""
        return str(module_file(self.name).relative_to(ROOT.parent))

    @functools.cached_property
    def by_name(self) -> dict[str, Statement]:
        """The statement that binds each name."""
        return {name: statement for statement in self.statements for name in statement.names}

    def _take(self, node: ast.stmt, is_docstring: bool) -> None:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            self._take_import(node, type_only=False)
        elif isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            for inner in node.body:
                assert isinstance(inner, (ast.Import, ast.ImportFrom)), f"{self.name}: only imports for types"
                self._take_import(inner, type_only=True)
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if not is_docstring and self.statements:  # what the statement above it means
                self.statements[-1] = _until(self.statements[-1], node.end_lineno or node.lineno)
        else:
            self.statements.append(self._statement(node))

    def _take_import(self, node: ast.Import | ast.ImportFrom, type_only: bool) -> None:
        for alias in node.names:
            if isinstance(node, ast.Import):
                self.imports[alias.asname or alias.name.split(".")[0]] = Import(alias.name, None, type_only)
                continue
            if node.level or node.module is None:
                raise BundleError(f"{self.name}: a relative import")
            whole = f"{node.module}.{alias.name}"
            is_module = whole.split(".")[0] == PACKAGE and module_file(whole).is_file()
            found = Import(whole, None, type_only) if is_module else Import(node.module, alias.name, type_only)
            self.imports[alias.asname or alias.name] = found

    def _statement(self, node: ast.stmt) -> Statement:
        decorators = getattr(node, "decorator_list", [])
        names = tuple(sorted(bound_names([node])))
        anchor = None
        if names == ("_",):
            names, anchor = (), _root(decorators[0]) if decorators else None
        elif isinstance(node, ast.Expr):
            anchor = _root(node.value)
        first = decorators[0].lineno if decorators else node.lineno
        lines = self.text.split("\n")
        while first > 1 and lines[first - 2].startswith("#"):
            first -= 1
        return Statement(self, node, names, anchor, first, node.end_lineno or node.lineno)

    def source_of(self, statement: Statement) -> tuple[int, int]:
        """Bytes of a statement's whole lines, comments and documentation included."""
        return self.lines.starts[statement.first_line - 1], self.lines.starts[statement.last_line]


def parsed(name: str, text: str) -> Module:
    """A module taken apart, once for each text."""
    return _parsed(name, text, ROOT)


@functools.cache
def _parsed(name: str, text: str, root: Path) -> Module:
    """``root`` decides which imports are modules."""
    return Module(name, text)


def _until(statement: Statement, line: int) -> Statement:
    return Statement(
        statement.module, statement.node, statement.names, statement.anchor, statement.first_line, last_line=line
    )


def _root(node: ast.expr) -> str | None:
    """``a`` of ``a.b.c(...)``."""
    while isinstance(node, (ast.Attribute, ast.Call)):
        node = node.value if isinstance(node, ast.Attribute) else node.func
    return node.id if isinstance(node, ast.Name) else None


def module_file(name: str) -> Path:
    """Where the source of one of the package's modules lies, or would."""
    folder = ROOT.parent.joinpath(*name.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


def in_fstring(text: str, name: str, attribute: str | None, new: str) -> str:
    """The source ``text`` of an f-string with ``name`` (or ``name.attribute``) replaced between its braces."""
    old = name if attribute is None else f"{name}.{attribute}"
    pattern = re.compile(rf"(?<![\w.]){re.escape(old)}(?!\w)")
    return re.sub(r"\{[^{}]*\}", lambda braces: pattern.sub(new, braces.group()), text)
