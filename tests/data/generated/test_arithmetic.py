"""Arithmetic: how problems are written, what is right, which problems there are, and which of them are held out."""

import random

import pytest

from tape_ds.data.generated.arithmetic import ARITHMETIC, SMALL
from tape_ds.data.generated.sequences import GeneratedSequences

TASKS = {task.name: task for task in ARITHMETIC}
SMALL_CELLS = [(1, 1), (1, 2), (2, 2)]

# task: (operands as one reads them, prompt, answer)
WRITTEN = {
    "addition": [
        (("12", "34"), "21+43=", "64"),
        (("999", "1"), "999+1=", "0001"),
        (("7", "10"), "7+01=", "71"),
    ],
    "subtraction": [
        (("34", "12"), "43-21=", "22"),
        (("3", "12"), "3-21=", "-9"),
        (("100", "58"), "001-85=", "24"),
    ],
    "multiplication": [(("12", "34"), "21x43=", "804"), (("9", "9"), "9x9=", "18")],
    "sorting": [
        (("75946", "36999", "81201"), "a:64957,b:99963,c:10218=", "bac"),
        (("21", "10", "21"), "a:12,b:01,c:12=", "bac"),
    ],
    "bitwise_or": [
        (("0010", "010000"), "0010+010000=", "011000"),
        (("0", "1"), "0+1=", "1"),
        (("00", "0"), "00+0=", "00"),
    ],
}


def drawn(task, generator, i, j):
    """Operands of one problem, on whichever side of the split."""
    ranges = task.ranges(i, j)
    values = [generator.randrange(among.start, among.stop) for among in ranges]
    return tuple(task.operand(value, among) for value, among in zip(values, ranges, strict=True))


def size_of(task, operands):
    return (len(operands[0]), len(operands) if task.name == "sorting" else len(operands[1]))


def is_test(task, operands):
    return task.is_test(operands, size_of(task, operands))


@pytest.mark.parametrize("name", TASKS)
def test_a_problem_is_written_least_significant_digit_first(name):
    for operands, prompt, answer in WRITTEN[name]:
        task = TASKS[name]
        assert task.written(operands) == (prompt, answer)
        sample = task.sample(operands)
        assert "".join(sample.words) == f"{prompt}{answer}[EOS]"
        assert sample.answers == tuple(range(len(prompt), len(prompt) + len(answer) + 1))


@pytest.mark.parametrize(
    "name, tokens",
    [
        ("addition", 64),
        ("subtraction", 64),
        ("multiplication", 83),
        ("sorting", 481),
        ("bitwise_or", 63),
    ],
)
def test_the_longest_row_is_known(name, tokens):
    task = TASKS[name]
    assert task.tokens((20, 20)) == tokens
    largest = {"subtraction": ("1" + "0" * 19, "9" * 20), "sorting": ("9" * 20,) * 20}.get(
        name, ("9" * 20,) * 2
    )
    assert len(task.sample(largest).words) == tokens


@pytest.mark.parametrize("name", TASKS)
def test_draws_are_uniform_over_a_cell(name):
    """Chi-square over all problems of one digit (of three places) each: within four deviations of its mean."""
    task, generator = TASKS[name], random.Random(5)
    i, j = (3, 3) if name == "bitwise_or" else (1, 2) if name == "sorting" else (1, 1)
    counts = dict.fromkeys(task.every(i, j), 0)
    draws = 50 * len(counts)
    for _ in range(draws):
        counts[drawn(task, generator, i, j)] += 1
    freedom = len(counts) - 1
    chi_square = sum((count - 50) ** 2 / 50 for count in counts.values())
    assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5


def as_set(operands):
    return tuple(sorted(operands))


def operands_of(task, sample):
    """As people read them, from the text alone."""
    prompt = "".join(sample.words[: sample.answers[0] - 1])
    if task.name == "sorting":
        return tuple(each.partition(":")[2][::-1] for each in prompt.split(","))
    numbers = prompt.split(getattr(task, "sign", "+"))
    return (
        tuple(numbers) if task.name == "bitwise_or" else tuple(number[::-1] for number in numbers)
    )


@pytest.mark.parametrize("name", TASKS)
def test_training_and_tests_never_share_a_problem(name):
    """Against held-out problems of several cells, with the operands in either order."""
    task = TASKS[name]
    made = GeneratedSequences(task, (3, 3), samples=5000, seed=11, step_sequences=1)
    trained = {as_set(operands_of(task, made.sample(index))) for index in range(5000)}
    for size in ((1, 1), (1, 3), (2, 2), (3, 1), (3, 3)):
        tested = {as_set(operands_of(task, sample)) for sample in task.held_out(size, 100, seed=0)}
        assert tested and not tested & trained


@pytest.mark.parametrize("name", TASKS)
@pytest.mark.parametrize("i, j", SMALL_CELLS)
def test_small_cells_are_split_whole(name, i, j):
    task, sides = TASKS[name], {}
    for operands in task.every(i, j):
        sides.setdefault(as_set(operands), set()).add(is_test(task, operands))
    assert {len(found) for found in sides.values()} == {1}
    tested = sum(found == {True} for found in sides.values())
    assert tested == (max(1, len(sides) // 10) if task.count(i, j) <= SMALL else tested)
    assert 0 < tested < len(sides)


def test_a_cell_gives_all_it_has_and_no_more():
    """Sums of one-digit numbers: 45 sets of operands, four of which are held out, in either order."""
    task = TASKS["addition"]
    found = task.held_out((1, 1), 100, seed=0)
    assert (
        len({as_set(operands_of(task, sample)) for sample in found}) == 4 and 4 <= len(found) <= 8
    )
    assert 500 < len(task.held_out((2, 3), 5000, seed=0)) < 1200, (
        "one in a hundred of 81,000, searched whole"
    )


def test_the_split_is_what_it_was():
    task = TASKS["addition"]
    tested = ["".join(operands) for operands in sorted(task.every(1, 1)) if is_test(task, operands)]
    assert tested == ["13", "23", "31", "32", "46", "57", "64", "75"]
    assert [is_test(task, (str(10**9 + n), str(10**9))) for n in range(300)].index(True) == 52
