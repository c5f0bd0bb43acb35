"""How crowded the text of the product is: one thought a line.

Counted for each 1,000 lines. A packed line is unpacked by giving each thought a line and, where a reader would ask why,
a comment above it.
"""

import ast
import functools
import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("tape_ds", "tools", "benchmarks", "launchers", "evaluation")

AT_MOST = {
    "packed assignments": 1.0,
    "ternaries": 12.0,
    "comprehensions": 20.0,
    "lines over 100 characters": 50.0,
    "texts times a condition": 0.0,
}
AT_LEAST = {"lines of comment": 25.0}

COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def packs(node):
    """Whether an assignment gives several values to several names on one line: ``a, b = x, y``."""
    if not isinstance(node, ast.Assign) or not isinstance(node.value, ast.Tuple):
        return False
    return len(node.value.elts) > 1 and any(
        isinstance(target, ast.Tuple) for target in node.targets
    )


def is_text(node):
    return isinstance(node, ast.JoinedStr) or (
        isinstance(node, ast.Constant) and isinstance(node.value, str)
    )


def multiplies_text(node):
    """Whether a product has a text, and something that is no number: ``" (old)" * is_old``."""
    if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Mult):
        return False
    factors = [node.left, node.right]
    return any(map(is_text, factors)) and not all(
        isinstance(each, ast.Constant | ast.JoinedStr) for each in factors
    )


def crowding(text):
    """Return how often each thing is in a source, its lines included."""
    lines = text.splitlines()
    found = Counter(lines=len(lines))
    for line in lines:
        if len(line) > 100:
            found["lines over 100 characters"] += 1
        if re.match(r"\s*#(?!!)", line):
            found["lines of comment"] += 1
    for node in ast.walk(ast.parse(text)):
        if packs(node):
            found["packed assignments"] += 1
        elif isinstance(node, ast.IfExp):
            found["ternaries"] += 1
        elif isinstance(node, COMPREHENSIONS):
            found["comprehensions"] += 1
        elif multiplies_text(node):
            found["texts times a condition"] += 1
    return found


@functools.cache
def of_the_product():
    """Return the sums over all files, for each 1,000 lines."""
    whole = Counter()
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            whole += crowding(path.read_text(encoding="utf-8"))
    return {name: 1000 * count / whole["lines"] for name, count in whole.items()}


@pytest.mark.parametrize("name", AT_MOST)
def test_the_text_gets_no_denser(name):
    assert round(of_the_product().get(name, 0.0), 2) <= AT_MOST[name]


@pytest.mark.parametrize("name", AT_LEAST)
def test_reasons_are_written_down(name):
    assert round(of_the_product()[name], 2) >= AT_LEAST[name]


def test_no_file_is_too_long_to_be_read_at_once():
    long = []
    for folder in PRODUCT:
        for path in (ROOT / folder).rglob("*.py"):
            if len(path.read_text(encoding="utf-8").splitlines()) > 500:
                long.append(path)
    assert long == []


CROWDED = """
# why
a, b = 1, 2
(c, d), e = f = 3, 4
g, h = split()
i = 1 if a else 2 if b else 3
j = [x for x in {y: 0 for y in g}] + sorted(z for z in h)
k = " old" * a + f"{b} " * (c > d) + "-" * 40 + 2 * a
"""


def test_what_is_crowded_is_counted():
    found = crowding(CROWDED + f"{'l' * 101} = 0  # a comment at the end of a line\n")
    assert found == {
        "lines": 9,
        "lines of comment": 1,
        "packed assignments": 2,
        "ternaries": 2,
        "comprehensions": 3,
        "texts times a condition": 2,
        "lines over 100 characters": 1,
    }
