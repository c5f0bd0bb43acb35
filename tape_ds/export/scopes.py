"""Where a statement of a module reads or binds the module's own names, byte for byte.

What :mod:`tape_ds.export.bundle` renames and follows. Names that a function, a class body or a comprehension binds for
itself are told apart from the module's; strings in annotations are read as the annotations they are.
"""

import ast
from collections.abc import Iterable, Iterator
from typing import NamedTuple

_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
_COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


class Reference(NamedTuple):
    """One place where a name of the module stands."""

    name: str
    attribute: str | None
    """``b`` of ``name.b``."""
    start: int
    """First byte of the name in the source; in an f-string, of that whole string."""
    end: int
    """Behind the attribute, where there is one; in an f-string, behind that string."""
    in_fstring: bool
    """Python before 3.12 does not say where within an f-string a name stands."""
    hidden: frozenset[str]
    """Names that mean something local here."""


class _Scope(NamedTuple):
    names: frozenset[str]
    is_class: bool


class Lines:
    """Byte offsets of a source's lines."""

    def __init__(self, source: str):
        self.starts = [0]
        for line in source.encode().splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))

    def at(self, line: int, column: int) -> int:
        """Offset of a place as ``ast`` gives it: lines from 1, columns in bytes from 0."""
        return self.starts[line - 1] + column

    def span(self, node: ast.expr) -> tuple[int, int]:
        """First byte of an expression and the one behind it."""
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self.at(node.lineno, node.col_offset), self.at(node.end_lineno, node.end_col_offset)


def references(statement: ast.stmt, lines: Lines) -> list[Reference]:
    """Every place in a module-level statement that names something of its module (or a builtin)."""
    finder = _Finder(lines)
    finder.visit(statement)
    return finder.found


def bound_names(statements: Iterable[ast.AST]) -> frozenset[str]:
    """Names that these statements bind in their own scope."""
    names: set[str] = set()
    outer: set[str] = set()
    for node in _same_scope(statements):
        if isinstance(node, ast.Name) and isinstance(node.ctx, (ast.Store, ast.Del)):
            names.add(node.id)
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            names.add(node.name)
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            names |= {alias.asname or alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
            names.add(node.name)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            outer |= set(node.names)
    return frozenset(names - outer)


def _same_scope(nodes: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The nodes and what is within them, but for the bodies of inner scopes."""
    for node in nodes:
        yield node
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef, *_COMPREHENSIONS)):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.NamedExpr))
        else:
            yield from _same_scope(ast.iter_child_nodes(node))


class _Finder(ast.NodeVisitor):
    def __init__(self, lines: Lines):
        self.lines = lines
        self.scopes: list[_Scope] = []
        self.found: list[Reference] = []
        self.fstring: tuple[int, int] | None = None
        self.in_annotation = False

    def _add(self, name: str, attribute: str | None, start: int, end: int) -> None:
        innermost = len(self.scopes) - 1
        visible = [s.names for i, s in enumerate(self.scopes) if not s.is_class or i == innermost]
        hidden = frozenset().union(*visible)
        if name in hidden:
            return
        start, end = self.fstring or (start, end)
        self.found.append(Reference(name, attribute, start, end, self.fstring is not None, hidden))

    def visit_Name(self, node: ast.Name) -> None:
        self._add(node.id, None, *self.lines.span(node))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if isinstance(node.value, ast.Name):
            self._add(node.value.id, node.attr, *self.lines.span(node))
        else:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        outer, self.fstring = self.fstring, self.fstring or self.lines.span(node)
        self.generic_visit(node)
        self.fstring = outer

    def visit_Constant(self, node: ast.Constant) -> None:
        if not self.in_annotation or not isinstance(node.value, str):
            return
        inner = _Finder(Lines(node.value))
        inner.scopes = self.scopes
        inner.visit(ast.parse(node.value, mode="eval"))
        first = self.lines.span(node)[0] + 1  # behind the quotation mark
        self.found += [each._replace(start=first + each.start, end=first + each.end) for each in inner.found]

    def visit_Subscript(self, node: ast.Subscript) -> None:
        self.visit(node.value)
        in_annotation = self.in_annotation
        self.in_annotation &= not (isinstance(node.value, ast.Name) and node.value.id == "Literal")
        self.visit(node.slice)
        self.in_annotation = in_annotation

    def _annotation(self, node: ast.expr | None) -> None:
        if node is not None:
            self.in_annotation = True
            self.visit(node)
            self.in_annotation = False

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        self._annotation(node.annotation)
        if node.value is not None:
            self.visit(node.value)

    def visit_arg(self, node: ast.arg) -> None:
        self._annotation(node.annotation)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        for each in node.decorator_list:
            self.visit(each)
        self._definition_name(node, "async def" if isinstance(node, ast.AsyncFunctionDef) else "def")
        self.visit(node.args)  # defaults and annotations belong to the scope around
        self._annotation(node.returns)
        self._inside(node.body, _parameters(node.args))

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self.visit(node.args)
        self._inside([node.body], _parameters(node.args))

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for each in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(each)
        self._definition_name(node, "class")
        self._inside(node.body, frozenset(), is_class=True)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)  # read in the scope around
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        targets = bound_names([each.target for each in node.generators])
        later = [part for each in node.generators for part in (*each.ifs, each.target)]
        self._inside([*results, *later, *(each.iter for each in node.generators[1:])], targets)

    visit_ListComp = visit_SetComp = visit_DictComp = visit_GeneratorExp = _comprehension

    def _inside(self, body: Iterable[ast.AST], names: frozenset[str], is_class: bool = False) -> None:
        body = list(body)
        self.scopes.append(_Scope(names | bound_names(body), is_class))
        for each in body:
            self.visit(each)
        self.scopes.pop()

    def _definition_name(self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, keyword: str) -> None:
        if not self.scopes and node.name != "_":
            start = self.lines.at(node.lineno, node.col_offset) + len(keyword) + 1
            self._add(node.name, None, start, start + len(node.name.encode()))


def _parameters(arguments: ast.arguments) -> frozenset[str]:
    extra = [each for each in (arguments.vararg, arguments.kwarg) if each is not None]
    return frozenset(each.arg for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, *extra))
