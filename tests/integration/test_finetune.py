"""Chat tuning as a user types it, on two processes: what is learnt, resumed, and learnt by one as well."""

import json

import pytest
import torch

from tape_ds.checkpoint import trained
from tests.data.chat.chatml import conversation, write
from tests.integration.conftest import forked

SCRIPT = "launchers/finetune.py"
STEPS, SAVED = 16, 8
TEMPLATE = (
    "{% for m in messages %}{{ '<s>' + m['role'] + '\n' + m['content'] + '</s>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<s>assistant\n' }}{% endif %}"
)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Conversations of one answer and of two, a template, and a cache that all launches share."""
    folder = tmp_path_factory.mktemp("data")
    talks = [
        conversation(f"function_{n % 8}?", "return value", "and?", "def function")[: 2 + 2 * (n % 2)] for n in range(60)
    ]
    write(folder / "chat.jsonl", talks)
    (folder / "mine.jinja").write_text(TEMPLATE)
    return folder


def arguments(tiny, data, output, stage="zero2"):
    """A recipe in miniature; sequences are longer than the model was made for."""
    flags = {
        "model": tiny / "model",
        "train_data": f"jsonl:{data}/chat.jsonl",
        "chat_template": data / "mine.jinja",
        "data_cache": data / "cache",
        "eval_share": 0.1,
        "max_tokens": 96,
        "global_batch_size": 4,
        "per_device_train_batch_size": 2,
        "max_steps": STEPS,
        "save_steps": SAVED,
        "save_total_limit": 2,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "bf16": "false",
        "deepspeed": stage,
        "output_dir": output,
    }
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


def metrics(output):
    """What does not depend on time, of each line of the run's metrics."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["grad_norm"], line["learning_rate"]) for line in lines]


@pytest.mark.slow
def test_two_processes_learn_resume_and_equal_one(tiny, data, tmp_path):
    """ZeRO-2 on two; again from the first half's checkpoint; and one process without an engine, in another order of
    sums."""
    two, rest, one = (tmp_path / name for name in ("two", "rest", "one"))
    ended = forked(SCRIPT, *arguments(tiny, data, two))
    assert ended.code == 0, ended.output[-4000:]
    losses = [loss for _, loss, _, _ in metrics(two)]
    before, after = json.loads((two / "results" / "run.json").read_text())["figures"]["answer_loss"]
    assert losses[-1] < losses[0] - 2 and after["nll"] < before["nll"] - 2 and before["examples"] == 6

    ended = forked(SCRIPT, *arguments(tiny, data, rest), "--resume_from_checkpoint", str(two / f"checkpoint-{SAVED}"))
    assert ended.code == 0, ended.output[-4000:]
    assert metrics(rest) == metrics(two)[SAVED:]
    mine, other = (trained.load_trained(output / "trained") for output in (rest, two))
    for (name, a), b in zip(mine.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name

    ended = forked(SCRIPT, *arguments(tiny, data, one, "null"), "--max_steps", "2", processes=1)
    assert ended.code == 0, ended.output[-4000:]
    assert metrics(one)[0][1] == pytest.approx(metrics(two)[0][1], rel=1e-5), "the same sequences and weights"
    assert metrics(one)[0][2] == pytest.approx(metrics(two)[0][2], rel=1e-4), "the same gradient"
