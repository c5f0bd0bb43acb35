"""The code that an exported folder carries: modules of this package, copied side by side.

transformers runs files in the folder of ``config.json`` that import one another by ``from .name import ...``: no
packages, and no file that no such line names. So a module ``tape_ds.attention.sdpa`` becomes
``attention_sdpa.py``, and imports of this package are rewritten to match. Everything else is as in the
package, but for the changes listed here: one that no longer fits the sources is a :class:`CopyError`.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tape_ds
from tape_ds.encodings.registry import entry_of
from tape_ds.registration import TYPES

_ROOT = Path(tape_ds.__file__).parent
_SUBSTITUTES = "tape_ds.export.substitutes"
BACKENDS = ("reference", "sdpa")
"""Attention backends that need nothing but torch."""
REPLACED = {
    # The package's own reads a table of measurements, and asks what flash-attn, FlexAttention and Triton could do.
    "tape_ds.attention.backends": "tape_ds.export.backends",
    "tape_ds.encodings.option_types": _SUBSTITUTES,
    "tape_ds.kernels.rotate_triton": _SUBSTITUTES,
    "tape_ds.kernels.position_mix_triton": _SUBSTITUTES,
}
"""Modules in whose place others are copied."""
HEADER = """# {module} of tape_ds {version} ({commit}), its imports changed to files of this folder, without what
# needs more than torch, transformers and numpy. Modules that docstrings refer to are those of tape_ds.
#
# Licensed under the Apache License, Version 2.0; you may not use this file except in compliance with the License, which
# is at http://www.apache.org/licenses/LICENSE-2.0. Distributed on an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF
# ANY KIND, either express or implied.
"""


class CopyError(RuntimeError):
    """The package's sources are no longer of the shape that the export knows: a mistake of ours, not of a user."""


def auto_map(model_type: str) -> dict[str, str]:
    """Return where transformers' auto classes find the classes of a model of this type: ``file.Class``."""
    names = TYPES[model_type]
    classes = {
        "AutoConfig": names.config,
        "AutoModel": names.base,
        "AutoModelForCausalLM": names.causal_lm,
    }
    first = _first_files(model_type)
    places = {}
    for auto, full_name in classes.items():
        module, _, name = full_name.rpartition(".")
        places[auto] = f"{first[module]}.{name}"
    return places


def files(model_type: str, encoding: str, commit: str) -> dict[str, str]:
    """Return file name -> source of all that a model of this type with this positional encoding needs.

    Args:
        model_type, encoding: see :data:`tape_ds.registration.TYPES`, :func:`tape_ds.encodings.available`.
        commit: of the sources, for the header of each file.

    Raises:
        CopyError: the sources do not fit the changes of this module, or cannot be copied.
    """
    first = _first_files(model_type)
    written: dict[str, str] = {}
    waiting = list(first)
    while waiting:
        module = waiting.pop()
        name = f"{_file(module, first)}.py"
        if name in written:
            continue
        path = _source(module)
        text, needed = relative(
            module, changed(module, path.read_text(encoding="utf-8"), encoding), first
        )
        origin = path.relative_to(_ROOT.parent)
        written[name] = (
            HEADER.format(module=origin, version=tape_ds.__version__, commit=commit) + text
        )
        waiting += needed
    return written


def _first_files(model_type: str) -> dict[str, str]:
    """Return the modules that the configuration names, and their files, named by transformers' custom."""
    names = TYPES[model_type]
    of_config, _, _ = names.config.rpartition(".")
    of_model, _, _ = names.causal_lm.rpartition(".")
    # GPT-J's two are one module
    return {of_config: "configuration_tape", of_model: "modeling_tape"}


def _file(module: str, first: dict[str, str]) -> str:
    return first.get(module) or module.removeprefix("tape_ds.").replace(".", "_")


def _source(module: str) -> Path:
    """Return the path of a module's source, whether it exists or not."""
    folder = _ROOT.parent.joinpath(*module.split("."))
    if folder.is_dir():
        return folder / "__init__.py"
    return folder.with_suffix(".py")


