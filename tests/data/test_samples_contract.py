"""What every kind of samples promises: sample i is a function of (seed, i), whatever order, process or rank asks."""

import functools
import json
import os
import pickle
import subprocess
import sys

import datasets
import numpy as np
import pytest
from accelerate.data_loader import BatchSamplerShard, SkipBatchSampler
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler

from tape_ds.data.chat.sequences import ChatSequences
from tape_ds.data.generated import TASKS
from tape_ds.data.generated.sequences import GeneratedSequences
from tape_ds.data.mix import mix
from tape_ds.data.order import AnswerSequences, NoSamples, RunSamples, TrainingSequences, collate
from tape_ds.data.pack import cut, pack
from tape_ds.data.pose import Pose, PoseSequences
from tape_ds.data.retrieval.sequences import RetrievalForm, RetrievalSequences, writer_of
from tape_ds.data.sources import parse, parse_all
from tape_ds.data.stream import StreamedSequences
from tests.data.conftest import build_tokenizer, same, tokenize

STEP = 12
POSE = PoseSequences(8, 64, Pose(chunks=2))
LENGTHS = [3 + number * 5 % 11 for number in range(29)]
TOKENS = [np.arange(length) + 100 * number for number, length in enumerate(LENGTHS)]


def table(**columns):
    return datasets.Dataset.from_dict({"input_ids": TOKENS, **columns})


def packed(texts, **run):
    stored = list(cut(TOKENS, 8))
    return TrainingSequences(datasets.Dataset.from_list(stored), **run)


def posed(texts, **run):
    return TrainingSequences(table(), pose=POSE, **run)


def streamed(texts, shards="*", **run):
    return StreamedSequences(
        [f"jsonl:{texts}/{shards}.jsonl#t"], build_tokenizer(), 8, workers=6, **run
    )


def mixed(sources, build, **run):
    entries = [{"source": sources[0], "weight": 3}, {"source": sources[1], "weight": 1}]
    return mix(
        entries, lambda specs, seed: build(specs[0], samples=run["samples"], seed=seed), **run
    )


def mixed_streams(texts, **run):
    return mixed(("a*", "b*"), functools.partial(streamed, texts), **run)


def mixed_pose(texts, **run):
    return mixed(("a", "b"), posed, **run)


def answers(texts, **run):
    return AnswerSequences(table(targets=[2] * len(LENGTHS)), step_sequences=STEP, **run)


def conversations(texts, **run):
    owners = [[0] * (length - 1) + [1] for length in LENGTHS]
    targets = [[0, 1] + [0] * (length - 2) for length in LENGTHS]
    return ChatSequences(table(targets=targets, document_ids=owners), step_sequences=STEP, **run)


def generated(texts, **run):
    return GeneratedSequences(TASKS["addition"], (5, 4), step_sequences=STEP, **run)


def retrieval(texts, **run):
    (source,) = parse_all(
        [f"generated:retrieval#families=lookup&rivals=1&questions=1&text=text:{texts}/long.txt"],
        "train_data",
    )
    writer = writer_of(source, build_tokenizer(), texts / "cache")
    return RetrievalSequences(
        source, writer, RetrievalForm(320, PoseSequences(320, 4000, Pose(chunks=2))), **run
    )


