"""A run over sources with weights, streamed, as a user types it: resumed, and on another number of processes."""

import json
import shutil

import pytest
import torch

from tape_ds.checkpoint import trained
from tests.integration.conftest import forked
from tests.integration.test_pretrain import SCRIPT, alike, arguments, metrics, texts  # noqa: F401 - a fixture

STEPS, SAVED = 12, 5


def flags(texts, output, *more):  # noqa: F811 - the fixture's value
    entries = [
        {"source": f"text:{texts}/train[0-5].txt", "weight": 0.7},
        {"source": f"text:{texts}/train[67].txt", "weight": 0.3},
    ]
    changes = {
        "train_data": json.dumps(entries),
        "eval_data": "",
        "max_steps": STEPS,
        "save_steps": SAVED,
        "save_total_limit": 9,
    }
    words = [part for name, value in changes.items() for part in (f"--{name}", str(value))]
    return [*arguments(texts, output), *words, *more]


@pytest.mark.slow
def test_resumed_equals_uninterrupted_and_one_process_equals_two(texts, tmp_path):  # noqa: F811
    """From the checkpoint of step 5, to the last digit; the second source is read more than once on the way."""
    whole, resumed, alone = (tmp_path / name for name in ("whole", "resumed", "alone"))
    ended = forked(SCRIPT, *flags(texts, whole))
    assert ended.code == 0, ended.output[-4000:]
    assert "70 % text:" in ended.output and "tokens of each source: " in ended.output
    shutil.copytree(whole / f"checkpoint-{SAVED}", resumed / f"checkpoint-{SAVED}")
    shutil.copy(whole / "metrics.jsonl", resumed)
    ended = forked(SCRIPT, *flags(texts, resumed, "--resume", "true"))
    assert ended.code == 0, ended.output[-4000:]
    assert metrics(resumed) == metrics(whole) and len(metrics(whole)) == STEPS
    mine, other = (trained.load_trained(output / "trained") for output in (resumed, whole))
    for (name, a), b in zip(mine.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name
    given = [json.loads((output / "results" / "run.json").read_text())["figures"] for output in (resumed, whole)]
    assert given[0]["tokens_by_source"] == given[1]["tokens_by_source"]
    ended = forked(SCRIPT, *flags(texts, alone, "--deepspeed", "null"), processes=1)
    assert ended.code == 0, ended.output[-4000:]
    alike(alone, whole)
