"""Mixed sources: shares of the tokens, and sample i a pure function of (seed, i), however it is asked for."""

import json
import math
import pickle
import random
from collections import Counter

import datasets
import numpy as np
import pytest
import torch
from accelerate.data_loader import BatchSamplerShard
from scipy.stats import chisquare
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from tape_ds.data.mix import BLOCK, MixedSequences, mix
from tape_ds.data.order import TrainingSequences, collate
from tape_ds.data.pose import Pose, PoseSequences
from tape_ds.data.stream import Stream, StreamedSequences
from tests.data.conftest import same
from tests.data.test_stream import GLOBAL_BATCH, batches_of_ranks

WINDOW = 8
SHARES = {"books": 0.6, "code": 0.3, "sums": 0.1}
SIZES = {"books": 50, "code": 7, "sums": 12}  # sequences of each source; code comes round again soon
FIRST = {"books": 1000, "code": 2000, "sums": 3000}  # a token of sequence n is FIRST + n


def stored(spec, lengths):
    """Packed sequences of so many tokens, each sequence of one token over and over."""
    ids = [[FIRST[spec] + number] * int(length) for number, length in enumerate(lengths)]
    return datasets.Dataset.from_dict({"input_ids": ids, "document_ids": [[0] * len(sequence) for sequence in ids]})


def weighted(shares):
    """A recipe's ``train_data``."""
    return [{"source": spec, "weight": share} for spec, share in shares.items()]


def mixed(samples=2000, seed=3, shares=SHARES, lengths=None, pose=None):
    """Mixed packed sequences; ``lengths``: tokens of each sequence of a source, all of a window where it is not
    there."""

    def build(specs, own):
        (spec,) = specs
        sizes = (lengths or {}).get(spec, [WINDOW] * SIZES[spec])
        return TrainingSequences(stored(spec, sizes), samples=samples, seed=own, pose=pose)

    return mix(weighted(shares), build, samples=samples, seed=seed)


