"""The bundler on toy packages: what is kept, in which order, under which names; and what it refuses."""

import types

import pytest

from tape_ds.export.bundle import Bundle, Cut
from tape_ds.export.modules import BundleError


def run(text):
    """The module that a bundle's text is."""
    module = types.ModuleType("bundled")
    exec(compile(text, "bundled", "exec"), module.__dict__)
    return module


def bundle(*roots, **options):
    return Bundle([("toy." + root.rpartition(".")[0], root.rpartition(".")[2]) for root in roots], **options)


def test_only_what_is_needed_is_kept_with_its_comments(toy):
    toy(
        a='"""Room a."""\nfrom toy.b import used\n\n# says why\ndef f():\n    """Doc."""\n    return used  # kept\n',
        b='"""Room b."""\nimport json\nused = 1\nunused = json.dumps(2)\n',
    )
    text = bundle("a.f").text("Whole.")
    assert run(text).f() == 1 and run(text).__doc__ == "Whole.\n"
    for kept in ("# says why\n", '    """Doc."""\n', "# kept\n", "# Room a.", "# from toy/b.py"):
        assert kept in text
    assert "unused" not in text and "json" not in text


def test_names_that_clash_get_their_module_in_front(toy):
    toy(
        a="from toy import b, c\nfrom toy.b import f as g\n"
        "def f(): return 'a', b.f(), c.f(), g(), _p()\ndef _p(): return 1\n",
        b="from toy.c import _p\ndef f(): return 'b', _p()\n",
        c="def f(): return 'c'\ndef _p(): return 2\n",
    )
    made = bundle("a.f")
    assert made.name_of("toy.b", "f") == "b_f" and made.name_of("toy.a", "_p") == "_a_p"
    assert run(made.text("")).a_f() == ("a", ("b", 2), "c", ("b", 2), 1)


def test_a_name_that_a_local_one_would_hide_is_renamed(toy):
    toy(a="from toy import b\ndef f(value):\n    return b.value + value\n", b="value = 1\n")
    made = bundle("a.f")
    assert made.name_of("toy.b", "value") == "b_value" and run(made.text("")).f(2) == 3


def test_a_name_that_an_outside_import_has_is_renamed(toy):
    toy(a="import math\nfrom toy import b\ndef f(): return math.floor(b.math)\n", b="math = 1.5\n")
    assert run(bundle("a.f").text("")).f() == 1


def test_renaming_reaches_f_strings_and_quoted_annotations(toy):
    toy(
        a="from toy import b\nclass T: ...\ndef f(x: 'T | None'): return f'{b.T} {b.N:>3} b.N'\n",
        b="T = 't'\nN = 7\n",
    )
    text = bundle("a.f").text("")
    assert run(text).f(None) == "t   7 b.N" and "x: 'a_T | None'" in text


def test_modules_come_behind_what_they_need_while_they_run(toy):
    toy(
        a="from toy.z import Base\nclass A(Base): ...\n",
        z="from __future__ import annotations\nfrom typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from toy.a import A\nclass Base:\n    other: A\n",
    )
    text = bundle("a.A").text("")
    assert text.index("class Base") < text.index("class A(") and run(text).A.__mro__[1].__name__ == "Base"


def test_what_is_done_to_a_kept_name_is_kept_and_followed(toy):
    toy(
        a="from toy import b\ndef f(): return seen\nseen = []\nf.marks = [1]\nseen.append(b.x)\n",
        b="x = 5\ny = []\ny.append(1)\n",
    )
    made = run(bundle("a.f").text(""))
    assert made.f() == [5] and not hasattr(made, "y")


def test_re_exports_are_followed(toy):
    toy(**{"a": "from toy import pack\ndef f(): return pack.value\n", "pack/inner": "value = 3\n"})
    toy(**{"pack/__init__": "from toy.pack.inner import value\n"})
    assert run(bundle("a.f").text("")).f() == 3


def test_a_replacement_comes_from_elsewhere(toy):
    toy(
        a="from toy.b import g\ndef f(): return g()\n", b="def g(): return 'heavy'\n", light="def g(): return 'light'\n"
    )
    made = bundle("a.f", replacements={("toy.b", "g"): ("toy.light", "g")})
    assert run(made.text("")).f() == "light"
    with pytest.raises(BundleError, match="to be replaced, and is not there"):
        bundle("a.f", replacements={("toy.b", "h"): ("toy.light", "g")})


def test_a_cut_changes_the_source_before_anything_is_followed(toy):
    toy(a="from toy.b import g\ndef f(): return g()\n", b="def g(): return 1\n")
    cut = Cut("toy.a", "test", lambda text: text.replace("return g()", "return 0"))
    made = bundle("a.f", cuts=[cut])
    assert run(made.text("")).f() == 0 and "def g" not in made.text("")


REFUSED = {
    "unknown name 'missing'": {"a": "def f(): return missing\n"},
    "toy.b has no 'x'": {"a": "from toy.b import x\ndef f(): return x\n", "b": "y = 1\n"},
    "as a value": {"a": "from toy import b\ndef f(): return b\n", "b": "y = 1\n"},
    "two things: b_x": {
        "a": "from toy import b\nfrom toy.c import b_x\ndef f(x): return b_x, b.x\n",
        "b": "x = 1\n",
        "c": "b_x = 1\n",
    },
    "'e' is imported from": {
        "a": "from math import e\nfrom toy.b import g\ndef f(): return e, g\n",
        "b": "from cmath import e\ng = e\n",
    },
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_it_does_not_understand_is_an_error(toy, reason):
    toy(**REFUSED[reason])
    with pytest.raises(BundleError, match=reason):
        bundle("a.f").text("")
