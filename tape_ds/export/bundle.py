"""One self-contained module out of the package's own sources.

From a few roots, every name that is needed is followed through the imports of the package; the statements that bind
them are copied as they stand, comments and docstrings included, in the order in which Python would have run them. Names
that clash get their module's name in front; only those places of the text are edited. Nothing is guessed: what the
bundler does not understand is a :class:`~tape_ds.export.modules.BundleError`.
"""

import builtins
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import NamedTuple

from tape_ds.export.layout import blank_lines, heading, import_lines
from tape_ds.export.modules import BundleError, Import, Module, Statement, in_fstring, module_file, parsed
from tape_ds.export.scopes import Reference

Name = tuple[str, str]
"""(module, name in it)."""
_EVERYWHERE = {*dir(builtins), "__name__", "__file__"}


class Cut(NamedTuple):
    """A place where the export departs from the package. One that no longer applies is an error."""

    module: str
    why: str
    apply: Callable[[str], str]
    """The module's source -> the source that is exported.

    Raises:
        BundleError: what was to be changed is not there.
    """


class _Reached(NamedTuple):
    """What a reference leads to."""

    statement: Statement | None
    """In the package; None: imported from outside."""
    origin: Import | None
    """Outside the package."""
    name: str
    """As the module that binds it calls it."""

    @property
    def key(self) -> Name:
        """The same however it was reached."""
        if self.statement is not None:
            return self.statement.module.name, self.name
        assert self.origin is not None
        return self.origin.module, self.origin.attribute or ""


