"""The code that an exported folder carries: modules of this package, copied side by side.

transformers runs files in the folder of ``config.json`` that import one another by ``from .name import ...``: no
packages, and no file that no such line names. So a module ``tape_ds.attention.sdpa`` becomes
``attention_sdpa.py``, and imports of this package are rewritten to match. Everything else is as in the
package, but for the changes listed here: one that no longer fits the sources is a :class:`CopyError`.
"""

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import tape_ds
from tape_ds.encodings.registry import entry_of
from tape_ds.registration import TYPES

_ROOT = Path(tape_ds.__file__).parent
_PACKAGE = "tape_ds"
_OPERATORS = "tape_ds.export.operators"
BACKENDS = ("reference", "sdpa")
"""Attention backends that need nothing but torch."""
REPLACED = {
    # The package's own reads a table of measurements, and asks what flash-attn, FlexAttention and Triton could do.
    "tape_ds.attention.backends": "tape_ds.export.backends",
    "tape_ds.encodings.option_types": "tape_ds.export.no_option_types",
    "tape_ds.kernels.rotate_triton": "tape_ds.export.no_triton",
    "tape_ds.kernels.position_mix_triton": "tape_ds.export.no_triton",
}
"""Modules in whose place others are copied."""


class CopyError(RuntimeError):
    """The package's sources are no longer of the shape that the export knows: a mistake of ours, not of a user."""


def auto_map(model_type: str) -> dict[str, str]:
    """Return where transformers' auto classes find the classes of a model of this type: ``file.Class``."""
    names = TYPES[model_type]
    classes = {"AutoConfig": names.config, "AutoModel": names.base, "AutoModelForCausalLM": names.causal_lm}
    files = _first_files(model_type)
    return {auto: f"{files[tape_ds.HOMES[name]]}.{name}" for auto, name in classes.items()}


def files(model_type: str, encoding: str, header: str) -> dict[str, str]:
    """File name -> source of all that a model of this type with this positional encoding needs.

    Args:
        model_type, encoding: see :data:`tape_ds.registration.TYPES`, :func:`tape_ds.encodings.available`.
        header: comment lines above each file; ``{module}`` is replaced by the file's origin.

    Raises:
        CopyError: the sources do not fit the changes of this module, or cannot be copied.
    """
    first = _first_files(model_type)
    written: dict[str, str] = {}
    waiting = list(first)
    while waiting:
        module = waiting.pop()
        name = first.get(module) or _flat(module)
        if f"{name}.py" in written:
            continue
        text, needed = _relative(module, changed(module, _source(module).read_text(encoding="utf-8"), encoding), first)
        written[f"{name}.py"] = header.format(module=_source(module).relative_to(_ROOT.parent)) + text
        waiting += needed
    return written


def _first_files(model_type: str) -> dict[str, str]:
    """Return the modules that the configuration names, and their files, named by transformers' custom."""
    names = TYPES[model_type]
    # GPT-J's two are one module
    return {tape_ds.HOMES[names.config]: "configuration_tape", tape_ds.HOMES[names.causal_lm]: "modeling_tape"}


def _flat(module: str) -> str:
    return module.removeprefix(f"{_PACKAGE}.").replace(".", "_")


def _source(module: str) -> Path:
    """Return the path of a module's source, whether it exists or not."""
    folder = _ROOT.parent.joinpath(*module.split("."))
    return folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")


# What is changed


def changed(module: str, text: str, encoding: str) -> str:
    """Return a module's source as it is exported with one encoding, imports not rewritten yet.

    Raises:
        CopyError: what is to be changed is not there.
    """
    change = _changes(encoding).get(module)
    if change is not None:
        text = _without_unused_imports(change(text))
    if f'"{_PACKAGE}::' in text:
        # torch has one operator of a name in a process: under the package's names, an export would take its operators.
        text = _once(r"^import torch$", f"import torch\n\nfrom {_OPERATORS} import NAMESPACE", text, module)
        text = text.replace(f'"{_PACKAGE}::', 'f"{NAMESPACE}::')
    return text


def _changes(encoding: str) -> dict[str, Callable[[str], str]]:
    """Return what is left out of a module, whose name comes first."""
    return {
        # A model has one encoding.
        "tape_ds.encodings.catalogue": lambda text: _one_entry(encoding, text),
        "tape_ds.encodings.registry": lambda text: _static_imports(encoding, text),
        # The others need more than torch.
        "tape_ds.attention.names": lambda text: _only("NEEDS_CUDA", BACKENDS, text),
    }


def _once(pattern: str, new: str, text: str, where: str) -> str:
    text, found = re.subn(pattern, new, text, flags=re.MULTILINE | re.DOTALL)
    if found != 1:
        raise CopyError(f"{where}: {pattern!r} is there {found} times, not once")
    return text


