"""The launcher as a user types it: the demo recipe in miniature, on one process and on two, killed and resumed."""

import json
import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tape_ds.checkpoint import trained
from tests.integration.conftest import ROOT, forked, launch

SCRIPT = "launchers/extend_llama.py"


def arguments(tiny, output) -> list[str]:
    """The demo recipe with a tiny model and text, by TAPE: 64 positions become 128."""
    flags = {
        "model": tiny / "model",
        "method": "tape",
        "target_length": 128,
        "eval_length": 128,
        "rope_parameters.original_max_position_embeddings": 64,
        "train_data": f"text:{tiny}/text.txt",
        "eval_data": f"text:{tiny}/held_out.txt",
        "data_cache": tiny / "cache",
        "window": 32,
        "eval_span": 32,
        "passkey_lengths": 500,
        "passkey_trials": 3,  # more than ranks: the last round repeats one
        "max_steps": 6,
        "save_steps": 3,
        "learning_rate": 0.03,
        "warmup_steps": 0,
        "deepspeed": "zero3",
        "bf16": "false",
        "global_batch_size": 8,
        "report_to": "tensorboard",
        "output_dir": output,
    }
    return [part for name, value in flags.items() for part in (f"--{name}", str(value))]


def metrics(output) -> list[dict]:
    """The run's metrics lines."""
    return [json.loads(line) for line in (output / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def two(tiny, tmp_path_factory):
    """ZeRO-3 on two processes; folder and output of the launch."""
    output = tmp_path_factory.mktemp("two")
    ended = launch(SCRIPT, *arguments(tiny, output))
    assert ended.code == 0, ended.output[-4000:]
    return output, ended.output


def test_a_run_says_what_it_does_and_leaves_it_behind(two):
    output, printed = two
    for expected in ("64 -> 128", "model.layers.{0-1}.position.gate.weight", "(predicted", "ZeRO-3"):
        assert expected in printed
    for step in range(1, 7):
        assert printed.count(f"step {step}/6 |") == 1, "a line per logging step, from one rank"
    result = json.loads((output / "results" / "run.json").read_text())
    assert result["figures"]["steps"] == 6 and result["figures"]["skipped_steps"] == 0
    assert set(result["versions"]) >= {"torch", "deepspeed", "transformers"} and result["seed"] == 42
    assert list(result["figures"]["loss_by_position"]) == [
        "untouched",
        "yarn x2, untrained",
        "tape, trained, updates off",
        "tape, trained",
    ]
    asked = {each["variant"]: each for each in result["figures"]["passkey"]}
    assert list(asked) == ["untouched", "yarn x2, untrained", "tape, trained"] and "passkeys found" in printed
    assert all((each["length"], each["trials"], len(each["replies"])) == (500, 3, 3) for each in asked.values())
    assert printed.count("asking ") == 2
    assert result["figures"]["tokens"] == 6 * 256 and result["figures"]["tokens_per_second"] > 0
    assert result["figures"]["peak_memory_bytes"] >= max(entry["memory_bytes"] for entry in metrics(output)) / 2
    for picture in ("loss.png", "loss_by_position.png"):
        assert (output / "results" / picture).read_bytes().startswith(b"\x89PNG")
    assert list(output.glob("**/events.out.tfevents*")), "TensorBoard was asked for"


def test_loss_falls(two):
    losses = [entry["loss"] for entry in metrics(two[0])]
    assert losses[-1] < losses[0] - 0.05


@pytest.mark.slow
def test_one_process_trains_the_same(two, tiny, tmp_path):
    """The global batch and the data are the recipe's: the number of ranks changes rounding, to 1e-4 in fp32."""
    ended = forked(SCRIPT, *arguments(tiny, tmp_path), processes=1)
    assert ended.code == 0, ended.output[-4000:]
    mine, theirs = ([entry["loss"] for entry in metrics(output)] for output in (tmp_path, two[0]))
    assert mine == pytest.approx(theirs, abs=1e-4)
    one, other = (trained.load_trained(output / "trained") for output in (tmp_path, two[0]))
    for (name, a), b in zip(one.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=0, msg=name)


def test_angles_alone_are_scored_without_an_engine_as_within_one(two, tiny, tmp_path):
    """The start that a trained run scores first is what the method that trains nothing ends with."""
    ended = forked(SCRIPT, *arguments(tiny, tmp_path), "--method", "yarn", "--eval_before", "false")
    assert ended.code == 0, ended.output[-4000:]
    assert ended.output.count("nothing is trained") == 1 and ended.output.count("scoring yarn x2") == 1
    mine, theirs = (json.loads((output / "results" / "run.json").read_text()) for output in (tmp_path, two[0]))
    scored, before = (each["figures"]["loss_by_position"]["yarn x2, untrained"] for each in (mine, theirs))
    for name, spans in before.items():
        assert scored[name]["nll"] == pytest.approx(spans["nll"], abs=1e-5)
    (asked,), asked_before = mine["figures"]["passkey"], theirs["figures"]["passkey"]
    assert mine["figures"]["steps"] == 0 and asked == asked_before[1] and len(asked["replies"]) == 3
    assert trained.read_record(tmp_path / "trained").names == () and not list(tmp_path.glob("checkpoint-*"))


def test_resumed_equals_uninterrupted_to_the_last_digit(two, tiny, tmp_path):
    """As after a kill behind step 3: only the checkpoint is there."""
    source = two[0] / "checkpoint-3"
    shutil.copytree(source, tmp_path / "checkpoint-3")
    ended = forked(SCRIPT, *arguments(tiny, tmp_path), "--resume_from_checkpoint", str(tmp_path / "checkpoint-3"))
    assert ended.code == 0, ended.output[-4000:]
    mine = [(entry["step"], entry["loss"], entry["grad_norm"]) for entry in metrics(tmp_path)]
    theirs = [(entry["step"], entry["loss"], entry["grad_norm"]) for entry in metrics(two[0])]
    assert mine == theirs[3:]


def test_checkpoints_are_small(two, tiny):
    """Frozen weights are in no checkpoint: neither in the folder of trained weights nor in the engine's files."""
    whole = (tiny / "model" / "model.safetensors").stat().st_size
    file = two[0] / "checkpoint-3" / trained.WEIGHTS
    assert file.stat().st_size < whole / 4
    engine = [file for file in (two[0] / "checkpoint-3").glob("global_step3/*") if "model_states" in file.name]
    assert engine and all(file.stat().st_size < whole for file in engine)


def test_the_result_merges_reloads_and_generates(two, tmp_path):
    """The folder of trained weights becomes an ordinary model folder by the tool, and that generates."""
    import subprocess
    import sys

    command = [sys.executable, "tools/merge_adapter.py", str(two[0] / "trained"), str(tmp_path / "whole")]
    merged = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert merged.returncode == 0, merged.stderr[-2000:]
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "whole").eval()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "whole")
    assert model.config.max_position_embeddings == 128 and model.config.use_cache
    ids = tokenizer("def function_7(value):", return_tensors="pt").input_ids
    made = model.generate(ids, max_new_tokens=90, do_sample=False, eos_token_id=None)
    assert made.shape[1] == ids.shape[1] + 90 > 64
    direct = trained.load_trained(two[0] / "trained").eval()
    with torch.no_grad():
        torch.testing.assert_close(model(made).logits, direct(made).logits, atol=2e-6, rtol=0)


