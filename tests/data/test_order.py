"""Training samples: a pure function of (seed, index), whoever asks, and the tensors they come in."""

import os
import pickle
import subprocess
import sys

import datasets
import numpy as np
import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from scipy.stats import chisquare
from torch.utils.data import DataLoader, SequentialSampler

from tape_ds.data.order import TrainingSequences, collate
from tape_ds.data.pack import cut
from tape_ds.data.pose import Pose, PoseSequences
from tests.data.conftest import same


def packed(count=10, length=6):
    rng = np.random.default_rng(0)
    sequences = list(cut([rng.integers(0, 50, 4) for _ in range(count * length)], length))[:count]
    return datasets.Dataset.from_dict({name: [sequence[name] for sequence in sequences] for name in sequences[0]})


def documents(count=7, tokens=40):
    return datasets.Dataset.from_dict({"input_ids": [list(range(n * 1000, n * 1000 + tokens)) for n in range(count)]})


def training_sequences(**changes):
    settings = {
        "stored": documents(),
        "samples": 30,
        "seed": 3,
        "pose": PoseSequences(8, 64, Pose(chunks=2)),
        **changes,
    }
    return TrainingSequences(settings.pop("stored"), **settings)


# --- items ----------------------------------------------------------------------------------------------------------


def test_golden_packed_item():
    """A sequence of three documents: first tokens are no targets, positions go on, ids say where attention ends."""
    sequences = datasets.Dataset.from_dict({"input_ids": [[5, 6, 7, 8, 9, 4]], "document_ids": [[0, 0, 0, 1, 1, 2]]})
    item = TrainingSequences(sequences, samples=1, seed=0)[0]
    assert {name: values.tolist() for name, values in item.items()} == {
        "input_ids": [5, 6, 7, 8, 9, 4],
        "labels": [-100, 6, 7, -100, 9, -100],
        "position_ids": [0, 1, 2, 3, 4, 5],
        "document_ids": [0, 0, 0, 1, 1, 2],
    }


def test_golden_item_of_a_sequence_taken_for_one_document():
    """The same sequence with attention across its borders: only the sequence's first token is no target."""
    sequences = datasets.Dataset.from_dict({"input_ids": [[5, 6, 7, 8, 9, 4]], "document_ids": [[0, 0, 0, 1, 1, 2]]})
    item = TrainingSequences(sequences, samples=1, seed=0, attend_across=True)[0]
    assert item["document_ids"].tolist() == [0, 0, 0, 0, 0, 0]
    assert item["labels"].tolist() == [-100, 6, 7, 8, 9, 4]


@pytest.mark.parametrize("sequences", [training_sequences(), TrainingSequences(packed(), samples=5, seed=0)])
def test_types(sequences):
    kinds = {name: values.dtype for name, values in sequences[0].items()}
    assert kinds == {
        "input_ids": torch.int64,
        "labels": torch.int64,
        "position_ids": torch.int64,
        "document_ids": torch.int32,
    }


