"""Sequences of training: which tokens are targets, how lengths are spread, and that a sample is a function of its
number."""

import hashlib
import json
from collections import Counter

import pytest
import torch
from transformers import AutoTokenizer

from tape_ds.data.arithmetic import sequences, vocabulary
from tape_ds.data.arithmetic.sequences import ArithmeticSequences
from tape_ds.data.arithmetic.tasks import TASKS, ArithmeticSample


def served(name="addition", first=5, second=5, samples=1000, seed=3):
    return ArithmeticSequences(name, first, second, samples=samples, seed=seed)


@pytest.mark.parametrize("name", TASKS)
def test_exactly_the_answer_and_its_end_are_targets(name):
    made, tokenizer = served(name), vocabulary.tokenizer(name)
    for index in range(50):
        item, sample = made[index], made.sample(index)
        targets = item["labels"][item["labels"] != -100].tolist()
        assert tokenizer.decode(targets[:-1]) == sample.answer and targets[-1] == vocabulary.EOS
        assert torch.equal(item["labels"][-len(targets) :], item["input_ids"][-len(targets) :])
        assert tokenizer.decode(item["input_ids"][: -len(targets)]) == sample.prompt
        assert item["position_ids"].tolist() == list(range(len(item["input_ids"])))
        assert item["document_ids"].dtype == torch.int32 and not item["document_ids"].any()


def test_digits_are_reversed_and_the_answer_is_right():
    made = served(first=20, second=20)
    for index in range(200):
        sample = made.sample(index)
        first, second = sample.prompt.removesuffix("=").split("+")
        assert int(sample.answer[::-1]) == int(first[::-1]) + int(second[::-1])


def test_pairs_of_lengths_are_uniform():
    """Chi-square over 1 .. 6 by 1 .. 4, within four deviations of its mean."""
    made = served(first=6, second=4, samples=24_000)
    counts = Counter(TASKS["addition"].size_of(made.sample(index).operands) for index in range(len(made)))
    assert len(counts) == 24
    chi_square = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert abs(chi_square - 23) < 4 * 46**0.5


def test_a_sample_is_a_function_of_seed_and_number():
    """Whoever asks, in whatever order."""
    forward, backward = served(), served()
    found = {index: backward[index]["input_ids"].tolist() for index in reversed(range(100))}
    assert all(forward[index]["input_ids"].tolist() == found[index] for index in range(100))
    other = served(seed=4)
    assert sum(other[index]["input_ids"].tolist() == found[index] for index in range(100)) < 5


def test_the_ends_of_the_run_are_kept():
    made = served(samples=4)
    assert len(made) == 4
    for outside in (-1, 4):
        with pytest.raises(IndexError, match="of 4"):
            made[outside]


def test_a_whole_sequence_is_encoded_by_the_saved_tokenizer_alike(tmp_path):
    vocabulary.tokenizer("addition").save_pretrained(tmp_path)
    sample = ArithmeticSample("21+43=", "64", ("12", "34"))
    found = sequences.encode(sample, AutoTokenizer.from_pretrained(tmp_path).get_vocab())
    assert found == ([6, 5, 14, 8, 7, 17, 10, 8, 3], 3)


def test_the_mean_length_is_that_of_the_sequences():
    made = served(samples=300)
    assert made.mean_tokens == pytest.approx(sum(len(made[index]["input_ids"]) for index in range(300)) / 300)


def test_another_problem_has_another_fingerprint():
    found = {sequences.fingerprint(*key) for key in [("addition", 5, 5), ("addition", 5, 6), ("subtraction", 5, 5)]}
    assert len(found) == 3


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("addition", "4ce55f7d0c3c57bd"),
        ("subtraction", "951f9fc28ceef21d"),
        ("multiplication", "b0025a262f8f1d2e"),
        ("sorting", "81cdf81e07968bd8"),
        ("bitwise_or", "23a9fed52f232a9b"),
    ],
)
def test_sequences_stay_what_they_are(name, expected):
    """Stored results say which sequences they were made on: whoever changes them raises FORMAT."""
    made = served(name, 5, 4, samples=50)
    plain = [{key: value.tolist() for key, value in made[index].items()} for index in range(50)]
    assert sequences.FORMAT == 1 and hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16] == expected