class Bundle:
    """The statements that some roots need.

    Args:
        roots: (module, name) of what the module is for.
        cuts: changes of the sources, before anything is followed.
        replacements: names that are taken from somewhere else than where the package has them.

    Raises:
        BundleError: a root, a cut or a replacement has nothing to apply to, or a source is of a shape not known here.
    """

    def __init__(
        self, roots: Iterable[Name], cuts: Iterable[Cut] = (), replacements: Mapping[Name, Name] | None = None
    ):
        self._cuts = list(cuts)
        self._replacements = dict(replacements or {})
        self._modules: dict[str, Module] = {}
        self._reached: dict[Statement, dict[Reference, _Reached]] = {}
        for cut in self._cuts:
            self._module(cut.module)
        for module, name in self._replacements:
            if name not in self._module(module).by_name:
                raise BundleError(f"{module}.{name} is to be replaced, and is not there")
        waiting = [self._resolve(self._module(module), name) for module, name in roots]
        while waiting:
            statement = waiting.pop().statement
            if statement is None or statement in self._reached:
                continue
            self._reached[statement] = self._follow(statement)
            waiting += self._reached[statement].values()
            waiting += [_Reached(each, None, "") for each in _attached(statement)]
        self._order = self._ordered([module for module, _ in roots])
        self._names = self._flat_names()

    # What is needed

    def _module(self, name: str) -> Module:
        if name not in self._modules:
            text = module_file(name).read_text(encoding="utf-8")
            for cut in self._cuts:
                if cut.module == name:
                    text = cut.apply(text)
            self._modules[name] = parsed(name, text)
        return self._modules[name]

    def _resolve(self, module: Module, name: str) -> _Reached:
        """The statement (or the outside import) behind a name of a module, through however many re-exports."""
        if (module.name, name) in self._replacements:
            other, name = self._replacements[module.name, name]
            module = self._module(other)
        if name in module.by_name:
            return _Reached(module.by_name[name], None, name)
        imported = module.imports.get(name)
        if imported is None:
            raise BundleError(f"{module.name} has no {name!r}")
        if not imported.own:
            return _Reached(None, imported, name)
        if imported.attribute is None:
            raise BundleError(f"{module.name} uses the module {name!r} as a value")
        return self._resolve(self._module(imported.module), imported.attribute)

    def _follow(self, statement: Statement) -> dict[Reference, _Reached]:
        """What each reference of a statement leads to; builtins left out."""
        module, found = statement.module, {}
        for reference in statement.references:
            name, imported = reference.name, module.imports.get(reference.name)
            if imported is not None and imported.own and imported.attribute is None and reference.attribute:
                found[reference] = self._resolve(self._module(imported.module), reference.attribute)
            elif name in module.by_name or imported is not None:
                # only the name itself stands for something else, not the attribute behind it
                found[reference] = self._resolve(module, name)
            elif name not in _EVERYWHERE:
                raise BundleError(f"{module.name}, line {statement.first_line}: unknown name {name!r}")
        return found

    # In which order

    def _ordered(self, roots: Iterable[str]) -> list[Module]:
        """Modules so that each comes behind those that it needs while it is being run."""
        order: list[Module] = []
        seen: set[str] = set()

        def visit(module: Module) -> None:
            if module.name in seen:
                return
            seen.add(module.name)
            for statement, reached in self._reached.items():
                if statement.module is not module:
                    continue
                for reference, target in reached.items():
                    imported = module.imports.get(reference.name)
                    if target.statement is not None and not (imported is not None and imported.type_only):
                        visit(target.statement.module)
            order.append(module)

        for name in [*roots, *(statement.module.name for statement in self._reached)]:
            visit(self._module(name))
        return [module for module in order if any(statement.module is module for statement in self._reached)]

    def _statements_of(self, module: Module) -> list[Statement]:
        return [statement for statement in module.statements if statement in self._reached]

    # What it is called

    def _flat_names(self) -> dict[Name, str]:
        """What each name of the package is called in the bundle: itself, or with its module's name in front."""
        keys = [(s.module.name, name) for s in self._reached for name in s.names]
        outside = {target.name for _, target in self._edges() if target.statement is None}
        hidden = {t.key for reference, t in self._edges() if t.statement and t.name in reference.hidden}
        claimed = Counter(name for _, name in keys)
        names = {
            key: _prefixed(key) if claimed[key[1]] > 1 or key[1] in outside or key in hidden else key[1] for key in keys
        }
        given = Counter(names.values())
        twice = {name for name, times in given.items() if times > 1 or name in outside}
        for reference, target in self._edges():
            if target.statement is not None and names[target.key] in reference.hidden:
                twice.add(names[target.key])
        if twice:
            raise BundleError(f"names that would mean two things: {', '.join(sorted(twice))}")
        return names

    def _edges(self) -> Iterator[tuple[Reference, _Reached]]:
        for reached in self._reached.values():
            yield from reached.items()

    def name_of(self, module: str, name: str) -> str:
        """What a name that was reached is called in the bundle."""
        return self._names[module, name]

    # As text

    def text(self, docstring: str) -> str:
        """The module's source.

        Raises:
            BundleError: it would not run: a name is missing, or the text is no Python.
        """
        parts = [f'"""{docstring.strip()}\n"""\n', "from __future__ import annotations\n", *self._imports()]
        for module in self._order:
            parts.append(heading(module))
            previous: Statement | None = None
            for statement in self._statements_of(module):
                parts.append("\n" * blank_lines(previous, statement) + self._edited(statement))
                previous = statement
        text = "\n".join(part.rstrip("\n") for part in parts) + "\n"
        _verify(text)
        return text

    def _imports(self) -> list[str]:
        """Outside imports."""
        origins: dict[str, Import] = {}
        for _, target in self._edges():
            if target.origin is None:
                continue
            origin = target.origin._replace(type_only=False)
            if origins.setdefault(target.name, origin) != origin:
                raise BundleError(f"{target.name!r} is imported from {origin.module} and elsewhere")
        return import_lines(origins)

    def _edited(self, statement: Statement) -> str:
        """A statement's lines with its references under their names in the bundle."""
        module = statement.module
        source = module.text.encode()
        start, end = module.source_of(statement)
        pieces: dict[tuple[int, int], bytes] = {}
        for reference, target in self._reached[statement].items():
            if target.statement is None:
                continue
            is_attribute = self._stands_for_module(module, reference)
            attribute = reference.attribute if is_attribute else None
            new = self._names[target.key]
            if attribute is None and new == reference.name:
                continue
            at = (reference.start, reference.end)
            if not is_attribute and reference.attribute is not None and not reference.in_fstring:
                at = (reference.start, reference.start + len(reference.name.encode()))
            old = pieces.get(at, source[slice(*at)]).decode()
            edited = in_fstring(old, reference.name, attribute, new) if reference.in_fstring else new
            pieces[at] = edited.encode()
        for (first, last), new_bytes in sorted(pieces.items(), reverse=True):
            source = source[:first] + new_bytes + source[last:]
            end += len(new_bytes) - (last - first)
        return source[start:end].decode()

    @staticmethod
    def _stands_for_module(module: Module, reference: Reference) -> bool:
        imported = module.imports.get(reference.name)
        return imported is not None and imported.own and imported.attribute is None


def _attached(statement: Statement) -> list[Statement]:
    """Statements that bind nothing and do something to what this one binds."""
    names = set(statement.names)
    return [each for each in statement.module.statements if not each.names and each.anchor in names]


def _prefixed(key: Name) -> str:
    module, name = key
    last = module.rpartition(".")[2].lstrip("_")
    return f"_{last}{name}" if name.startswith("_") else f"{last}_{name}"


def _verify(text: str) -> None:
    """Every name that the text reads is one that it binds."""
    try:
        module = parsed("bundle", text)
    except SyntaxError as error:
        raise BundleError(f"the bundle is no Python: {error}") from error
    known = {*module.by_name, *module.imports, *_EVERYWHERE}
    read = [reference for statement in module.statements for reference in statement.references]
    unknown = sorted({reference.name for reference in read} - known)
    if unknown:
        raise BundleError(f"the bundle reads names that it does not bind: {', '.join(unknown)}")
