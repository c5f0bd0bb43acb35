"""The arithmetic launcher on two processes: trained, scored, resumed, and shared otherwise."""

import json
import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tape_ds.checkpoint import trained
from tests.integration.conftest import forked

SCRIPT = "launchers/train_arithmetic.py"
STEPS, SAVED = 30, 15


def arguments(output) -> list[str]:
    """The default recipe in miniature."""
    flags = {
        "max_steps": STEPS,
        "save_steps": SAVED,
        "save_total_limit": 2,
        "logging_steps": 1,
        "held_out_samples": 40,
        "deepspeed": "zero1",
        "output_dir": output,
    }
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


def metrics(output) -> list[tuple]:
    """What does not depend on time, of each line of the run's metrics."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    return [(line["step"], line["loss"], line["grad_norm"], line["learning_rate"]) for line in lines]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """ZeRO-1 on two processes, from beginning to end; folder and output."""
    output = tmp_path_factory.mktemp("two")
    ended = forked(SCRIPT, *arguments(output))
    assert ended.code == 0, ended.output[-4000:]
    return output, ended.output


def test_loss_falls_from_that_of_a_guess_and_answers_are_scored(two):
    output, printed = two
    found = metrics(output)
    assert found[0][1] == pytest.approx(math.log(19), abs=0.3) and found[-1][1] < found[0][1] - 0.5
    figures = json.loads((output / "results" / "run.json").read_text())["figures"]
    assert figures["exact_match"]["all"]["answers"] >= 30
    assert "exact match, all trained lengths" in printed and "2 digits of the second operand" in printed


def test_the_result_is_a_whole_model_that_writes_answers(two):
    """Prompts of unequal length are padded on the left by the tokenizer that lies beside it."""
    model = AutoModelForCausalLM.from_pretrained(two[0] / "trained").eval()
    tokenizer = AutoTokenizer.from_pretrained(two[0] / "trained")
    prompts = tokenizer(["21+3=", "2+3="], return_tensors="pt", padding=True, return_token_type_ids=False)
    assert prompts.input_ids[1, 0] == tokenizer.pad_token_id and prompts.attention_mask[1, 0] == 0
    made = model.generate(**prompts, max_new_tokens=4, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    assert made.shape[0] == 2 and made.shape[1] > prompts.input_ids.shape[1]


def test_resumed_equals_uninterrupted_to_the_last_digit(two, tmp_path):
    """From the first half's checkpoint, in a folder of its own."""
    ended = forked(SCRIPT, *arguments(tmp_path), "--resume_from_checkpoint", str(two[0] / f"checkpoint-{SAVED}"))
    assert ended.code == 0, ended.output[-4000:]
    assert metrics(tmp_path) == metrics(two[0])[SAVED:]
    scores = [(output / "results" / "exact_match.json").read_text() for output in (tmp_path, two[0])]
    assert scores[0] == scores[1]
    mine, other = (trained.load_trained(output / "trained") for output in (tmp_path, two[0]))
    for (name, a), b in zip(mine.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize(
    "processes, flags",
    [
        (2, ["--deepspeed", "zero3"]),
        (2, ["--sequence_parallel_size", "2"]),
        (2, ["--tensor_parallel_size", "2"]),
        (1, []),
    ],
)
def test_however_the_work_is_shared_the_sequences_are_the_same(two, tmp_path, processes, flags):
    """Weights, sequences or heads, whose owners answer together; and one process, which reads what two did."""
    ended = forked(SCRIPT, *arguments(tmp_path), "--max_steps", "3", *flags, processes=processes)
    assert ended.code == 0, ended.output[-4000:]
    (_, mine, my_norm, _), (_, other, norm, _) = metrics(tmp_path)[0], metrics(two[0])[0]
    assert mine == pytest.approx(other, rel=1e-5), "the same weights and sequences"
    assert my_norm == pytest.approx(norm, rel=1e-4), "the same gradient"
    assert json.loads((tmp_path / "results" / "exact_match.json").read_text())


def test_a_dry_run_starts_nothing(tmp_path):
    flags = ["--recipe", "arithmetic/addition_40", "--dry_run", "--output_dir", str(tmp_path / "never")]
    ended = forked(SCRIPT, *flags, processes=1)
    assert ended.code == 0 and "512 sequences = up to 63,488 tokens a step" in ended.output, ended.output
    assert not (tmp_path / "never").exists()
