"""What is left out of the daily suite by name is there."""

import ast
from pathlib import Path

import pytest

from tests.thinned import ONE_IN

ROOT = Path(__file__).resolve().parents[1]


@pytest.mark.parametrize("name", ONE_IN)
def test_a_thinned_test_exists(name):
    file, function = name.split("::")
    tree = ast.parse((ROOT / file).read_text())
    assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
