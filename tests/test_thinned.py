"""Every test that is thinned by name exists."""

import ast
from pathlib import Path

from tests.thinned import ONE_IN

ROOT = Path(__file__).resolve().parents[1]


def test_thinned_tests_exist():
    missing = []
    for name in ONE_IN:
        file, function = name.split("::")
        path = ROOT / file
        tree = ast.parse(path.read_text() if path.exists() else "")
        if function not in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}:
            missing.append(name)
    assert missing == []
