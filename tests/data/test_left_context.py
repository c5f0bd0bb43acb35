"""Left contexts of targets, their histogram, and the weights of EXACT that follow, against sums done by hand."""

import numpy as np
import pytest
import torch

from tape_ds.data.left_context import (
    Buckets,
    ExactWeights,
    Histogram,
    contexts_of,
    left_context,
    measure,
)
from tape_ds.data.order import PADDING, collate, item
from tape_ds.errors import UserError

TAIL = Buckets(4, 2.0)


def sample(*documents):
    """A packed sequence; a document's first token is no target."""
    owners = np.repeat(np.arange(len(documents)), documents)
    targets = np.flatnonzero(np.diff(owners) == 0) + 1
    return item(np.arange(len(owners)), targets, document_ids=owners)


def test_a_context_ends_where_its_document_begins():
    documents = torch.tensor([[0, 0, 0, 1, 1, 2], [0, 0, 0, 0, PADDING, PADDING]])
    assert left_context(documents).tolist() == [[0, 1, 2, 0, 1, 0], [0, 1, 2, 3, 0, 1]]
    assert contexts_of(sample(3, 1, 2)).tolist() == [1, 2, 1]


def test_jumps_of_positions_add_no_context():
    """PoSE: a target sees the tokens of the window, however far away their positions say they are."""
    jumping = item([5, 6, 7, 8], slice(1, None), np.array([0, 1, 900, 901]))
    assert contexts_of(jumping).tolist() == [1, 2, 3]


def test_only_targets_count():
    """As with ``targets: answers``: the prompt has no part in the histogram."""
    answer = item(np.arange(9), slice(6, None))
    assert contexts_of(answer).tolist() == [6, 7, 8]


def test_a_histogram_by_hand():
    """Contexts 1 .. 9 of one document, 1 .. 2 of another: 4 below 4, then 4 .. 7 and 8 .. 9."""
    found, samples = measure([sample(10, 3)], TAIL)
    assert samples == 1 and found.longest == 9
    assert found.edges.tolist() == [0, 2, 4, 8] and found.counts.tolist() == [2, 3, 4, 2]
    assert str(found) == "0 to 1 18.2%, 2 to 3 27.3%, 4 to 7 36.4%, from 8 18.2% (the longest: 9)"


def test_sources_count_by_their_shares():
    contexts = [(np.array([1, 1]), 0.25), (np.array([5]), 0.5)]
    assert Histogram.of(contexts, TAIL).counts.tolist() == [0.5, 0, 0.5]


def test_weights_by_hand():
    """4 targets in one bucket of the tail and 2 in the next: 1 + 0.6 x 6 / (2 x 4) and 1 + 0.6 x 6 / (2 x 2)."""
    histogram, samples = measure([sample(10, 3)], TAIL)
    weights = ExactWeights.measured(histogram, TAIL, 0.6, samples)
    assert weights.weights == pytest.approx([1.45, 1.9])
    found = weights(torch.tensor([[0] * 10 + [1] * 3]))
    assert found.dtype == torch.float32
    assert found[0].tolist() == pytest.approx(
        [1, 1, 1, 1, 1.45, 1.45, 1.45, 1.45, 1.9, 1.9, 1, 1, 1]
    )
    assert "below 4 x1, 4 to 7 x1.45, from 8 x1.9" in str(weights)


@pytest.mark.parametrize("ratio", [1.3, 2.0, 10.0])
def test_every_bucket_of_the_tail_gets_the_same_part_of_the_extra_weight(ratio):
    buckets = Buckets(7, ratio)
    sequences = [sample(*np.random.default_rng(seed).integers(1, 90, 6)) for seed in range(5)]
    histogram, samples = measure(sequences, buckets)
    weights = ExactWeights.measured(histogram, buckets, 2.5, samples)
    contexts = np.concatenate([contexts_of(each) for each in sequences])
    given = torch.cat(
        [weights(each["document_ids"][None])[0, each["labels"] != -100] for each in sequences]
    ).numpy()
    assert (given[contexts < 7] == 1).all()
    assert given[contexts >= 7].mean() == pytest.approx(3.5)
    number = np.searchsorted(weights.edges, contexts, side="right")
    parts = [(given - 1)[number == each].sum() for each in np.unique(number[contexts >= 7])]
    assert parts == pytest.approx([parts[0]] * len(parts), rel=1e-5)


def test_a_bucket_that_was_not_seen_weighs_as_the_rarest():
    histogram, samples = measure([sample(5), sample(5), sample(40)], Buckets(4, 2.0))
    empty = Histogram(
        histogram.edges, np.where(histogram.edges == 8, 0, histogram.counts), histogram.longest
    )
    weights = ExactWeights.measured(empty, Buckets(4, 2.0), 1.0, samples)
    assert weights.weights[1] == weights.weights.max()
    longer = weights(torch.zeros(1, 500, dtype=torch.int32))[0]
    assert longer[-1] == longer[39], (
        "a context beyond those that were counted is in the last bucket"
    )


def test_a_tail_without_targets_is_refused():
    histogram, samples = measure([sample(10, 3)], Buckets(10, 2.0))
    with pytest.raises(UserError, match="no target of the first 1 sequences") as raised:
        ExactWeights.measured(histogram, Buckets(10, 2.0), 1.0, samples)
    (problem,) = raised.value.problems
    assert problem.field == "exact_tail" and "give 4 or less" in problem.remedy
    ExactWeights.measured(
        measure([sample(10, 3)], Buckets(4, 2.0))[0], Buckets(4, 2.0), 1.0, samples
    )


def test_a_batch_brings_its_weights():
    histogram, samples = measure([sample(10, 3)], TAIL)
    weights = ExactWeights.measured(histogram, TAIL, 0.6, samples)
    batch = collate([sample(6), sample(3, 1)], weigh=weights)
    assert batch["target_weights"].shape == (2, 6)
    assert batch["target_weights"][0].tolist() == pytest.approx([1, 1, 1, 1, 1.45, 1.45])
    assert "target_weights" not in collate([sample(6)])
