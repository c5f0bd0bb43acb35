"""A module taken apart: statements with their comments and documentation, imports with what they stand for."""

import pytest

from tape_ds.export.modules import BundleError, Import, Module, in_fstring

SOURCE = '''"""What it is."""

from typing import TYPE_CHECKING

import torch.nn.functional as F
from toy.b import c as d
from toy import b

if TYPE_CHECKING:
    from toy.e import T

# one comment

# above
# it
X, Y = 1, 2
"""What they are."""


@X.decorated
def f(): ...


@f.register
def _(): ...


f.other(1)
'''


@pytest.fixture
def module(toy):
    toy(b="c = 1\n")
    return Module("toy.a", SOURCE)


def source_of(module, statement):
    return module.text.encode()[slice(*module.source_of(statement))].decode()


def test_a_statement_has_its_comment_and_its_documentation(module):
    assert source_of(module, module.by_name["X"]) == '# above\n# it\nX, Y = 1, 2\n"""What they are."""\n'
    assert module.by_name["Y"] is module.by_name["X"]
    assert source_of(module, module.by_name["f"]) == "@X.decorated\ndef f(): ...\n"


def test_what_binds_nothing_belongs_to_a_name(module):
    assert [(each.names, each.anchor) for each in module.statements[2:]] == [((), "f"), ((), "f")]


def test_imports_say_what_they_stand_for(module):
    assert module.docstring == "What it is."
    assert module.imports["F"] == Import("torch.nn.functional", None, False)
    assert module.imports["d"] == Import("toy.b", "c", False) and module.imports["d"].own
    assert module.imports["b"] == Import("toy.b", None, False)
    assert module.imports["T"] == Import("toy.e", "T", True)


def test_a_relative_import_is_refused(toy):
    with pytest.raises(BundleError, match="relative"):
        Module("toy.a", "from . import b\n")


def test_only_braces_of_an_f_string_are_edited():
    assert in_fstring('f"a {a} {b.a} {a.c} a.b {a.b!r}"', "a", None, "z") == 'f"a {z} {b.a} {z.c} a.b {z.b!r}"'
    assert in_fstring('f"{a.b} {a.bc} {x.a.b} a.b"', "a", "b", "z") == 'f"{z} {a.bc} {x.a.b} a.b"'