KINDS = [
    packed,
    posed,
    streamed,
    mixed_streams,
    mixed_pose,
    answers,
    conversations,
    generated,
    retrieval,
]


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Three shards of one source and five of another, and a long text."""
    folder = tmp_path_factory.mktemp("texts")
    for shard in ("a0", "a1", "a2", "b0", "b1", "b2", "b3", "b4"):
        lines = [
            json.dumps({"t": f"{shard}.{number} " + "tape " * (number % 9)}) for number in range(12)
        ]
        (folder / f"{shard}.jsonl").write_text("\n".join(lines))
    (folder / "long.txt").write_text("tape and other words\n" * 900)
    return folder


@pytest.fixture(params=KINDS, ids=lambda kind: kind.__name__)
def make(request, texts):
    return functools.partial(request.param, texts)


def test_every_class_of_samples_is_here(texts):
    here = {type(kind(texts, samples=1, seed=0)) for kind in KINDS}
    assert here | {NoSamples} == {*RunSamples.__subclasses__(), *AnswerSequences.__subclasses__()}


def test_a_sample_is_a_function_of_seed_and_number(make):
    forwards, backwards, longer = (
        list(make(samples=36, seed=3)),
        make(samples=36, seed=3),
        make(samples=999, seed=3),
    )
    assert len(forwards) == 36
    assert all(same(backwards[index], forwards[index]) for index in reversed(range(36)))
    assert all(same(longer[index], forwards[index]) for index in (35, 0, 17))
    other = make(samples=36, seed=4)
    assert not all(same(other[index], forwards[index]) for index in range(36))
    for outside in (-1, 36):
        with pytest.raises(IndexError):
            backwards[outside]


def test_pickled_at_any_time(make):
    sequences = make(samples=36, seed=3)
    expected = [sequences[index] for index in range(20)]
    copy = pickle.loads(pickle.dumps(sequences))
    assert same(copy[19], expected[19]) and same(copy[0], expected[0])
    assert same(sequences[20], make(samples=36, seed=3)[20]), "the original reads on"


def test_loader_processes_change_nothing(make):
    expected = list(make(samples=24, seed=3))
    batches = list(
        DataLoader(make(samples=24, seed=3), batch_size=4, num_workers=2, collate_fn=collate)
    )
    assert len(batches) == 6
    for step, batch in enumerate(batches):
        assert same(batch, collate(expected[4 * step : 4 * step + 4]))


def as_read(make, ranks, steps):
    """Samples of each global step in ``steps``, read by so many ranks as accelerate shards and skips them."""
    micro = {1: 4, 2: 3, 3: 4}[ranks]
    accumulated = STEP // ranks // micro
    loaders = []
    for rank in range(ranks):
        sequences = make(samples=96, seed=3)
        shard = BatchSamplerShard(
            BatchSampler(SequentialSampler(sequences), micro, True), ranks, rank
        )
        sampler = SkipBatchSampler(shard, skip_batches=steps.start * accumulated)
        loaders.append(iter(DataLoader(sequences, batch_sampler=sampler, collate_fn=list)))
    for _ in steps:
        yield [item for loader in loaders for _ in range(accumulated) for item in next(loader)]


def keys(items):
    return sorted((*item["input_ids"].tolist(), *item["position_ids"].tolist()) for item in items)


@pytest.mark.parametrize(("before", "after"), [(1, 2), (2, 3), (3, 1)])
def test_resumed_on_any_number_of_ranks(make, before, after):
    """A run of two parts sees the very samples of an unbroken one: no sample twice, none skipped."""
    expected = list(make(samples=96, seed=3))
    found = [*as_read(make, before, range(3)), *as_read(make, after, range(3, 8))]
    assert len(found) == 8
    for step, items in enumerate(found):
        assert keys(items) == keys(expected[step * STEP : (step + 1) * STEP])


def drawn(texts):
    """Names and order of files, keys of the cache and samples."""
    source, cache = parse("stdlib"), os.path.join(texts, "cache")
    rows = tokenize([f"jsonl:{texts}/*.jsonl#t"], build_tokenizer(), "train", cache)
    sequences = posed(texts, samples=20, seed=3)
    return [
        source.fingerprint(),
        [document.name for document in source.documents("train")],
        pack(rows, 8, cache)._fingerprint,
        [
            sequences[index]["input_ids"].tolist() + sequences[index]["position_ids"].tolist()
            for index in range(20)
        ],
    ]


@pytest.mark.slow
def test_every_process_draws_the_same(texts):
    """Neither the hash seed nor the locale changes anything, and what one has tokenised another need not."""
    here = drawn(texts)
    program = f"""
import json
from tests.data.conftest import CountingTokenizer
from tests.data.test_samples_contract import drawn
print(json.dumps([drawn({str(texts)!r}), CountingTokenizer.texts]))
"""
    environment = {
        **os.environ,
        "PYTHONHASHSEED": "99",
        "LC_ALL": "C",
        "PYTHONPATH": os.pathsep.join(sys.path),
    }
    run = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert json.loads(run.stdout) == [here, 0]
