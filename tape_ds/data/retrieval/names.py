"""Names that differ in one part, and values, both made up: they are in no text that documents are put into.

A name has two invented words and a code, ``tavo/mirel/k47``. RULER's keys are dictionary words joined by hyphens,
numbers of seven digits and uuids, and our passkeys are numbers: none of these is made here.
"""

from collections.abc import Callable, Sequence

import numpy as np

_CONSONANTS = "bdfgklmnprstvz"
_VOWELS = "aeiou"
_CAPITALS = "ABCDEFGHJKLMNPRSTUVWXYZ"
_UNITS = ("kg", "km", "ml", "volt", "bar")
JOINTS = ("/", ".", "_", ":", " ")
"""What may stand between the parts of a name; one document has one of them."""

Parts = tuple[str, ...]


def pick(rng: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(rng.integers(len(choices)))]


def word(rng: np.random.Generator) -> str:
    """Return an invented word of two or three syllables."""
    syllables = int(rng.integers(2, 3, endpoint=True))
    letters = [pick(rng, _CONSONANTS) + pick(rng, _VOWELS) for _ in range(syllables)]
    return "".join(letters)


def code(rng: np.random.Generator) -> str:
    return f"{pick(rng, _CONSONANTS)}{int(rng.integers(10, 100))}"


_PARTS: tuple[Callable[[np.random.Generator], str], ...] = (word, word, code)


def draw_names(rng: np.random.Generator, asked: int, others: int) -> list[str]:
    """Return ``asked`` + ``others`` different names, each but the first as one of the first ``asked`` with one part
    changed."""
    joint = pick(rng, JOINTS)
    first: Parts = tuple(make(rng) for make in _PARTS)
    names: dict[Parts, None] = {first: None}
    near: list[Parts] = [first]
    while len(names) < asked + others:
        origin = near[int(rng.integers(len(near)))]
        changed = int(rng.integers(len(_PARTS)))
        name = (*origin[:changed], _PARTS[changed](rng), *origin[changed + 1 :])
        if name in names:
            continue
        names[name] = None
        if len(near) < asked:
            near.append(name)
    return [joint.join(name) for name in names]


def _plate(rng: np.random.Generator) -> str:
    return f"{pick(rng, _CAPITALS)}{pick(rng, _CAPITALS)}{int(rng.integers(100, 1000))}"


def _quantity(rng: np.random.Generator) -> str:
    return f"{int(rng.integers(1, 1000))}.{int(rng.integers(10))} {pick(rng, _UNITS)}"


def _place(rng: np.random.Generator) -> str:
    return f"E{int(rng.integers(10, 1000))}/N{int(rng.integers(10, 1000))}"


def _pair(rng: np.random.Generator) -> str:
    return f"{word(rng)} {word(rng)}"


VALUES = (_plate, _quantity, _place, _pair)
"""Kinds of values; one document has one of them."""


def draw_values(rng: np.random.Generator, count: int) -> list[str]:
    """Return ``count`` different values of one kind."""
    make = VALUES[int(rng.integers(len(VALUES)))]
    found: dict[str, None] = {}
    while len(found) < count:
        found[make(rng)] = None
    return list(found)
