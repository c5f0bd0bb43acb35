"""The fine-tuning launcher on two processes: what is learnt, resumed, and learnt by one as well."""

import json
import subprocess
import sys

import pytest
import torch

from tape_ds.checkpoint import trained
from tests.integration.conftest import ROOT, forked, make_answers

SCRIPT = "launchers/finetune_scrolls.py"
STEPS, SAVED = 24, 12


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Questions and answers, and a cache that all launches share."""
    return make_answers(tmp_path_factory.mktemp("data"))


def arguments(tiny, data, output, stage="zero2") -> list[str]:
    """A recipe in miniature."""
    flags = {
        "model": tiny / "model",
        "dataset": "quality",
        "data_dir": data,
        "data_cache": data / "cache",
        "max_tokens": 96,
        "answer_tokens": 20,
        "force": "true",  # sequences are longer than the model was made for
        "eval_examples": 9,
        "global_batch_size": 8,
        "per_device_train_batch_size": 2,
        "max_steps": STEPS,
        "save_steps": SAVED,
        "save_total_limit": 2,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "weight_decay": 0.01,
        "activation_checkpointing": "true",
        "bf16": "false",
        "deepspeed": stage,
        "output_dir": output,
    }
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


def metrics(output) -> list[tuple]:
    """What does not depend on time, of each line of the run's metrics."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["grad_norm"], line["learning_rate"]) for line in lines]


@pytest.fixture(scope="module")
def two(tiny, data, tmp_path_factory):
    """ZeRO-2 on two processes, from beginning to end; folder and output."""
    output = tmp_path_factory.mktemp("two")
    ended = forked(SCRIPT, *arguments(tiny, data, output))
    assert ended.code == 0, ended.output[-4000:]
    return output, ended.output


def test_loss_falls_and_held_out_answers_are_foreseen(two):
    output, printed = two
    losses = [loss for _, loss, _, _ in metrics(output)]
    assert losses[-1] < losses[0] - 3
    figures = json.loads((output / "results" / "run.json").read_text())["figures"]
    before, after = figures["answer_loss"]
    assert after["nll"] < before["nll"] - 2 and after["foreseen"] > 0.5 > before["foreseen"]
    assert before["examples"] == after["examples"] == 9
    assert figures["cut"]["train"]["rows"] == 40
    assert "texts cut by" in printed and "scoring 9 answers before training" in printed


def test_the_learning_rate_rises_and_decays_to_its_end(two):
    """Polynomial decay reads its start from the optimizer's ``defaults``; an engine's optimizer has none, and every
    run that asked for it, the TAPE paper's among them, ended before its first step."""
    rates = [rate for _, _, _, rate in metrics(two[0])]
    assert rates == pytest.approx(
        [max(0, 1 - max(0, step - 3) / 21) * min(1, step / 3) * 0.01 for step in range(24)], abs=1e-6
    )


@pytest.mark.slow
def test_one_process_learns_what_two_do(two, tiny, data, tmp_path):
    """And without an engine: sequences have different numbers of targets, and each target weighs the same all the same.
    In fp32, sums taken in another order."""
    flags = [*arguments(tiny, data, tmp_path, "null"), "--eval_examples", "0"]
    ended = forked(SCRIPT, *flags, processes=1)
    assert ended.code == 0, ended.output[-4000:]
    mine, theirs = (metrics(output) for output in (tmp_path, two[0]))
    assert [loss for _, loss, _, _ in mine[:8]] == pytest.approx([loss for _, loss, _, _ in theirs[:8]], abs=1e-3)
    assert mine[0][1] == pytest.approx(theirs[0][1], rel=1e-5), "the same weights and sequences"
    assert mine[0][2] == pytest.approx(theirs[0][2], rel=1e-4), "the same gradient"


@pytest.mark.slow
def test_resumed_equals_uninterrupted_to_the_last_digit(two, tiny, data, tmp_path):
    """From the first half's checkpoint, in a folder of its own."""
    start = str(two[0] / f"checkpoint-{SAVED}")
    ended = forked(SCRIPT, *arguments(tiny, data, tmp_path), "--resume_from_checkpoint", start)
    assert ended.code == 0, ended.output[-4000:]
    assert metrics(tmp_path) == metrics(two[0])[SAVED:]
    mine, other = (trained.load_trained(output / "trained") for output in (tmp_path, two[0]))
    for (name, a), b in zip(mine.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.slow
def test_sharded_weights_are_scored_and_learn_alike(two, tiny, data, tmp_path):
    """ZeRO-3: all ranks gather the weights of every answer that is scored, nine on two ranks."""
    ended = forked(SCRIPT, *arguments(tiny, data, tmp_path, "zero3"), "--max_steps", "2")
    assert ended.code == 0, ended.output[-4000:]
    scores = [json.loads((output / "results" / "answers.json").read_text()) for output in (tmp_path, two[0])]
    assert scores[0]["before"]["nll"] == pytest.approx(scores[1]["before"]["nll"], rel=1e-5)
    assert metrics(tmp_path)[0][1] == pytest.approx(metrics(two[0])[0][1], rel=1e-5)


@pytest.mark.slow
def test_a_dry_run_starts_nothing(tmp_path):
    flags = ["--recipe", "scrolls/qasper", "--model", "smollm2", "--dry_run", "--output_dir", str(tmp_path / "never")]
    ended = subprocess.run([sys.executable, str(ROOT / SCRIPT), *flags], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0 and "64 sequences = up to 524,288 tokens a step" in ended.stdout, ended.stderr
    assert not (tmp_path / "never").exists()
