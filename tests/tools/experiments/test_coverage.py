"""Counts of relative distances: by hand, and against counting pair by pair."""

from itertools import pairwise

import numpy as np
import pytest

from tools.experiments.pose_coverage import bins_of, count_pairs, summarise


def one_document(*positions):
    return np.array(positions), np.zeros(len(positions), np.int64)


def pair_by_pair(sequences, target):
    """Every query with every key before it in its document, and with itself."""
    pairs = np.zeros(target, np.int64)
    for positions, owners in sequences:
        for query in range(len(positions)):
            for key in range(query + 1):
                if owners[query] == owners[key] >= 0:
                    pairs[positions[query] - positions[key]] += 1
    return pairs


def test_golden_sequence_with_a_skip():
    """Worked by hand: 0 1 | 5 6 7: within the chunks 1 + 2 pairs at distance 1 and one at 2, between them 4 to 7."""
    assert count_pairs([one_document(0, 1, 5, 6, 7)], 8).tolist() == [5, 3, 1, 0, 1, 2, 2, 1]


def test_golden_sequence_of_two_documents_with_padding():
    """Worked by hand: 3 tokens, 2 tokens whose positions continue, and padding."""
    sequence = np.array([0, 1, 2, 3, 4, 4]), np.array([0, 0, 0, 1, 1, -1])
    assert count_pairs([sequence], 5).tolist() == [5, 3, 1, 0, 0]


@pytest.mark.parametrize("seed", range(4))
def test_any_sequences_as_counted_pair_by_pair(seed):
    """Random positions, several documents, padding at the end."""
    rng = np.random.default_rng(seed)
    target = int(rng.integers(2, 60))
    sequences = []
    for _ in range(5):
        count = int(rng.integers(1, target + 1))
        owners = np.sort(rng.integers(0, 3, count))
        owners[count - int(rng.integers(0, count)) :] = -1
        sequences.append((np.sort(rng.choice(target, count, replace=False)), owners))
    np.testing.assert_array_equal(count_pairs(sequences, target), pair_by_pair(sequences, target))


def test_summary_and_bins():
    """Worked by hand from 10 queries: distance 3 was never seen."""
    pairs = np.array([10, 8, 4, 0, 2, 2, 1, 1])
    found = {"from": 1, "to": 7, "seen": 6 / 7, "longest": 7, "least": 0, "median": 2.0}
    assert summarise(pairs) == found | {"least_share": 0.0, "median_share": 0.2}
    assert summarise(pairs, 4)["seen"] == 1.0 and summarise(pairs, 4)["least_share"] == 0.1
    bins = bins_of(pairs, per_octave=1)
    assert [(each["from"], each["to"], each["pairs"]) for each in bins] == [
        (1, 1, 8),
        (2, 3, 4),
        (4, 7, 6),
    ]
    shares = {
        "seen": 0.5,
        "share": 0.2,
        "least": 0.0,
        "most": 0.4,
        "whole_rows": pytest.approx((6 / 8 + 5 / 8) / 2),
    }
    assert bins[1] == {"from": 2, "to": 3, "pairs": 4} | shares


@pytest.mark.parametrize("target", [2, 1000, 1024])
@pytest.mark.parametrize("per_octave", [1, 8])
def test_bins_hold_every_distance_once(target, per_octave):
    bins = bins_of(np.arange(target, 0, -1), per_octave)
    assert bins[0]["from"] == 1 and bins[-1]["to"] == target - 1
    assert all(one["to"] + 1 == other["from"] for one, other in pairwise(bins))


@pytest.mark.parametrize("positions", [(0, 8), (-1, 2), (3, 1)])
def test_positions_that_are_none(positions):
    with pytest.raises(ValueError, match=r"must rise strictly within 0 \.\. 7"):
        count_pairs([one_document(*positions)], 8)