@pytest.fixture
def folder(tmp_path):
    """Two sources of three and five shards."""
    for source, shards in {"a": 3, "b": 5}.items():
        (tmp_path / source).mkdir()
        for shard in range(shards):
            lines = [{"body": f"{source}{shard}.{number} " + "tape " * (number % 9)} for number in range(12)]
            (tmp_path / source / f"{shard}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


@pytest.fixture
def streamed(folder, tokenizer):
    """Makes mixed streams over ``folder``."""

    def make(samples=96, seed=3, workers=6):
        def build(specs, own):
            return StreamedSequences(specs, tokenizer, WINDOW, samples=samples, seed=own, workers=workers)

        shares = {f"jsonl:{folder}/{source}/*.jsonl#body": share for source, share in {"a": 0.75, "b": 0.25}.items()}
        return mix(weighted(shares), build, samples=samples, seed=seed)

    return make


# --- shares ---------------------------------------------------------------------------------------------------------


def test_shares_of_tokens_are_the_weights_within_the_error_of_drawing():
    """Over 2,000 sequences each within two standard deviations of a binomial; over forty seeds nothing is left to
    chance."""
    sequences = mixed()
    given = Counter()
    for item in map(sequences.__getitem__, range(2000)):
        given[next(spec for spec in FIRST if item["input_ids"][0] // 1000 * 1000 == FIRST[spec])] += WINDOW
    assert given == sequences.tokens(2000)
    for spec, share in SHARES.items():
        assert abs(given[spec] / (2000 * WINDOW) - share) < 2 * math.sqrt(share * (1 - share) / 2000), spec
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


# --- order ----------------------------------------------------------------------------------------------------------


def test_each_source_goes_through_epochs_of_its_own():
    """Its samples are those of its own sequences in order; no sequence comes again before all others of the source have
    come."""
    sequences = mixed()
    for number, (spec, part) in enumerate(zip(SHARES, sequences.parts, strict=True)):
        own = [index for index in range(2000) if sequences.place(index)[0] == number]
        assert len(own) > 2 * SIZES[spec]
        assert all(same(sequences[index], part.sequences[count]) for count, index in enumerate(own))
        first = [int(sequences[index]["input_ids"][0]) for index in own]
        for start in range(0, len(first) - SIZES[spec], SIZES[spec]):
            assert len(set(first[start : start + SIZES[spec]])) == SIZES[spec]


def test_a_description_says_how_often_a_source_repeats():
    sequences = mixed(samples=400)
    books, code, sums = sequences.counts(400)
    assert sequences.origin.splitlines() == [
        f"60 % books: {books} of 400 sequences, {books / 50:.2f} times through its 50 sequences",
        f"30 % code: {code} of 400 sequences, {code / 7:.2f} times through its 7 sequences",
        f"10 % sums: {sums} of 400 sequences, {sums / 12:.2f} times through its 12 sequences",
    ]
    assert code / 7 > 10


def test_order_of_asking_and_length_of_the_run_are_irrelevant():
    expected = list(map(mixed().__getitem__, range(300)))
    for index in random.Random(0).sample(range(300), 60):
        assert same(mixed(samples=300)[index], expected[index])
    sequences = pickle.loads(pickle.dumps(mixed(samples=10**9)))
    assert all(same(sequences[index], expected[index]) for index in reversed(range(0, 300, 7)))


@pytest.mark.parametrize("workers", [1, 4])
def test_places_are_counted_across_blocks(streamed, workers):
    """By counting every earlier sample of the source and the worker one by one, beyond two blocks of draws."""
    sequences = streamed(samples=3 * BLOCK, workers=workers)
    assert [part.stream_workers for part in sequences.parts] == [min(workers, 3), workers]
    seen = Counter()
    for index in range(2 * BLOCK + 100):
        source, own = sequences.place(index)
        stream_workers = sequences.parts[source].stream_workers
        assert own == seen[source, index % stream_workers] * stream_workers + index % stream_workers
        seen[source, index % stream_workers] += 1
    fresh = streamed(samples=3 * BLOCK, workers=workers)
    assert fresh.place(2 * BLOCK + 99) == (source, own)


def test_sources_of_one_size_are_drawn_independently():
    """The same chunks and positions for the n-th sample of every source would halve what PoSE shows."""
    lengths = {"books": [40] * 20, "code": [40] * 20}
    sequences = mixed(shares={"books": 1, "code": 1}, lengths=lengths, pose=PoseSequences(8, 64, Pose(chunks=2)))
    one, other = (part.sequences for part in sequences.parts)
    assert sum(torch.equal(one[n]["position_ids"], other[n]["position_ids"]) for n in range(100)) < 10
    assert not np.array_equal(one.order(0), other.order(0))


# --- processes and resuming -----------------------------------------------------------------------------------------


def keys(items):
    return sorted((*item["input_ids"].tolist(), *item["position_ids"].tolist()) for item in items)


@pytest.mark.parametrize("kind", ["packed", "pose", "streamed"])
@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 1)])
def test_resumed_on_any_number_of_ranks(kind, before, after, streamed):
    """A run of two parts sees the very samples of an unbroken one: no sample twice, none skipped."""

    def make():
        if kind == "streamed":
            return streamed()
        return mixed(samples=96, pose=PoseSequences(6, 64, Pose(chunks=2)) if kind == "pose" else None)

    sequences = make()
    expected = [sequences[index] for index in range(96)]
    step = 0
    for ranks, steps in ((before, range(3)), (after, range(3, 8))):
        for items in batches_of_ranks(make, ranks, steps):
            assert keys(items) == keys(expected[step * GLOBAL_BATCH : (step + 1) * GLOBAL_BATCH])
            step += 1
    assert step == 8


@pytest.mark.parametrize("workers", [0, 2])
def test_loader_processes_change_nothing(streamed, workers):
    for sequences in (mixed(samples=24), streamed(samples=24)):
        expected = [sequences[index] for index in range(24)]
        batches = list(DataLoader(sequences, batch_size=4, num_workers=workers, collate_fn=collate))
        assert len(batches) == 6
        for step, batch in enumerate(batches):
            assert same(batch, collate(expected[4 * step : 4 * step + 4]))


def test_a_rank_opens_its_own_stream_workers_alone(streamed, monkeypatch):
    """Two ranks with micro-batches of 1 over 2 workers of each source: each reads one of each."""
    opened = set()
    real = Stream.tokens

    def spy(stream, number, skip):
        opened.add((stream.shards[0].name, len(stream.shards), number))
        return real(stream, number, skip)

    monkeypatch.setattr(Stream, "tokens", spy)
    for rank in (0, 1):
        sequences = streamed(workers=2)
        opened.clear()
        for (index,) in BatchSamplerShard(BatchSampler(SequentialSampler(sequences), 1, True), 2, rank):
            sequences[index]
        assert {number for *_, number in opened} == {rank} and len(opened) == 2


def test_samples_that_there_are_not():
    for index in (-1, 2000):
        with pytest.raises(IndexError):
            mixed()[index]


def test_the_draws_are_frozen():
    """A run that goes on under a later version must find its place: these change on purpose alone."""
    sequences = MixedSequences(mixed().parts, samples=2000, seed=42)
    assert [sequences.place(index) for index in (0, 1, 2, 3, 999, 20_000)] == [
        (0, 0),
        (2, 0),
        (0, 1),
        (0, 2),
        (0, 600),
        (0, 11894),
    ]
    assert BLOCK == 2**14
