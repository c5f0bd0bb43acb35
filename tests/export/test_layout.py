"""The bundle on the page."""

import ast

from tape_ds.export.layout import blank_lines, heading, import_lines
from tape_ds.export.modules import Import, Module


def test_imports_are_sorted_the_standard_librarys_first():
    lines = import_lines(
        {
            "torch": Import("torch", None, False),
            "np": Import("numpy", None, False),
            "importlib": Import("importlib.util", None, False),
            "F": Import("torch.nn", "functional", False),
            "nn": Import("torch", "nn", False),
            "Tensor": Import("torch", "Tensor", False),
            "Any": Import("typing", "Any", False),
        }
    )
    assert "\n".join(lines) == (
        "\nimport importlib.util\nfrom typing import Any\n\nimport numpy as np\nimport torch\n"
        "from torch import Tensor, nn\nfrom torch.nn import functional as F"
    )


def test_a_heading_is_a_comment_with_the_docstring():
    text = heading(Module("tape_ds.errors", '"""One.\n\nTwo.\n"""\nx = 1\n'))
    assert "\n# from tape_ds/errors.py\n#\n# One.\n#\n# Two.\n" in text and not ast.parse(text).body


def test_functions_stand_apart_and_constants_as_in_the_source():
    module = Module("tape_ds.x", "a = 1\nb = 2\n\nc = 3\ndef f(): ...\n")
    a, b, c, f = module.statements
    assert [blank_lines(*pair) for pair in ((None, a), (a, b), (b, c), (c, f))] == [1, 0, 1, 2]
