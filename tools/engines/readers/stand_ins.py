"""Empty modules in place of what an engine imports and does not need to read a config.json: kernels, servers, parsers.

No stand-in computes anything: one that is used as a decorator leaves its function as it is, any other call gives
another stand-in.
"""

import importlib.abc
import importlib.machinery
import sys
import types
from collections.abc import Iterable, MutableSequence
from typing import Any

import torch
from transformers.utils import import_utils


class _Kind(type):
    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _new(f"{cls.__name__}.{name}")

    def __call__(cls, *given: Any, **named: Any) -> Any:
        if cls.__dict__.get("stands_in"):
            as_decorator = (
                len(given) == 1 and not named and isinstance(given[0], types.FunctionType | type)
            )
            if as_decorator:
                return given[0]
            return _new(f"{cls.__name__}()")
        # a class of the engine, with a stand-in among its bases
        return super().__call__(*given, **named)

    def __getitem__(cls, name: Any) -> Any:
        return cls

    def __iter__(cls) -> Any:
        return iter(())


def _new(name: str) -> Any:
    # for a field of a pydantic model
    any_value = staticmethod(lambda source, handler: {"type": "any"})
    return _Kind(name, (), {"stands_in": True, "__get_pydantic_core_schema__": any_value})


class _Module(types.ModuleType):
    __path__: MutableSequence[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _new(f"{self.__name__}.{name}")


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def __init__(self, names: Iterable[str]) -> None:
        self.names = tuple(names)

    def find_spec(
        self, name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        if f"{name}.".startswith(tuple(f"{module}." for module in self.names)):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: types.ModuleType) -> None:
        pass


def install(*names: str) -> None:
    """Let these modules, and what is below them, be imported as stand-ins; transformers does without them."""
    for name in names:
        known = getattr(import_utils, f"is_{name}_available", None)
        if known is not None:
            # its answer is kept
            known()
    # first: some of them are installed, and would fail without a GPU
    sys.meta_path.insert(0, _Finder(names))


def without_compiler() -> None:
    """Let ``torch.compile`` return what it is given: without Triton it fails when a module is imported."""

    def as_it_is(function: Any = None, **options: Any) -> Any:
        if function is not None:
            return function
        return lambda given: given

    setattr(torch, "compile", as_it_is)  # noqa: B010 - to a type checker it is overloaded
