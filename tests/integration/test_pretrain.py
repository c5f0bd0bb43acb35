"""The pretraining launcher as a user types it: streamed text and a new model, killed and resumed, on any processes.

One recipe smaller than ``tiny``: streaming puts the order of the data to the test as well, and the weight decay is
large so that a parameter in the wrong group would show.
"""

import json
import math
import time

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tape_ds.checkpoint import trained
from tests.integration.conftest import forked, start

SCRIPT = "launchers/pretrain_c4.py"
STEPS, SAVED, KILLED = 45, 15, 20
VOCABULARY = 330


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    """Folder with eight files to train on, one to score, and a cache that all launches share."""
    folder = tmp_path_factory.mktemp("texts")
    for number in range(9):
        lines = (
            f"def function_{i}(value):\n    return value + {i * number}\n" for i in range(60 * number, 60 * number + 60)
        )
        (folder / f"{'held' if number == 8 else 'train'}{number}.txt").write_text("\n".join(lines))
    return folder


def arguments(texts, output, stage="zero1") -> list[str]:
    """The tiny recipe in miniature."""
    flags = {
        "hidden_size": 48,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "vocab_size": VOCABULARY,
        "position_encoding": "tape",
        "train_data": f"text:{texts}/train*.txt",
        "eval_data": f"text:{texts}/held*.txt",
        "data_cache": texts / "cache",
        "window": 32,
        "streaming": "true",
        "stream_workers": 4,
        "dataloader_num_workers": 1,
        "global_batch_size": 8,
        "per_device_train_batch_size": 2,
        "max_steps": STEPS,
        "save_steps": SAVED,
        "logging_steps": 1,
        "learning_rate": 0.01,
        "weight_decay": 0.5,
        "position_learning_rate": "2x",
        "lr_scheduler_type": "constant_with_warmup",
        "warmup_steps": 4,
        "bf16": "false",
        "deepspeed": stage,
        "output_dir": output,
    }
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


def metrics(output) -> list[tuple]:
    """What does not depend on time, of each line of the run's metrics; position parameters have twice the rate."""
    lines = [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]
    assert all(line["position_learning_rate"] == 2 * line["learning_rate"] for line in lines)
    return [(line["step"], line["loss"], line["grad_norm"], line["learning_rate"]) for line in lines]


@pytest.fixture(scope="module")
def two(texts, tmp_path_factory):
    """ZeRO-1 on two processes, from beginning to end; folder and output of the launch."""
    output = tmp_path_factory.mktemp("two")
    ended = forked(SCRIPT, *arguments(texts, output))
    assert ended.code == 0, ended.output[-4000:]
    return output, ended.output


def test_loss_falls_from_that_of_a_guess(two):
    output, printed = two
    losses = [loss for _, loss, _, _ in metrics(output)]
    assert losses[0] == pytest.approx(math.log(VOCABULARY), abs=0.2) and losses[-1] < losses[0] - 3
    assert "position parameters: learning rate 0.02, weight decay 0, of 1,824 numbers" in printed
    assert "streamed by 4 workers" in printed and f"trained on train_data, {VOCABULARY} entries" in printed


def test_perplexity_is_scored_at_every_length(two):
    figures = json.loads((two[0] / "results" / "run.json").read_text())["figures"]
    assert list(figures["perplexity"]) == ["32", "64", "128", "256"]
    assert all(1 < scores["perplexity"] < 60 for scores in figures["perplexity"].values())
    read = {scores["blocks"] * scores["length"] for scores in figures["perplexity"].values()}
    assert len(read) == 1, "every length reads the same tokens"
    assert "perplexity by length" in two[1] and (two[0] / "results" / "loss.png").exists()


def test_the_result_is_a_whole_model_that_generates(two):
    model = AutoModelForCausalLM.from_pretrained(two[0] / "trained").eval()
    tokenizer = AutoTokenizer.from_pretrained(two[0] / "trained")
    ids = tokenizer("def function_7(value):\n", return_tensors="pt").input_ids
    made = model.generate(ids, max_new_tokens=12, do_sample=False)
    assert "return value" in tokenizer.decode(made[0]) and model.config.use_cache


@pytest.mark.slow
def test_killed_between_saves_and_resumed_equals_uninterrupted_to_the_last_digit(two, texts, tmp_path):
    """kill -9 for every process at once, a few steps after a save; what the run has written by then is all there is."""
    deadline = time.monotonic() + 200
    with start(tmp_path / "log", SCRIPT, *arguments(texts, tmp_path)) as running:
        while not reached(tmp_path / "metrics.jsonl", KILLED):
            assert not running.ended and time.monotonic() < deadline, running.printed[-3000:]
            time.sleep(0.01)
    assert not (tmp_path / "trained").exists() and (tmp_path / f"checkpoint-{SAVED}").exists()
    ended = forked(SCRIPT, *arguments(texts, tmp_path), "--resume_from_checkpoint", "true")
    assert ended.code == 0, ended.output[-4000:]
    assert metrics(tmp_path) == metrics(two[0])
    mine, other = (trained.load_trained(output / "trained") for output in (tmp_path, two[0]))
    for (name, a), b in zip(mine.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b), name


def reached(file, step) -> bool:
    """Whether a metrics file has a line of that step; its last line may be half written."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return any(json.loads(line)["step"] >= step for line in lines)


@pytest.mark.slow
def test_sharded_weights_start_alike_and_learn_alike(two, texts, tmp_path):
    """ZeRO-3 makes the model in pieces; initial weights, data and what decays are those of ZeRO-1 all the same."""
    ended = forked(SCRIPT, *arguments(texts, tmp_path, "zero3"), "--max_steps", "12")
    assert ended.code == 0, ended.output[-4000:]
    alike(tmp_path, two[0])
    assert json.loads((tmp_path / "results" / "run.json").read_text())["figures"]["perplexity"]["256"]["blocks"] > 1


def test_one_process_learns_what_two_do(two, texts, tmp_path):
    """And without an engine: the global batch and the data are the recipe's."""
    flags = [*arguments(texts, tmp_path, "null"), "--max_steps", "12", "--eval_data", ""]
    ended = forked(SCRIPT, *flags, processes=1)
    assert ended.code == 0, ended.output[-4000:]
    alike(tmp_path, two[0])


def alike(folder, other):
    """The same losses to 1e-4 in fp32, where sums are taken in another order."""
    mine, theirs = ([loss for _, loss, _, _ in metrics(output)[:12]] for output in (folder, other))
    assert mine == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize(
    ("flags", "code", "shown"),
    [
        (["--recipe", "demo"], 2, "it is a recipe of extend_llama.py"),
        (["--recipe", "c4_155m_tape", "--dry_run"], 0, "512 sequences = 524,288 tokens a step"),
    ],
)
def test_what_starts_nothing(flags, code, shown, tmp_path):
    ended = forked(SCRIPT, *flags, "--output_dir", str(tmp_path / "never"), processes=1)
    assert ended.code == code and ended.output.count(shown) == 1 and "Traceback" not in ended.output, ended.output
    assert not (tmp_path / "never").exists()
