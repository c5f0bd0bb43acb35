"""The tasks: how problems are written, what is right, and which problems there are."""

import random

import pytest

from tape_ds.data.arithmetic.tasks import LONGEST, TASKS

# task: (operands as one reads them, prompt, answer)
WRITTEN = {
    "addition": [(("12", "34"), "21+43=", "64"), (("999", "1"), "999+1=", "0001"), (("7", "10"), "7+01=", "71")],
    "subtraction": [(("34", "12"), "43-21=", "22"), (("3", "12"), "3-21=", "-9"), (("100", "58"), "001-85=", "24")],
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


@pytest.mark.parametrize("name", TASKS)
def test_a_problem_is_written_least_significant_digit_first(name):
    for operands, prompt, answer in WRITTEN[name]:
        sample = TASKS[name].sample(operands)
        assert (sample.prompt, sample.answer, sample.operands) == (prompt, answer, operands)


@pytest.mark.parametrize("name", TASKS)
def test_operands_have_exactly_the_sizes_that_are_asked_for(name):
    task, generator = TASKS[name], random.Random(1)
    for i, j in [(1, 1), (1, 7), (7, 1), (4, 4), (20, 13), (52, 40)]:
        sample = task.draw(generator, i, j)
        assert task.size_of(sample.operands) == (i, j)
        assert set(sample.prompt + sample.answer) <= set(task.vocabulary)
        assert len(sample.prompt) + len(sample.answer) + 1 <= task.longest(i, j)


@pytest.mark.parametrize(
    "name, tokens",
    [("addition", 64), ("subtraction", 64), ("multiplication", 83), ("sorting", 481), ("bitwise_or", 63)],
)
def test_the_longest_row_is_known(name, tokens):
    """The published 64 tokens of additions up to 20 digits among them; and as long a problem exists."""
    task = TASKS[name]
    assert task.longest(20, 20) == tokens
    largest = {"subtraction": ("1" + "0" * 19, "9" * 20), "sorting": ("9" * 20,) * 20}.get(name, ("9" * 20,) * 2)
    sample = task.sample(largest)
    assert len(sample.prompt) + len(sample.answer) + 1 == tokens


@pytest.mark.parametrize("name", TASKS)
def test_all_problems_of_a_cell_are_told_once(name):
    task = TASKS[name]
    for i, j in [(1, 1), (1, 2), (2, 1), (3, 1)]:
        problems = list(task.every(i, j))
        assert len(problems) == len(set(problems)) == task.count(i, j)
        assert {task.size_of(operands) for operands in problems} == {(i, j)}


@pytest.mark.parametrize("name", TASKS)
def test_draws_are_uniform_over_a_cell(name):
    """Chi-square over all problems of one digit (of three places) each: within four deviations of its mean."""
    task, generator = TASKS[name], random.Random(5)
    i, j = (3, 3) if name == "bitwise_or" else (1, 2) if name == "sorting" else (1, 1)
    counts = dict.fromkeys(task.every(i, j), 0)
    draws = 50 * len(counts)
    for _ in range(draws):
        counts[task.draw_operands(generator, i, j)] += 1
    freedom = len(counts) - 1
    chi_square = sum((count - 50) ** 2 / 50 for count in counts.values())
    assert abs(chi_square - freedom) < 4 * (2 * freedom) ** 0.5


def test_numbers_of_two_hundred_digits_are_exact():
    task, generator = TASKS["multiplication"], random.Random(0)
    sample = task.draw(generator, 200, 200)
    first, second = sample.operands
    assert int(sample.answer[::-1]) == int(first) * int(second)
    assert len(sample.prompt) == 402


def test_the_published_vocabulary_has_its_ids():
    vocabulary = TASKS["addition"].vocabulary
    assert len(vocabulary) == 19 and vocabulary[:4] == ("[PAD]", "[UNK]", "[BOS]", "[EOS]")
    assert [vocabulary.index(letter) for letter in "09+-x= "] == [4, 13, 14, 15, 16, 17, 18]


@pytest.mark.parametrize(
    ("name", "trained", "longest", "expected"),
    [
        ("addition", (6, 6), None, (12, 12)),
        ("addition", (6, 3), None, (12, 6)),
        ("multiplication", (15, 15), 25, (25, 25)),
        ("multiplication", (10, 4), 25, (25, 10)),
        ("sorting", (10, 10), 30, (30, 30)),
        ("sorting", (5, 40), None, (10, 52)),
        ("addition", (600, 3), None, (LONGEST, 6)),
    ],
)
def test_tests_are_longer_in_proportion_and_no_longer_than_there_are(name, trained, longest, expected):
    assert TASKS[name].tested(*trained, longest) == expected


def test_a_list_has_no_more_numbers_than_letters():
    with pytest.raises(ValueError):
        TASKS["sorting"].prompt(("1",) * 53)


def test_the_longest_problems_can_be_written():
    """Python writes no number of more than 4,300 digits."""
    generator = random.Random(0)
    for task in TASKS.values():
        size = (3, task.largest[1]) if task.name == "sorting" else task.largest
        assert task.size_of(task.draw(generator, *size).operands) == size
