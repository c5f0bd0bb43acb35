"""``stdlib``: questions about the running Python's own sources, in the form of SCROLLS.

Each asks which arguments a function takes, before an excerpt of the file that defines it; the answer is the list of
their names, to be copied from the excerpt. It shows that fine-tuning works where nothing can be downloaded; it measures
nothing about long texts.
"""

import ast
from collections.abc import Iterator

from tape_ds.data.sources import StandardLibrary

ROWS = {"train": 2000, "validation": 100, "test": 100}
"""Questions of each split. The first is about the training files, the others about the held-out ones."""

_BEFORE, _AFTER = 12, 16
"""Lines of the excerpt around a function's first line."""


def rows(split: str) -> Iterator[tuple[str, str, str | None]]:
    """(id, input, output) of each question; the output of the split ``test`` is None, as in SCROLLS."""
    asked = list(_questions("train" if split == "train" else "heldout"))
    if split != "train":
        asked = asked[0 if split == "validation" else 1 :: 2]
    step = max(1, len(asked) // ROWS[split])  # spread over all files
    for name, text, answer in asked[::step][: ROWS[split]]:
        yield name, text, None if split == "test" else answer


def fingerprint(split: str) -> str:
    """Of the sources that the questions are made of."""
    return f"{StandardLibrary('stdlib').fingerprint()}:{ROWS[split]}"


def _questions(part: str) -> Iterator[tuple[str, str, str]]:
    """Yield every function that takes an argument, whose name its file has once and whose head the excerpt holds whole,
    in the order of the files."""
    for document in StandardLibrary("stdlib").documents(part):
        lines = document.text.split("\n")  # as ast counts them: a form feed ends none
        functions = [node for node in ast.walk(ast.parse(document.text)) if isinstance(node, ast.FunctionDef)]
        names = [node.name for node in functions]
        for node in functions:
            taken = [argument.arg for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
            if not taken or names.count(node.name) > 1 or node.body[0].lineno > node.lineno + _AFTER:
                continue
            first = max(0, node.lineno - 1 - _BEFORE)
            excerpt = "\n".join(lines[first : node.lineno - 1 + _AFTER])
            question = f"Which arguments does the function {node.name} take?"
            yield f"{document.name}:{node.name}", f"{question}\n\n{excerpt}", ", ".join(taken)
