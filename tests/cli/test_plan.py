"""tools/plan.py: what a user types, and what is answered."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tape_ds.cli import plan

ROOT = Path(__file__).resolve().parents[2]


def said(capsys, *argv):
    """Exit code and what was printed."""
    code = plan.main(list(argv))
    out, err = capsys.readouterr()
    return code, out + err


CAUTIOUS = ("--deepspeed", "zero3", "--activation_checkpointing", "true", "--per_device_train_batch_size", "1")


def test_a_plan_names_every_part(capsys):
    code, out = said(capsys, "llama2_7b_8k", "--gpus", "8", "--gpu", "a100-80", "--price", "2", *CAUTIOUS)
    assert code == 0
    for part in ("weights", "optimizer", "checkpoints", "position states", "buckets", "reserve", "checkpoint on disk"):
        assert part in out
    for part in ("TFLOP", "weights gathered", "attention", "tokens/s", "MFU", "GPU-hours", "longest sequence"):
        assert part in out
    assert "at 2 for a GPU and hour" in out and "predicted" in out and "fits: " in out and "sent by a GPU" in out


def test_what_the_recipe_leaves_open_is_chosen_with_its_flags(capsys):
    """The page is that of the layout; its flags give the same page."""
    argv = ["llama2_7b_8k", "--gpus", "8", "--gpu", "a100-80"]
    code, out = said(capsys, *argv)
    flags = "--deepspeed zero1 --activation_checkpointing false --per_device_train_batch_size 1"
    first, _, page = out.partition("\n\n")
    assert code == 0 and f": {flags} (the fastest on a100-80 with 27.0 GiB to spare; " in first
    assert said(capsys, *argv, *flags.split()) == (0, page)


def test_fields_of_the_recipe_and_levers_override(capsys):
    argv = ["llama2_7b_8k", "--gpus", "16", *CAUTIOUS, "--deepspeed", "zero1", "--tensor_parallel_size", "2"]
    _, out = said(capsys, *argv, "--checkpoint_layers", "selective", "--mlp_tiles", "4")
    assert "--deepspeed zero1 --per_device_train_batch_size 1 --tensor_parallel_size 2 " in out
    assert "--checkpoint_layers selective --mlp_tiles 4" in out


def test_a_search_ranks_explains_and_prints_its_winners_flags(capsys):
    code, out = said(capsys, "llama2_7b_8k", "--gpus", "8", "--gpu", "h200", "--search", *CAUTIOUS)
    assert code == 0 and "ways" in out and "with one choice changed" in out
    flags = "--deepspeed zero1 --per_device_train_batch_size 1 --activation_checkpointing false"
    assert f"its flags:\n  {flags}\n" in out


def test_what_does_not_fit_ends_with_its_own_code(capsys):
    code, out = said(capsys, "c4_7b", "--gpus", "1", "--gpu", "a100-40")
    assert code == plan.DOES_NOT_FIT and "in all, of 39.5" in out
    assert "of 39.5 GiB; --search finds layouts that do" in out and "IT DOES NOT FIT" in out
    assert "sent by a GPU" not in out, "there is one GPU"


@pytest.mark.slow
def test_a_pipe_gets_the_plan_alone():
    """Nor does it begin with what libraries print when they are imported."""
    words = [sys.executable, "tools/plan.py", "c4_155m_tape", "--gpus", "4"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    environment.pop("DS_ACCELERATOR", None)  # with which there is nothing to say
    ended = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("4 x h100-80")


@pytest.mark.parametrize(
    ("config", "named"),
    [('{"model_type": "bert"}', "have no rotary positions"), ("[1]", "no configuration could be read")],
)
def test_a_configuration_that_is_none_of_ours_is_named(config, named, tmp_path, capsys):
    (tmp_path / "config.json").write_text(config)
    code, out = said(capsys, "llama2_7b_8k", "--model_config", str(tmp_path))
    assert code == 2 and named in out


@pytest.mark.parametrize(
    ("argv", "named"),
    [
        ([], "recipe = None"),
        (["nonsense"], "no such recipe"),
        (["llama2_7b_8k", "--gpu", "a1000"], "unknown GPU"),
        (["llama2_7b_8k", "--gpus", "0"], "--gpus"),
        (["llama2_7b_8k", "--gpus", "8", "--tensor_parallel_size", "3"], "does not divide"),
        (["llama2_7b_8k", "--gpus", "8", "--tensor_parallel_size", "2"], "ZeRO stage 3"),
        (["llama2_7b_8k", "--price", "-1"], "not a price"),
        (["llama2_7b_8k", "--documents", "0"], "too few"),
        (["llama2_7b_8k", "--documents", "4", "--attend_across", "true", "--append_eos", "true"], "have no borders"),
        (["llama2_7b_8k", "--price", "nan"], "not a price"),
        (["llama2_7b_8k", "--gpus", "3"], "not divisible"),
        (["llama2_7b_8k", "--windoww", "3"], "windoww"),
    ],
)
def test_mistakes_are_named(argv, named, capsys):
    code, out = said(capsys, *argv)
    assert code == 2 and named in out