def test_pose_item_is_one_document_and_keeps_targets_across_chunks():
    sequences = training_sequences(samples=200)
    jumps = 0
    for index in range(200):
        item = sequences[index]
        assert (item["document_ids"] == 0).all()
        assert len({int(token) // 1000 for token in item["input_ids"]}) == 1
        assert item["labels"][0] == -100
        assert torch.equal(item["labels"][1:], item["input_ids"][1:])
        jumps += int((item["position_ids"].diff() > 1).any())
    assert jumps > 150


def test_samples_that_there_are_not():
    for index in (-1, 30):
        with pytest.raises(IndexError):
            training_sequences()[index]


# --- order and draws ------------------------------------------------------------------------------------------------


def test_every_epoch_is_another_permutation():
    sequences = training_sequences(samples=70)
    orders = [tuple(sequences.row_of(epoch * 7 + at) for at in range(7)) for epoch in range(10)]
    assert all(sorted(order) == list(range(7)) for order in orders)
    assert len(set(orders)) > 7
    assert orders != [
        tuple(training_sequences(seed=4, samples=70).row_of(e * 7 + at) for at in range(7)) for e in range(10)
    ]


def test_orders_of_two_epochs_are_kept_and_no_more():
    """Up to 256 were, 8 bytes a sequence each: 100 epochs over 10 million sequences were 8 GB in every process."""
    sequences = training_sequences(samples=90)
    first = [sequences.row_of(index) for index in range(30)]
    for index in range(90):
        sequences.row_of(index)
    assert len(sequences.order._cached) == 2
    assert [sequences.row_of(index) for index in range(30)] == first


def test_first_sequence_is_uniform_over_seeds():
    counts = np.bincount([training_sequences(seed=seed).row_of(0) for seed in range(700)], minlength=7)
    assert chisquare(counts).pvalue > 1e-3


def test_a_document_met_again_is_cut_anew():
    sequences = training_sequences(samples=70)
    positions = {tuple(sequences[i]["position_ids"].tolist()) for i in range(70) if sequences.row_of(i) == 0}
    assert len(positions) == 10


def test_order_of_asking_is_irrelevant():
    one, other = training_sequences(), training_sequences()
    forwards = [one[index] for index in range(30)]
    for index in reversed(range(30)):
        assert same(other[index], forwards[index])
    assert same(pickle.loads(pickle.dumps(one))[29], forwards[29])


def test_length_of_the_run_changes_no_sample():
    assert same(training_sequences(samples=1000)[17], training_sequences()[17])


def test_same_samples_in_every_process():
    """Hash seeds and processes change nothing; the sum is that of this process."""
    program = """
from tests.data.test_order import training_sequences, packed
sequences = training_sequences()
print([sequences[i]["position_ids"].tolist() + sequences[i]["input_ids"].tolist() for i in range(20)])
"""
    sequences = training_sequences()
    here = [sequences[i]["position_ids"].tolist() + sequences[i]["input_ids"].tolist() for i in range(20)]
    environment = {**os.environ, "PYTHONHASHSEED": "99", "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert run.stdout.strip() == str(here)


def test_golden_draws():
    """The very numbers of seed 3: a change here changes every run's data and must be meant."""
    sequences = training_sequences()
    assert [sequences.row_of(index) for index in range(7)] == [5, 3, 2, 6, 1, 0, 4]
    assert sequences[0]["position_ids"].tolist() == [0, 1, 2, 22, 23, 24, 25, 26]
    assert sequences[0]["input_ids"].tolist() == [5000, 5001, 5002, 5025, 5026, 5027, 5028, 5029]


def as_read(sequences, ranks):
    """Per optimizer step, what all ranks read together: through the trainer's sampler and accelerate's sharding."""
    steps = []
    loaders = [
        prepare_data_loader(
            DataLoader(sequences, batch_size=8 // ranks, sampler=SequentialSampler(sequences), collate_fn=collate),
            device=torch.device("cpu"),
            num_processes=ranks,
            process_index=rank,
            put_on_device=False,
        )
        for rank in range(ranks)
    ]
    for parts in zip(*loaders, strict=True):
        ids = torch.cat([part["input_ids"] for part in parts])
        places = torch.cat([part["position_ids"].expand_as(part["input_ids"]) for part in parts])
        steps.append(sorted(zip(ids.tolist(), places.tolist(), strict=True)))
    return steps


@pytest.mark.parametrize("ranks", [2, 4])
def test_pose_reads_the_same_data_on_any_number_of_ranks(ranks):
    """Tokens and positions of every global batch, over several epochs of 7 documents."""
    alone = as_read(training_sequences(samples=32), 1)
    assert as_read(training_sequences(samples=32), ranks) == alone
    assert len(alone) == 4 and len({str(step) for step in alone}) == 4


def test_loader_processes_change_nothing():
    batches = []
    for workers in (0, 2):
        loader = DataLoader(training_sequences(samples=12), batch_size=4, num_workers=workers, collate_fn=collate)
        batches.append(list(loader))
    assert len(batches[0]) == 3
    assert all(same(one, other) for one, other in zip(*batches, strict=True))


# --- collate --------------------------------------------------------------------------------------------------------


def item(length, document=0):
    return {
        "input_ids": torch.arange(1, length + 1),
        "labels": torch.arange(1, length + 1),
        "position_ids": torch.arange(length) * 2,
        "document_ids": torch.full((length,), document, dtype=torch.int32),
    }


def test_golden_padding():
    batch = collate([item(2), item(4)], pad_token_id=9)
    assert {name: values.tolist() for name, values in batch.items()} == {
        "input_ids": [[1, 2, 9, 9], [1, 2, 3, 4]],
        "labels": [[1, 2, -100, -100], [1, 2, 3, 4]],
        "position_ids": [[0, 2, 2, 2], [0, 2, 4, 6]],
        "document_ids": [[0, 0, -1, -1], [0, 0, 0, 0]],
    }
    assert batch["document_ids"].dtype == torch.int32


def test_padding_to_a_multiple():
    assert collate([item(5), item(3)], multiple_of=4)["input_ids"].shape == (2, 8)
    assert collate([item(4)], multiple_of=4)["input_ids"].shape == (1, 4)


def test_a_full_batch_says_where_documents_begin():
    """By the names that transformers' collators use, over all sequences' tokens; not where padding is."""
    item = {name: torch.arange(5) for name in ("input_ids", "labels", "position_ids")}
    first = {**item, "document_ids": torch.tensor([0, 0, 0, 1, 2], dtype=torch.int32)}
    second = {**item, "document_ids": torch.tensor([2, 2, 2, 2, 2], dtype=torch.int32)}
    batch = collate([first, second])
    assert batch["cu_seq_lens_q"].tolist() == batch["cu_seq_lens_k"].tolist() == [0, 3, 4, 5, 10]
    assert batch["cu_seq_lens_q"].dtype == torch.int32
    assert batch["max_length_q"] == batch["max_length_k"] == 5
    assert batch["position_ids"].tolist() == [[0, 1, 2, 3, 4]], "the same in every sequence: once"
    assert "cu_seq_lens_q" not in collate([first, second], multiple_of=4)
