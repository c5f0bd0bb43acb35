"""What an exported model leaves out of the package, and why: its whole difference from the sources."""

import ast
from typing import NamedTuple

from tape_ds.export.bundle import Bundle, Cut, Name
from tape_ds.export.modules import BundleError


class Family(NamedTuple):
    """The classes of one model type, in one of the package's modules each."""

    config: Name
    base: Name
    causal_lm: Name


FAMILIES: dict[str, Family] = {
    "tape": Family(
        ("tape_ds.model.configuration", "TapeConfig"),
        ("tape_ds.model.llama", "TapeModel"),
        ("tape_ds.model.llama", "TapeForCausalLM"),
    ),
    "tape_gptj": Family(
        ("tape_ds.model.gptj_configuration", "ScaledGPTJConfig"),
        ("tape_ds.model.gptj", "ScaledGPTJModel"),
        ("tape_ds.model.gptj", "ScaledGPTJForCausalLM"),
    ),
}
"""What is exported of each model type."""
BACKENDS = ("reference", "sdpa")
"""Attention backends that need nothing but torch."""
_OPERATORS = "tape_ds.export.operators"
_ENCODING = "a model has one encoding"
_TORCH_ALONE = "the others need more than torch"
_COUNTING = "counting operations is no part of running a model"
_NO_TRITON = "Triton's kernels are not exported: the PyTorch form computes the same on every device"
_NAMESPACE = "an exported model registers its operators under names of its own"


def model_bundle(model_type: str, encoding: str) -> Bundle:
    """The model with one positional encoding, for any machine with torch and transformers.

    Args:
        model_type: one of :data:`FAMILIES`.
        encoding: a name of :func:`tape_ds.model.positions.available`.

    Raises:
        BundleError: a cut of this file no longer fits the sources.
    """
    return Bundle(FAMILIES[model_type], cuts(encoding), REPLACEMENTS)


REPLACEMENTS: dict[Name, Name] = {
    # The package's own reads a table of measurements, and asks what flash-attn, FlexAttention and Triton could do.
    ("tape_ds.model.attention.backends", "choose"): ("tape_ds.export.backends", "choose"),
}


def cuts(encoding: str) -> list[Cut]:
    """The changes of the sources for a model with this encoding."""
    return [
        _only("tape_ds.model.positions", "_OPTIONS", (encoding,), _ENCODING),
        _only("tape_ds.model.positions.registry", "_CLASSES", (encoding,), _ENCODING),
        _without("tape_ds.model.llama", "TapeForCausalLM", ("multiply_adds", "flops"), _COUNTING),
        _only("tape_ds.model.attention.names", "NEEDS_CUDA", BACKENDS, _TORCH_ALONE),
        _only("tape_ds.model.attention.backends", "_BACKENDS", BACKENDS, _TORCH_ALONE),
        _text("tape_ds.kernels.rotate", "(rotate_triton.forward if rotate_triton.fits(x) else forward)(", "forward("),
        _text(
            "tape_ds.kernels.rotate", "(rotate_triton.backward if rotate_triton.fits(grad) else backward)(", "backward("
        ),
        _text("tape_ds.kernels.position_mix", "_form(inputs).forward(", "position_mix_plain.forward("),
        _text("tape_ds.kernels.position_mix", "_form(inputs).backward(", "position_mix_plain.backward("),
        *(
            _own_operators(f"tape_ds.kernels.{name}")
            for name in ("cpu_attention", "linear_cross_entropy", "position_mix", "position_state", "rotate")
        ),
    ]


def _text(module: str, old: str, new: str) -> Cut:
    """``old``, which stands there once, becomes ``new``."""

    def apply(text: str) -> str:
        if text.count(old) != 1:
            raise BundleError(f"{module}: {old!r} stands there {text.count(old)} times, not once")
        return text.replace(old, new)

    return Cut(module, _NO_TRITON, apply)


def _own_operators(module: str) -> Cut:
    """Every operator of the module in the export's namespace."""
    old, new = '"tape_ds::', 'f"{NAMESPACE}::'

    def apply(text: str) -> str:
        if old not in text:
            raise BundleError(f"{module}: no operator has a name that begins with {old}")
        return text.replace(old, new) + f"from {_OPERATORS} import NAMESPACE\n"

    return Cut(module, _NAMESPACE, apply)


def _only(module: str, table: str, keys: tuple[str, ...], why: str) -> Cut:
    """A registry, a dict literal with an entry a line, keeps the entries of these keys."""

    def apply(text: str) -> str:
        entries = _entries(module, text, table)
        if missing := set(keys) - entries.keys():
            raise BundleError(f"{module}.{table} has no {', '.join(sorted(missing))}")
        dropped = {line for key, lines in entries.items() if key not in keys for line in lines}
        lines = text.splitlines(keepends=True)
        return "".join(line for number, line in enumerate(lines, 1) if number not in dropped)

    return Cut(module, why, apply)


def _without(module: str, name: str, methods: tuple[str, ...], why: str) -> Cut:
    """A class loses these methods."""

    def apply(text: str) -> str:
        kinds = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef) and node.name == name]
        found = [node for kind in kinds for node in kind.body if isinstance(node, ast.FunctionDef)]
        gone = [node for node in found if node.name in methods]
        if {node.name for node in gone} != set(methods):
            raise BundleError(f"{module}.{name} does not have the methods {', '.join(methods)}")
        lines = text.splitlines(keepends=True)
        for node in reversed(gone):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            last = node.end_lineno or node.lineno
            del lines[first - 1 : last + (not "".join(lines[last : last + 1]).strip())]  # and the blank line below
        return "".join(lines)

    return Cut(module, why, apply)


def _entries(module: str, text: str, table: str) -> dict[str, range]:
    """The lines of each entry of a module-level dict."""
    for node in ast.parse(text).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        named = any(isinstance(target, ast.Name) and target.id == table for target in targets)
        if named and isinstance(value := getattr(node, "value", None), ast.Dict):
            pairs = [(key, entry) for key, entry in zip(value.keys, value.values, strict=True) if key is not None]
            return {ast.literal_eval(k): range(k.lineno, (v.end_lineno or v.lineno) + 1) for k, v in pairs}
    raise BundleError(f"{module}: no registry {table}")