def changed(module: str, text: str, encoding: str) -> str:
    """Return a module's source as it is exported with one encoding, imports not rewritten yet.

    Raises:
        CopyError: what is to be changed is not there.
    """
    before = text
    if module == "tape_ds.encodings.catalogue":
        text = _one_entry(encoding, text)
    elif module == "tape_ds.encodings.registry":
        # static imports of this encoding's classes, in place of imports by name
        entry = entry_of(encoding)
        names = {str(entry.encoding), str(entry.layer)}
        names |= {"tape_ds.encodings.abacus.AbacusEncoding", "tape_ds.encodings.base.PositionLayer"}
        body = ""
        table = []
        for named in sorted(names):
            origin, _, name = named.rpartition(".")
            body += f"    from {origin} import {name}\n"
            table.append(f'"{named}": {name}')
        body += f"\n    return {{{', '.join(table)}}}[str(named)]\n"
        text = _replaced(r"^    if not isinstance\(named, str\):.*?(?=^\S|\Z)", body, text, module)
    elif module == "tape_ds.attention":
        table = [f'"{name}": Backend()' for name in BACKENDS]
        text = _replaced(
            r"^BACKENDS = {\n.*?^}", f"BACKENDS = {{{', '.join(table)}}}", text, module
        )

    if text != before:
        # imports that nothing names any more would bring their modules along
        used = _names_in(ast.parse(text))
        lines = text.splitlines(keepends=True)
        for node in _imports(text):
            node.names = [alias for alias in node.names if (alias.asname or alias.name) in used]
            indent = lines[node.lineno - 1][: node.col_offset]
            written = f"{indent}{ast.unparse(node)}\n"
            lines[node.lineno - 1 : node.end_lineno] = [written] if node.names else []
        text = "".join(lines)
    if '"tape_ds::' in text:
        named = f"import torch\n\nfrom {_SUBSTITUTES} import NAMESPACE"
        text = _replaced(r"^import torch$", named, text, module)
        text = text.replace('"tape_ds::', 'f"{NAMESPACE}::')
    return text


def _replaced(pattern: str, new: str, text: str, module: str) -> str:
    text, count = re.subn(pattern, new.replace("\\", r"\\"), text, flags=re.MULTILINE | re.DOTALL)
    if count != 1:
        raise CopyError(f"{module}: {pattern!r} is there {count} times, not once")
    return text


def _one_entry(encoding: str, text: str) -> str:
    """Return the catalogue of encodings with this one alone: its registration, its options and their base classes."""
    tree = ast.parse(text)
    # register("tape", ...) and class TapeOptions: everything else of the module stays
    registered = {}
    classes = {}
    for node in tree.body:
        match node:
            case ast.Expr(ast.Call(args=[ast.Constant(name), *_])):
                registered[name] = node
            case ast.ClassDef(name=name):
                classes[name] = node
    if encoding not in registered:
        raise CopyError(f"the catalogue has no {encoding}")
    needed = _names_in(registered.pop(encoding))
    dropped: list[ast.Expr | ast.ClassDef] = list(registered.values())
    # bases come first
    for name in reversed(classes):
        if name not in needed:
            dropped.append(classes[name])
            continue
        for base in classes[name].bases:
            needed |= _names_in(base)
    lines = text.splitlines(keepends=True)
    # the last first, so that the numbers of the lines before stay right
    for node in sorted(dropped, key=lambda node: -node.lineno):
        # a class begins with its decorators
        decorators: list[ast.expr] = getattr(node, "decorator_list", [])
        start = min(part.lineno for part in (*decorators, node))
        del lines[start - 1 : node.end_lineno]
    return re.sub(r"\n{4,}", "\n\n\n", "".join(lines))


def _names_in(tree: ast.AST) -> set[str]:
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def _imports(text: str) -> Iterator[ast.ImportFrom]:
    """Yield imports of this package, the last first."""
    for node in sorted(ast.walk(ast.parse(text)), key=lambda node: -getattr(node, "lineno", 0)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tape_ds":
            yield node


def relative(module: str, text: str, first: dict[str, str]) -> tuple[str, list[str]]:
    """Return a source with imports of the other files of the folder, and the modules that it needs."""
    lines = text.splitlines(keepends=True)
    needed = []
    for node in _imports(text):
        written = []
        names = []
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            if not _source(whole).is_file():
                names.append(alias)
                continue
            whole = REPLACED.get(whole, whole)
            needed.append(whole)
            # transformers finds the files to copy by lines of the second form alone
            written.append(f"from . import {_file(whole, first)} as {alias.asname or alias.name}")
            written.append(f"from .{_file(whole, first)} import __name__ as _")
        if names:
            assert node.module is not None
            origin = REPLACED.get(node.module, node.module)
            needed.append(origin)
            written.append(ast.unparse(ast.ImportFrom(_file(origin, first), names, level=1)))
        indent = lines[node.lineno - 1][: node.col_offset]
        lines[node.lineno - 1 : node.end_lineno] = [f"{indent}{line}\n" for line in written]
    text = "".join(lines)
    if left := re.search(r"^\s*import tape_ds\b.*", text, flags=re.MULTILINE):
        raise CopyError(f"{module}: {left[0].strip()!r} cannot be written relative to a folder")
    return text, needed