def test_a_mistake_is_one_message_on_two_ranks(tiny, tmp_path):
    """Once, whatever the number of ranks; exit code 2; no traceback; nothing written."""
    output = tmp_path / "never"
    flags = [*arguments(tiny, output), "--learning_rat", "1", "--window", "wide", "--global_batch_size", "7"]
    ended = launch(SCRIPT, *flags)
    assert ended.output.count("problems found") == 1, ended.output[-3000:]
    assert "learning_rat" in ended.output and "did you mean 'learning_rate'" in ended.output
    assert "Traceback" not in ended.output
    assert ended.code == 2
    assert not output.exists()


@pytest.mark.parametrize(
    ("flag", "shown"),
    [
        ("--print_config", "target_length: 128"),
        ("--dry_run", "8 sequences = 256 tokens a step: 1 per device x 2 processes x 4"),
    ],
)
def test_looking_only_starts_nothing(flag, shown, tiny, tmp_path):
    ended = forked(SCRIPT, *arguments(tiny, tmp_path / "never"), flag)
    assert ended.code == 0 and ended.output.count(shown) == 1
    assert not (tmp_path / "never").exists()


@pytest.mark.slow
def test_twenty_launches_in_a_row_exit_cleanly(tiny, tmp_path):
    """Without an orderly end of the process group about one launch in twenty aborts after its work is done."""
    codes = []
    for number in range(20):
        flags = arguments(tiny, tmp_path / str(number))
        codes.append(launch(SCRIPT, *flags, "--max_steps", "1", "--eval_data", "").code)
    assert codes == [0] * 20