def _only(table: str, keys: tuple[str, ...], text: str) -> str:
    """Return a registry, a dict literal with an entry a line, keeps the entries of these keys."""
    found = re.search(rf"^{table}\b[^\n]*{{\n(.*?)^}}", text, flags=re.MULTILINE | re.DOTALL)
    if found is None:
        raise CopyError(f"no registry {table}")
    entries = {line.split('"')[1]: line for line in found[1].splitlines(keepends=True)}
    if missing := set(keys) - entries.keys():
        raise CopyError(f"{table} has no {', '.join(sorted(missing))}")
    return text[: found.start(1)] + "".join(entries[key] for key in keys) + text[found.end(1) :]


def _one_entry(encoding: str, text: str) -> str:
    """Return the catalogue of encodings with this one alone: its registration, its options and their base classes."""
    tree = ast.parse(text)
    registered = {
        node.value.args[0].value: node
        for node in tree.body
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.args[0], ast.Constant)
    }
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if encoding not in registered:
        raise CopyError(f"the catalogue has no {encoding}")
    needed = {node.id for node in ast.walk(registered.pop(encoding)) if isinstance(node, ast.Name)}
    for name in reversed(classes):  # bases come first
        if name in needed:
            needed |= {base.id for base in classes[name].bases if isinstance(base, ast.Name)}
    dropped = [*registered.values(), *(node for name, node in classes.items() if name not in needed)]
    lines = text.splitlines(keepends=True)
    for node in sorted(dropped, key=lambda node: -node.lineno):
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        del lines[first - 1 : node.end_lineno]
    return re.sub(r"\n{4,}", "\n\n\n", "".join(lines))


def _static_imports(encoding: str, text: str) -> str:
    """Return the registry with imports of this encoding's classes in place of imports by name."""
    entry = entry_of(encoding)
    names = {
        entry.encoding,
        entry.layer,
        f"{_PACKAGE}.encodings.abacus.AbacusEncoding",
        f"{_PACKAGE}.encodings.base.PositionLayer",
    }
    lines, table = [], []
    for named in sorted(map(str, names)):
        module, _, name = named.rpartition(".")
        lines.append(f"    from {module} import {name}\n")
        table.append(f'"{named}": {name}')
    body = "".join(lines) + f"\n    return {{{', '.join(table)}}}[str(named)]\n"
    return _once(r"^    if not isinstance\(named, str\):.*?(?=^\S|\Z)", body.replace("\\", r"\\"), text, "registry")


def _without_unused_imports(text: str) -> str:
    """Return a source without those imports of this package that nothing in it names any more."""
    used = {node.id for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Name)}
    lines = text.splitlines(keepends=True)
    for node in _imports(text):
        kept = [alias for alias in node.names if (alias.asname or alias.name) in used]
        written = _spelt(f"from {node.module} import", kept) if kept else ""
        lines[node.lineno - 1 : node.end_lineno] = [" " * node.col_offset + written] if written else []
    return "".join(lines)


# How imports are rewritten


def _imports(text: str) -> Iterator[ast.ImportFrom]:
    """Imports of this package, the last first."""
    for node in sorted(ast.walk(ast.parse(text)), key=lambda node: -getattr(node, "lineno", 0)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == _PACKAGE:
            yield node


def _relative(module: str, text: str, first: dict[str, str]) -> tuple[str, list[str]]:
    """Return a source with imports of the other files of the folder, and the modules that it needs."""
    lines, needed = text.splitlines(keepends=True), []
    for node in _imports(text):
        written, names = "", []
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if not _source(whole).is_file():
                names.append(alias)
                continue
            whole = REPLACED.get(whole, whole)
            file = first.get(whole) or _flat(whole)
            needed.append(whole)
            # transformers finds the files to copy by lines of the second form alone
            written += f"from . import {file} as {alias.asname or alias.name}\nfrom .{file} import __name__ as _\n"
        if names:
            assert node.module is not None
            origin = REPLACED.get(node.module, node.module)
            needed.append(origin)
            written += _spelt(f"from .{first.get(origin) or _flat(origin)} import", names)
        indented = [" " * node.col_offset + line for line in written.splitlines(keepends=True)]
        lines[node.lineno - 1 : node.end_lineno] = indented
    text = "".join(lines)
    if left := re.search(rf"^\s*import {_PACKAGE}\b.*", text, flags=re.MULTILINE):
        raise CopyError(f"{module}: {left[0].strip()!r} cannot be written relative to a folder")
    return text, needed


def _spelt(start: str, names: list[ast.alias]) -> str:
    """Return an import statement."""
    words = [each.name + (f" as {each.asname}" if each.asname else "") for each in names]
    line = f"{start} {', '.join(words)}\n"
    return line if len(line) <= 121 else f"{start} (\n    " + ",\n    ".join(words) + ",\n)\n"
