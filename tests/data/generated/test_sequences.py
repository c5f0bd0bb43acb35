"""Sequences by number: targets, how lengths are spread, that nothing held out is trained on; and tokenizers."""

import hashlib
import json
import random
from collections import Counter

import pytest
import torch
from transformers import AutoTokenizer

from tape_ds.data.generated import TASKS, addressing, arithmetic, make
from tape_ds.data.generated.arithmetic import ArithmeticTask
from tape_ds.data.generated.sequences import GeneratedSequences
from tape_ds.data.generated.task import tokenizer_of
from tape_ds.data.order import collate

ADDRESSING = [name for name, task in TASKS.items() if not isinstance(task, ArithmeticTask)]


def served(name, trained=None, samples=640, seed=3, step_sequences=16, **options):
    trained = trained or ((32, 48) if name in ADDRESSING else (5, 4))
    return GeneratedSequences(
        make(name, options), trained, samples=samples, seed=seed, step_sequences=step_sequences
    )


@pytest.mark.parametrize("name", TASKS)
def test_exactly_the_answers_are_targets(name):
    made = served(name)
    tokenizer = tokenizer_of(made.task)
    for index in range(50):
        sample, item = made.sample(index), made[index]
        targets = list(sample.answers)
        assert tokenizer.convert_ids_to_tokens(item["input_ids"].tolist()) == list(sample.words)
        assert (item["labels"] != -100).nonzero()[:, 0].tolist() == targets
        assert torch.equal(item["labels"][targets], item["input_ids"][targets])
        assert item["position_ids"].tolist() == list(range(len(sample.words)))
        assert item["document_ids"].dtype == torch.int32 and not item["document_ids"].any()


@pytest.mark.parametrize("name", TASKS)
def test_a_word_is_a_token_there_and_back(name, tmp_path):
    task = TASKS[name]
    tokenizer_of(task).save_pretrained(tmp_path)
    for tokenizer in (tokenizer_of(task), AutoTokenizer.from_pretrained(tmp_path)):
        special = (
            tokenizer.pad_token_id,
            tokenizer.unk_token_id,
            tokenizer.bos_token_id,
            tokenizer.eos_token_id,
        )
        assert special == (0, 1, 2, 3)
        text = ("" if task.by_character else " ").join(task.vocabulary[4:])
        ids = tokenizer(text).input_ids
        assert ids == list(range(4, len(tokenizer))), "nothing is added, nothing joined"
        assert tokenizer.decode([*ids, 3, 0], skip_special_tokens=True) == text


@pytest.mark.parametrize(("name", "step"), [("look_back", 1), ("flip_flop", 2)])
def test_sequences_of_a_step_are_equally_long_and_lengths_are_uniform(name, step):
    made = served(name, samples=16 * 4000)
    lengths = [
        len(made.sample(16 * number).words) - made.task.tokens((0,)) for number in range(4000)
    ]
    kinds = range(32, 49, step)
    assert set(lengths) == set(kinds)
    assert all(
        abs(lengths.count(kind) - 4000 / len(kinds)) < 5 * (4000 / len(kinds)) ** 0.5
        for kind in kinds
    )
    batch = collate([made[index] for index in range(16)])
    assert (batch["document_ids"] == 0).all(), "no padding"


def test_pairs_of_operand_lengths_are_uniform():
    made = served("addition", (6, 4), samples=24_000)
    counts = Counter()
    for index in range(len(made)):
        first, second = "".join(made.sample(index).words).partition("=")[0].split("+")
        counts[len(first), len(second)] += 1
    assert len(counts) == 24
    chi_square = sum((count - 1000) ** 2 / 1000 for count in counts.values())
    assert abs(chi_square - 23) < 4 * 46**0.5


@pytest.mark.parametrize("name", ADDRESSING)
def test_training_and_tests_share_no_sequence(name):
    """By the sequence itself, so whatever the seeds and lengths; about one in eight is a test's."""
    made, task = served(name), TASKS[name]
    trained = {made.sample(index).words for index in range(300)}
    tested = {
        sample.words for length in (32, 48, 96) for sample in task.held_out((length,), 50, seed=3)
    }
    assert not any(map(addressing.is_test, trained)) and all(map(addressing.is_test, tested))
    assert not trained & tested and len(tested) == 150
    drawn = [task.sequence(random.Random(index), 48) for index in range(640)]
    assert 40 < sum(addressing.is_test(sample.words) for sample in drawn) < 130


@pytest.mark.parametrize(("name", "size"), [("recall", (32,)), ("addition", (9, 9))])
def test_fewer_sequences_of_a_test_are_the_first_of_more(name, size):
    task = TASKS[name]
    assert task.held_out(size, 5, seed=1) == task.held_out(size, 20, seed=1)[:5]
    assert task.held_out(size, 5, seed=2) != task.held_out(size, 5, seed=1)


@pytest.mark.parametrize("name", TASKS)
def test_sequences_stay_what_they_are(name):
    """Stored results name the sequences they were made on: a change of these raises the family's FORMAT."""
    assert (addressing.FORMAT, arithmetic.FORMAT) == (1, 1)
    made = served(name)
    plain = [{key: value.tolist() for key, value in made[index].items()} for index in range(50)]
    found = hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]
    assert found == EXPECTED[name]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("addition", "f5863a1f1850f122"),
        ("look_back", "21c95f6d0a4a0154"),
        ("flip_flop", "f7ee62ab958e9040"),
    ],
)
def test_stored_results_keep_their_fingerprints(name, expected):
    sizes = (32, 48) if name in ADDRESSING else (5, 4)
    assert TASKS[name].fingerprint(sizes) == expected


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("addition", (4, 5), "0192192add1eb511"),
        ("flip_flop", (32,), "a659f1ddec5809c0"),
        ("recall", (32,), "a0b5b66934774ceb"),
    ],
)
def test_tests_stay_what_they_are(name, size, expected):
    found = [sample.words for sample in TASKS[name].held_out(size, 20, seed=0)]
    assert hashlib.sha256(json.dumps(found).encode()).hexdigest()[:16] == expected


EXPECTED = {
    "addition": "4ce55f7d0c3c57bd",
    "subtraction": "951f9fc28ceef21d",
    "multiplication": "b0025a262f8f1d2e",
    "sorting": "81cdf81e07968bd8",
    "bitwise_or": "23a9fed52f232a9b",
    "look_back": "e8d304d28813d0a6",
    "look_ahead": "d39247170d797e3a",
    "flip_flop": "c6961567b45746d1",
    "selective_copy": "43cc056642506cfc",
    "recall": "eed063ed87af7580",
}
