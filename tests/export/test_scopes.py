"""References of a statement: the module's names, told apart from local ones, byte for byte."""

import ast

import pytest

from tape_ds.export.scopes import Lines, bound_names, references


def found(source):
    """(text at the reference, name, attribute) of every reference of a source's only statement."""
    (node,) = ast.parse(source).body
    data = source.encode()
    return [
        (data[each.start : each.end].decode(), each.name, each.attribute) for each in references(node, Lines(source))
    ]


def names(source):
    return [name for _, name, _ in found(source)]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("x = a + b.c.d(e)", ["x", "a", "b", "e"]),
        ("def f(a, b=c): return a + b + d", ["f", "c", "d"]),
        ("def f():\n    a = b\n    return a", ["f", "b"]),
        ("def f():\n    def g(): return a\n    a = 1\n    return g", ["f"]),
        ("f = lambda a: a + b", ["f", "b"]),
        ("x = [a for a in a if b]", ["x", "a", "b"]),
        ("x = {k: v for k, v in items for k in v}", ["x", "items"]),
        ("class C(B):\n    a = 1\n    b = a\n    def f(self): return a", ["C", "B", "a"]),
        ("def f():\n    with a as b:\n        return b", ["f", "a"]),
        ("def f():\n    try:\n        a()\n    except E as e:\n        raise e", ["f", "a", "E"]),
        ("def f():\n    import a.b\n    return a.b", ["f"]),
        ("def f():\n    global a\n    a = 1", ["f", "a"]),
        ("def f():\n    if (a := b): return a", ["f", "b"]),
        ("def f(*a, **b): return a, b, c", ["f", "c"]),
        ("@a.b\ndef f(x: 'A | list[B]') -> C: ...", ["a", "f", "A", "list", "B", "C"]),
        ("x: Literal['A'] | 'B' = 'C'", ["x", "Literal", "B"]),
        ("x = f'{a} {b.c!r:>{d}}'", ["x", "a", "b", "d"]),
    ],
)
def test_local_names_are_no_references(source, expected):
    assert sorted(names(source)) == sorted(expected)


def test_places_are_counted_in_bytes():
    source = "x = ('ä', naïve.größe, \"é\", b)"
    assert ("naïve.größe", "naïve", "größe") in found(source) and ("b", "b", None) in found(source)


def test_the_name_of_a_definition_is_a_reference():
    assert ("Cé", "Cé", None) in found("@d\nclass Cé(B): ...")
    assert found("async def f(): ...")[0] == ("f", "f", None)


def test_a_name_within_a_quoted_annotation_is_found_where_it_stands():
    assert ("Inner", "Inner", None) in found('def f(x: "list[Inner]"): ...')


def test_an_f_string_is_one_place():
    assert found("f'{a}' + b") == [("f'{a}'", "a", None), ("b", "b", None)]


def test_hidden_names_are_those_of_the_functions_around():
    (node,) = ast.parse("def f(a):\n    b = 1\n    return m.x").body
    (reference,) = [
        each for each in references(node, Lines("def f(a):\n    b = 1\n    return m.x")) if each.name == "m"
    ]
    assert reference.hidden == {"a", "b"}


def test_bound_names_stop_at_inner_scopes():
    tree = ast.parse("a = [b for b in c]\ndef d(e): f = 1\nclass G: h = 1\nfor i, (j, *k) in l: pass")
    assert bound_names(tree.body) == {"a", "d", "G", "i", "j", "k"}
