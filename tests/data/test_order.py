"""Training samples: a pure function of (seed, index), whoever asks, and the tensors they come in."""

import datasets
import torch

from tape_ds.data.order import TrainingSequences, collate
from tape_ds.data.pose import Pose, PoseSequences


def documents(count=7, tokens=40):
    return datasets.Dataset.from_dict(
        {"input_ids": [list(range(n * 1000, n * 1000 + tokens)) for n in range(count)]}
    )


def training_sequences(**changes):
    settings = {
        "stored": documents(),
        "samples": 30,
        "seed": 3,
        "pose": PoseSequences(8, 64, Pose(chunks=2)),
        **changes,
    }
    return TrainingSequences(settings.pop("stored"), **settings)


def test_golden_packed_item():
    """A sequence of three documents: first tokens are no targets, positions go on, ids say where attention ends."""
    sequences = datasets.Dataset.from_dict(
        {"input_ids": [[5, 6, 7, 8, 9, 4]], "document_ids": [[0, 0, 0, 1, 1, 2]]}
    )
    item = TrainingSequences(sequences, samples=1, seed=0)[0]
    assert {name: values.tolist() for name, values in item.items()} == {
        "input_ids": [5, 6, 7, 8, 9, 4],
        "labels": [-100, 6, 7, -100, 9, -100],
        "position_ids": [0, 1, 2, 3, 4, 5],
        "document_ids": [0, 0, 0, 1, 1, 2],
    }
    assert {name for name, values in item.items() if values.dtype != torch.int64} == {
        "document_ids"
    }


def test_golden_item_of_a_sequence_taken_for_one_document():
    """The same sequence with attention across its borders: only the sequence's first token is no target."""
    sequences = datasets.Dataset.from_dict(
        {"input_ids": [[5, 6, 7, 8, 9, 4]], "document_ids": [[0, 0, 0, 1, 1, 2]]}
    )
    item = TrainingSequences(sequences, samples=1, seed=0, attend_across=True)[0]
    assert item["document_ids"].tolist() == [0, 0, 0, 0, 0, 0]
    assert item["labels"].tolist() == [-100, 6, 7, 8, 9, 4]


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


def test_every_epoch_is_another_permutation():
    sequences = training_sequences(samples=70)
    orders = [tuple(sequences.row_of(epoch * 7 + at) for at in range(7)) for epoch in range(10)]
    assert all(sorted(order) == list(range(7)) for order in orders)
    assert len(set(orders)) > 7
    assert orders != [
        tuple(training_sequences(seed=4, samples=70).row_of(e * 7 + at) for at in range(7))
        for e in range(10)
    ]


def test_golden_draws():
    """The very numbers of seed 3: a change here changes every run's data and must be meant."""
    sequences = training_sequences()
    assert [sequences.row_of(index) for index in range(7)] == [5, 3, 2, 6, 1, 0, 4]
    assert sequences[0]["position_ids"].tolist() == [0, 1, 2, 22, 23, 24, 25, 26]
    assert sequences[0]["input_ids"].tolist() == [5000, 5001, 5002, 5025, 5026, 5027, 5028, 5029]


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
