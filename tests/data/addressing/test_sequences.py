"""Sequences by number: what is a target, that a sequence is a function of seed and number, and that tests are not
trained on."""

import pytest
import torch

from tape_ds.data.addressing import sequences
from tape_ds.data.addressing.sequences import AddressingSequences, held_out, is_test
from tape_ds.data.addressing.tasks import TASKS, make
from tape_ds.data.arithmetic import vocabulary
from tape_ds.data.dataset import collate


def served(name="look_back", lengths=(32, 48), samples=640, seed=3, step_sequences=16, **options):
    return AddressingSequences(make(name, options), lengths, samples=samples, seed=seed, step_sequences=step_sequences)


@pytest.mark.parametrize("name", TASKS)
def test_exactly_the_answers_are_targets(name):
    made = served(name)
    tokenizer = vocabulary.of_words(made.task.vocabulary)
    for index in range(50):
        sequence, item = made.sequence(index), made[index]
        assert tokenizer.convert_ids_to_tokens(item["input_ids"].tolist()) == list(sequence.words)
        assert tokenizer(" ".join(sequence.words)).input_ids == item["input_ids"].tolist()
        assert (item["labels"] != -100).nonzero()[:, 0].tolist() == list(sequence.answers)
        targets = list(sequence.answers)
        assert torch.equal(item["labels"][targets], item["input_ids"][targets])


@pytest.mark.parametrize("name", TASKS)
def test_a_sequence_is_a_function_of_seed_and_number(name):
    """Whoever asks, in whatever order."""
    forward, backward = served(name), served(name)
    found = {index: backward.sequence(index) for index in reversed(range(100))}
    assert all(forward.sequence(index) == found[index] for index in range(100))
    other = served(name, seed=4)
    assert sum(other.sequence(index) == found[index] for index in range(100)) < 5


@pytest.mark.parametrize(("name", "step"), [("look_back", 1), ("flip_flop", 2)])
def test_sequences_of_a_step_are_equally_long_and_lengths_are_uniform(name, step):
    made = served(name, samples=16 * 4000)
    lengths = [len(made.sequence(16 * number).words) - made.task.tokens(0) for number in range(4000)]
    kinds = range(32, 49, step)
    assert set(lengths) == set(kinds)
    assert all(abs(lengths.count(kind) - 4000 / len(kinds)) < 5 * (4000 / len(kinds)) ** 0.5 for kind in kinds)
    batch = collate([made[index] for index in range(16)])
    assert (batch["document_ids"] == 0).all(), "no padding"


@pytest.mark.parametrize("name", TASKS)
def test_training_and_tests_share_no_sequence(name):
    """By the sequence itself, so whatever seeds and lengths there are; about one in eight is a test's."""
    made = served(name)
    trained = {made.sequence(index).words for index in range(300)}
    tested = {sequence.words for length in (32, 48, 96) for sequence in held_out(TASKS[name], length, 50, seed=3)}
    assert not any(map(is_test, trained)) and all(map(is_test, tested)) and not trained & tested
    assert len(tested) == 150
    drawn = [made.task.draw(made.generator(index), 48) for index in range(640)]
    assert 40 < sum(is_test(sequence.words) for sequence in drawn) < 130


def test_fewer_sequences_of_a_test_are_the_first_of_more():
    task = TASKS["recall"]
    assert held_out(task, 32, 5, seed=1) == held_out(task, 32, 20, seed=1)[:5]
    assert held_out(task, 32, 5, seed=2) != held_out(task, 32, 5, seed=1)


def test_sequences_and_their_split_stay_what_they_are():
    """Stored results say which sequences they were made on: whoever changes them raises FORMAT."""
    assert sequences.FORMAT == 1
    found = {name: " ".join(served(name).sequence(7).words) for name in TASKS}
    assert found == EXPECTED


def test_other_sequences_have_another_fingerprint():
    task = TASKS["look_back"]
    keys = [
        (task, (32, 48)),
        (task, (32, 49)),
        (make("look_back", {"markers": 3}), (32, 48)),
        (TASKS["recall"], (32, 48)),
    ]
    assert len({sequences.fingerprint(*key) for key in keys}) == 4


def test_a_sequence_that_there_is_not():
    with pytest.raises(IndexError, match="of 640"):
        served()[640]


EXPECTED = {
    "look_back": "k m w n k d g w b o b n r y c o y p i j o k b e o t ^1 g n r k s i p u p u y n f p n ?1 9 p",
    "look_ahead": "k m w n k d g w b o ^1 n r y c o y p i j o k b e o t b g n r k s i p u p u y n f p n ?1 9 j",
    "flip_flop": "w 1 i 0 i 1 i 0 i 0 i 0 i 0 i 0 i 1 i 0 w 1 i 1 i 1 i 1 r 1 i 0 i 0 r 1 r 1 i 1 r 1",
    "selective_copy": "_ i _ k _ _ _ _ _ p _ _ _ _ _ b _ j _ _ _ o j _ f g _ _ _ _ j g b _ c _ i m b _ _ _ | i k p b "
    "j o j f g j g b c i m b",
    "recall": "k43 v58 k25 v7 k41 v34 k31 v48 k32 v9 k56 v8 k58 v32 k59 v34 k24 v6 k55 v38 k40 v43 k9 v0 k45 v43 k15 "
    "v34 k22 v5 k3 v28 k2 v23 k35 v48 k19 v31 k48 v48 k57 v47 k48 v48 k25 v7 k31 v48 k35 v48 k3 v28 k58 v32 "
    "k19 v31 k59 v34",
}
