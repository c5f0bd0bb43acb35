"""Mixed sources: shares of the tokens, and sample i a pure function of (seed, i), however it is asked for."""

import math
from collections import Counter

import datasets
import numpy as np
import pytest
import torch
from scipy.stats import chisquare

from tape_ds.data.mix import BLOCK, MixedSequences, mix
from tape_ds.data.order import TrainingSequences
from tape_ds.data.pose import Pose, PoseSequences
from tape_ds.data.stream import StreamedSequences
from tests.data.conftest import same

WINDOW = 8
SHARES = {"books": 0.6, "code": 0.3, "sums": 0.1}
# sequences of each source; code comes round again soon
SIZES = {"books": 50, "code": 7, "sums": 12}
FIRST = {"books": 1000, "code": 2000, "sums": 3000}  # a token of sequence n is FIRST + n


def stored(spec, lengths):
    """Packed sequences of so many tokens, each sequence of one token over and over."""
    ids = [[FIRST[spec] + number] * int(length) for number, length in enumerate(lengths)]
    return datasets.Dataset.from_dict(
        {"input_ids": ids, "document_ids": [[0] * len(sequence) for sequence in ids]}
    )


def weighted(shares):
    return [{"source": spec, "weight": share} for spec, share in shares.items()]


def mixed(samples=2000, seed=3, shares=SHARES, lengths=None, pose=None):
    """Mixed packed sequences; ``lengths``: tokens of each sequence of a source, all of a window where it is not
    there."""

    def build(specs, own):
        (spec,) = specs
        sizes = (lengths or {}).get(spec, [WINDOW] * SIZES[spec])
        return TrainingSequences(stored(spec, sizes), samples=samples, seed=own, pose=pose)

    return mix(weighted(shares), build, samples=samples, seed=seed)


def test_shares_of_tokens_are_the_weights_within_the_error_of_drawing():
    """Each within two standard deviations of a binomial; over forty seeds within chance."""
    sequences = mixed()
    given = Counter()
    for item in map(sequences.__getitem__, range(2000)):
        given[
            next(spec for spec in FIRST if item["input_ids"][0] // 1000 * 1000 == FIRST[spec])
        ] += WINDOW
    assert given == sequences.tokens(2000)
    for spec, share in SHARES.items():
        assert abs(given[spec] / (2000 * WINDOW) - share) < 2 * math.sqrt(
            share * (1 - share) / 2000
        ), spec
    counts = np.sum([mixed(seed=seed).counts(2000) for seed in range(40)], axis=0)
    assert chisquare(counts, 40 * 2000 * np.array(list(SHARES.values()))).pvalue > 0.01


def test_weights_are_shares_of_tokens_where_sequences_are_short():
    """Sequences of 2, 3 and 4 tokens against sequences of 16, half of the tokens each: five sequences and a third to
    one."""
    lengths = {"books": [2, 3, 4] * 10, "code": [16] * 7}
    sequences = mixed(samples=30_000, shares={"books": 0.5, "code": 0.5}, lengths=lengths)
    assert sequences.probabilities == pytest.approx((16 / 19, 3 / 19), rel=1e-12)
    expected = np.array(sequences.probabilities) * [3, 16]
    assert expected / expected.sum() == pytest.approx([0.5, 0.5], rel=1e-12)
    tokens, counts = sequences.tokens(30_000), sequences.counts(30_000)
    assert tokens["books"] / sum(tokens.values()) == pytest.approx(0.5, abs=0.01)
    assert counts[0] / sum(counts) == pytest.approx(16 / 19, abs=0.01)


@pytest.mark.parametrize("pose", [None, PoseSequences(6, 64, Pose(chunks=2))])
def test_tokens_are_counted_without_reading_them(pose):
    rng = np.random.default_rng(0)
    lengths = {spec: rng.integers(2, 12, size) for spec, size in SIZES.items()}
    sequences = mixed(samples=200, lengths=lengths, pose=pose)
    given = Counter()
    for index in range(200):
        if index in (0, 1, 57, 130):
            assert sequences.tokens(index) == {spec: given[spec] for spec in SHARES}
        source, _ = sequences.place(index)
        given[sequences.parts[source].spec] += len(sequences[index]["input_ids"])
    assert sequences.tokens(200) == given


def test_each_source_goes_through_epochs_of_its_own():
    sequences = mixed()
    for number, (spec, part) in enumerate(zip(SHARES, sequences.parts, strict=True)):
        own = [index for index in range(2000) if sequences.place(index)[0] == number]
        assert len(own) > 2 * SIZES[spec]
        assert all(same(sequences[index], part.sequences[count]) for count, index in enumerate(own))
        first = [int(sequences[index]["input_ids"][0]) for index in own]
        for start in range(0, len(first) - SIZES[spec], SIZES[spec]):
            assert len(set(first[start : start + SIZES[spec]])) == SIZES[spec]


def test_places_are_counted_across_blocks(tokenizer):
    def streamed():
        def build(specs, own):
            return StreamedSequences(
                specs, tokenizer, WINDOW, samples=3 * BLOCK, seed=own, workers=4
            )

        return mix(
            weighted({"stdlib": 0.75, "stdlib:typing.py": 0.25}), build, samples=3 * BLOCK, seed=3
        )

    sequences = streamed()
    assert [part.stream_workers for part in sequences.parts] == [4, 1]
    seen = Counter()
    for index in range(2 * BLOCK + 100):
        source, own = sequences.place(index)
        workers = sequences.parts[source].stream_workers
        assert own == seen[source, index % workers] * workers + index % workers
        seen[source, index % workers] += 1
    assert streamed().place(2 * BLOCK + 99) == (source, own)


def test_sources_of_one_size_are_drawn_independently():
    lengths = {"books": [40] * 20, "code": [40] * 20}
    sequences = mixed(
        shares={"books": 1, "code": 1}, lengths=lengths, pose=PoseSequences(8, 64, Pose(chunks=2))
    )
    one, other = (part.sequences for part in sequences.parts)
    assert (
        sum(torch.equal(one[n]["position_ids"], other[n]["position_ids"]) for n in range(100)) < 10
    )
    assert not np.array_equal(one.order(0), other.order(0))


def test_the_draws_are_frozen():
    """A run that goes on under a later version must find its place: these change on purpose alone."""
    sequences = MixedSequences(mixed().parts, samples=2000, seed=42)
    places = [sequences.place(index) for index in (0, 1, 2, 3, 999, 20_000)]
    assert places == [(0, 0), (2, 0), (0, 1), (0, 2), (0, 600), (0, 11894)]
    assert BLOCK == 2**14
