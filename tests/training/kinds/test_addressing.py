"""What a run on a task of addressing assembles, trains and scores, where it can be told without an engine."""

import json

import pytest
from transformers import AutoTokenizer

from tape_ds.data.addressing import sequences
from tape_ds.data.addressing.tasks import TASKS
from tape_ds.data.dataset import collate
from tape_ds.errors import UserError
from tape_ds.model import positions
from tape_ds.recipe.arithmetic import load
from tape_ds.training import report
from tape_ds.training.kinds import arithmetic
from tape_ds.training.run import build_trainer
from tests.training.kinds import test_arithmetic

LENGTHS = {"flip_flop": "24 32", "recall": "16 32"}


def recipe(tmp_path, task="look_back", lengths=None, **changes):
    """A recipe without an engine."""
    (tmp_path / "empty.yaml").write_text("seed: 7\n")
    fields = {name: value for name, value in test_arithmetic.FIELDS.items() if name != "max_digits"}
    fields |= {"task": task, "output_dir": tmp_path / "run", **changes}
    flags = [part for name, value in fields.items() for part in (f"--{name}", str(value))]
    lengths = (lengths or LENGTHS.get(task, "28 32")).split()
    return load(["--recipe", str(tmp_path / "empty.yaml"), *flags, "--train_lengths", *lengths])


@pytest.mark.parametrize("task", TASKS)
def test_every_task_can_be_trained(task, tmp_path):
    run = arithmetic.assemble(recipe(tmp_path, task=task))
    assert run.config.vocab_size == len(TASKS[task].vocabulary) and len(run.sequences) == 48
    batch = collate([run.sequences[index] for index in range(16)])
    loss = run.model(**batch).loss
    assert loss.isfinite() and set(run.names) == {name for name, _ in run.model.named_parameters()}


@pytest.mark.parametrize("encoding", positions.available())
def test_every_encoding_is_trained_and_scored_beyond_its_sequences(encoding, tmp_path):
    run = arithmetic.assemble(
        recipe(tmp_path, position_encoding=encoding, attention_backend="sdpa", max_steps=1, held_out_samples=3)
    )
    build_trainer(run).train()
    assert [(one["length"], one["rows"]) for one in run.figures()["addressing"]] == [(32, 3), (48, 3), (64, 3)]


def test_a_run_from_end_to_end(tmp_path, capsys):
    settings = {"task": "flip_flop", "position_encoding": "tape", "max_steps": 4, "held_out_samples": 10}
    run = arithmetic.assemble(recipe(tmp_path, **settings))
    trainer = build_trainer(run)
    started = report.begin(run)
    trainer.train()
    report.conclude(run, trainer, started)
    stored = json.loads((tmp_path / "run" / "results" / "run.json").read_text())
    assert (stored["config"]["task"], stored["config"]["train_lengths"]) == ("flip_flop", [24, 32])
    assert stored["data"] == {"addressing:flip_flop": sequences.fingerprint(TASKS["flip_flop"], (24, 32))}
    kinds = [(one["length"], one["kind"]) for one in stored["figures"]["addressing"]]
    assert kinds == [(length, kind) for kind in ("", "ignore 0.98", "ignore 0.1") for length in (32, 48, 64)]
    printed = capsys.readouterr().out
    assert "asking 10 sequences of each of 9 tests" in printed and "right at length 48, ignore 0.1" in printed
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "trained")("w 1 r").input_ids == [4, 8, 5]


def test_what_is_tested_may_change_on_the_way_and_what_is_trained_may_not(tmp_path):
    settings = {"max_steps": 4, "save_steps": 2, "held_out_samples": 2}
    build_trainer(arithmetic.assemble(recipe(tmp_path, **settings))).train()
    (tmp_path / "run" / "checkpoint-4" / "trainer_state.json").unlink()
    again = {**settings, "resume_from_checkpoint": "true"}
    assert arithmetic.assemble(recipe(tmp_path, test_lengths="40", **again)).resumed is not None
    with pytest.raises(UserError) as caught:
        arithmetic.assemble(recipe(tmp_path, lengths="28 40", **again))
    assert {"train_lengths", "window", "addressing:look_back"} <= {each.field for each in caught.value.problems}


def test_nothing_is_asked_where_nothing_is_wanted(tmp_path):
    run = arithmetic.assemble(recipe(tmp_path, held_out_samples=0))
    assert run.held_out == [] and run.scoring() == [] and run.figures() == {}
    assert run.outline()["held out"] == "nothing"
