"""Declared requirements: all that the package imports, within bounds that include the pinned versions."""

import ast
import importlib.metadata
import sys
import tomllib

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.test_layout import ROOT, SCRIPTS, sources

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = {
    canonicalize_name(each.name): each for each in map(Requirement, PROJECT["dependencies"])
}
OPTIONAL = {
    "flash_attn",
    "liger_kernel",
    "bitsandbytes",
    "triton",
    "wandb",
    "fastapi",
    "uvicorn",
    "pytest",
}
"""Imported where they are installed: extras, and torch's own requirements."""
BROUGHT = {"starlette": "fastapi", "pydantic_core": "pydantic"}
"""A part of a package under a name of its own -> the package, which is declared."""


@pytest.mark.parametrize("name", DECLARED)
def test_the_pin_is_within_the_bounds(name):
    lines = (ROOT / "requirements.txt").read_text(encoding="utf-8").splitlines()
    pins = [Requirement(line) for line in lines if "==" in line]
    pinned = {canonicalize_name(each.name): next(iter(each.specifier)).version for each in pins}
    assert DECLARED[name].specifier.contains(pinned.get(name, importlib.metadata.version(name)))
    assert any(each.operator == ">=" for each in DECLARED[name].specifier), "no lower bound"


def imported():
    """Top-level names that the shipped code imports. Readers of engines run in an engine's own environment."""
    readers = ROOT / "tools" / "engines" / "readers"
    for path in sources("tape_ds", *(room for room in SCRIPTS if room != "benchmarks")):
        if path.is_relative_to(readers):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                yield from (alias.name.split(".")[0] for alias in node.names)
            elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                yield node.module.split(".")[0]


def test_all_that_is_imported_is_declared():
    found = (
        {BROUGHT.get(name, name) for name in imported()}
        - sys.stdlib_module_names
        - {"tape_ds", *SCRIPTS}
        - OPTIONAL
    )
    brought_by = importlib.metadata.packages_distributions()
    assert "torch" in found
    undeclared = {
        name
        for name in found
        if not {*map(canonicalize_name, brought_by.get(name, []))} & set(DECLARED)
    }
    assert undeclared == set()
