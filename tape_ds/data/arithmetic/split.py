"""Which problems are for testing: decided by the operands themselves, so that no list of them is kept anywhere.

Operands in whatever order are one problem to the split: who has been trained on a + b knows b + a, whose answer is the
same (in a list to sort, the answer is the same order). Such a set of operands is a test's or training's by a keyed hash
of its text. Of the sets of one cell (of two sizes, in either order) about 1 % are the test's. A cell of at most
:data:`SMALL` problems is counted through instead: of its sets, the tenth with the lowest hashes is the test's, and one
at least, so that the smallest cells are trained and tested as well.

So the split is exact: nothing that is trained on is tested, in whatever number and with whatever seed either is drawn.
"""

import functools
import hashlib
import random

from tape_ds.data.arithmetic.tasks import TASKS, ArithmeticSample, ArithmeticTask, Operands

KEY = b"tape-ds arithmetic, split 1"
"""Of the hash: another key, another split."""
ONE_IN = 100
"""Sets of operands, of which one is the test's."""
SMALL = 20_000
"""Problems of a cell that is counted through."""
SMALL_ONE_IN = 10
MOST = 10_000
"""Problems of a cell that are ever asked for: more would take hours to find where there are few."""
_LIMIT = 2**64 // ONE_IN
_CROWDED = 4 * ONE_IN
"""A cell with fewer problems than so many times those that are asked for is searched whole, not drawn from."""


def is_test(task_name: str, operands: Operands) -> bool:
    """Return whether a problem is never trained on.

    Raises:
        KeyError: there is no such task.
    """
    i, j = TASKS[task_name].size_of(operands)
    if _is_small(task_name, i, j):
        return tuple(sorted(operands)) in _small_tests(task_name, i, j)
    return _hash(task_name, sorted(operands)) < _LIMIT


def draw(task: ArithmeticTask, generator: random.Random, i: int, j: int, test: bool) -> ArithmeticSample:
    """Return a problem of exactly these sizes, uniform among those of the test (or among all others)."""
    while True:
        operands = task.draw_operands(generator, i, j)
        if is_test(task.name, operands) == test:
            return task.sample(operands)


def cell(task: ArithmeticTask, i: int, j: int, count: int, seed: int) -> list[ArithmeticSample]:
    """``count`` different problems of the test, of exactly these sizes; fewer where there are fewer.

    They depend on the arguments alone, and fewer problems are the first of more, unless the cell is so small that it is
    searched whole.
    """
    generator = random.Random(f"cell {task.name} {i} {j} {seed}")
    if task.count(i, j) < _CROWDED * count:
        held_out = [operands for operands in task.every(i, j) if is_test(task.name, operands)]
        return [task.sample(operands) for operands in generator.sample(held_out, min(count, len(held_out)))]
    found: dict[Operands, ArithmeticSample] = {}
    while len(found) < count:
        sample = draw(task, generator, i, j, test=True)
        found[sample.operands] = sample
    return list(found.values())


@functools.cache
def _is_small(task_name: str, i: int, j: int) -> bool:
    return TASKS[task_name].count(i, j) <= SMALL


@functools.cache
def _small_tests(task_name: str, i: int, j: int) -> frozenset[Operands]:
    """Return the test's sets of operands in a small cell, each sorted; the same for (j, i) where that has the same
    sets."""
    sets = {tuple(sorted(operands)) for operands in TASKS[task_name].every(i, j)}
    ranked = sorted(sets, key=lambda operands: (_hash(task_name, operands), operands))
    return frozenset(ranked[: max(1, len(ranked) // SMALL_ONE_IN)])


def _hash(task_name: str, operands: list[str] | Operands) -> int:
    """Of 64 bits."""
    text = f"{task_name}:{','.join(operands)}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, key=KEY).digest(), "little")
