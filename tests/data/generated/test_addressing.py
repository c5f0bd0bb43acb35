"""Sequences of addressing against independent readers, which know a sequence's text and nothing of how it was drawn."""

import random
from collections import Counter

import pytest

from tape_ds.data.generated import TASKS, check, make
from tape_ds.data.generated.addressing import AddressingTask

CASES = {
    "look_back": ("look_back", {}, (32, 48)),
    "look_ahead": ("look_ahead", {}, (32, 48)),
    "three markers": ("look_back", {"markers": 3, "queries": 4, "most": 8}, (14, 40)),
    "three markers ahead": ("look_ahead", {"markers": 3, "queries": 2}, (22, 64)),
    "flip_flop": ("flip_flop", {}, (24, 64)),
    "sparse flip_flop": ("flip_flop", {"ignore": 0.98}, (64,)),
    "selective_copy": ("selective_copy", {}, (20, 32)),
    "recall": ("recall", {}, (16, 32)),
}
ADDRESSING = [name for name, task in TASKS.items() if isinstance(task, AddressingTask)]
EVERY = [(case, length) for case, (_, _, lengths) in CASES.items() for length in lengths]


def task_of(case):
    name, options, _ = CASES[case]
    return make(name, options)


def pointed(words, sign):
    """Answers by place: a question is two words, "?m k", and a marker stands once, "^m"."""
    asked = [place for place, word in enumerate(words) if word.startswith("?")]
    text = words[: asked[0]]
    return {
        place + 2: text[text.index(words[place].replace("?", "^")) + sign * int(words[place + 1])]
        for place in asked
    }


def flipped(words):
    """Answers by place, from pairs of instruction and bit."""
    found, memory = {}, None
    for place in range(0, len(words), 2):
        if words[place] == "w":
            memory = words[place + 1]
        elif words[place] == "r":
            found[place + 1] = memory
    return found


def copied(words):
    """Answers by place."""
    bar = words.index("|")
    return {
        bar + 1 + n: word for n, word in enumerate([word for word in words[:bar] if word != "_"])
    }


def recalled(words):
    """Answers by place: a key that stood before has the value that it had."""
    known, found = {}, {}
    for place in range(0, len(words), 2):
        if words[place] in known:
            found[place + 1] = known[words[place]]
        known[words[place]] = words[place + 1]
    return found


READERS = {
    "look_back": lambda words: pointed(words, -1),
    "look_ahead": lambda words: pointed(words, 1),
    "flip_flop": flipped,
    "selective_copy": copied,
    "recall": recalled,
}


@pytest.mark.parametrize(("case", "length"), EVERY)
def test_another_reader_finds_every_answer(case, length):
    task, generator = task_of(case), random.Random(1)
    for _ in range(200):
        sequence = task.sequence(generator, length)
        words = list(sequence.words)
        assert READERS[task.name](words) == {place: words[place] for place in sequence.answers}
        assert len(words) == task.tokens((length,)) and set(words) <= set(task.vocabulary)


@pytest.mark.parametrize("case", CASES)
def test_answers_are_uniform_so_that_a_guess_has_the_chance_that_is_said(case):
    """Chi-square of 4,000 answers, one of each sequence, within five deviations of its mean."""
    task, generator = task_of(case), random.Random(3)
    length = CASES[case][2][-1] if task.name != "flip_flop" else 24
    sequences = [task.sequence(generator, length) for _ in range(4000)]
    counts = Counter(sequence.words[generator.choice(sequence.answers)] for sequence in sequences)
    kinds = round(1 / task.chance)
    assert len(counts) == kinds
    expected = len(sequences) / kinds
    chi_square = sum((count - expected) ** 2 / expected for count in counts.values())
    assert abs(chi_square - (kinds - 1)) < 5 * (2 * (kinds - 1)) ** 0.5


@pytest.mark.parametrize("name", ["look_back", "look_ahead"])
def test_k_and_the_markers_place_are_uniform_and_the_letter_is_behind_no_other_sign(name):
    task, generator = TASKS[name], random.Random(4)
    steps, places = Counter(), Counter()
    for _ in range(8000):
        words = list(task.sequence(generator, 48).words)
        steps[int(words[-2])] += 1
        places[words.index("^1")] += 1
    assert set(steps) == set(range(1, 17))
    assert set(places) == set(range(16, 48) if name == "look_back" else range(32))
    for counts in (steps, places):
        mean = 8000 / len(counts)
        assert all(abs(count - mean) < 5 * mean**0.5 for count in counts.values())


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("look_back", {"marker": 3}),
        ("flip_flop", {"ignore": float("nan")}),
        ("recall", {"keys": 8, "queries": 9}),
    ],
)
def test_options_that_a_task_cannot_have(name, options):
    (found,) = check(name, options)
    assert found.field == f"task_options.{list(options)[-1]}"
