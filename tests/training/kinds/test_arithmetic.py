"""What an arithmetic run assembles, trains and scores, where it can be told without an engine."""

import json

import pytest
import torch
from transformers import AutoTokenizer

from tape_ds import TapeForCausalLM
from tape_ds.checkpoint import trained
from tape_ds.data.arithmetic import sequences, split
from tape_ds.data.arithmetic.tasks import TASKS
from tape_ds.data.dataset import collate
from tape_ds.errors import UserError
from tape_ds.recipe.arithmetic import load
from tape_ds.scoring.exact_match import ExactMatch
from tape_ds.training import report
from tape_ds.training.kinds import arithmetic
from tape_ds.training.run import build_trainer

FIELDS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "position_encoding": "rope",
    "task": "addition",
    "max_digits": 2,
    "held_out_samples": 20,
    "global_batch_size": 16,
    "per_device_train_batch_size": 16,
    "max_steps": 3,
    "learning_rate": 0.01,
    "deepspeed": "null",
}


def recipe(tmp_path, **changes):
    """A recipe without an engine."""
    fields = FIELDS | {"output_dir": tmp_path / "run"} | changes
    flags = [part for name, value in fields.items() for part in (f"--{name}", str(value))]
    (tmp_path / "empty.yaml").write_text("seed: 7\n")
    return load(["--recipe", str(tmp_path / "empty.yaml"), *flags])


def problems_of(run):
    """What its sequences ask, as one reads it."""
    return [run.sequences.sample(index).operands for index in range(len(run.sequences))]


def test_encodings_share_sequences_and_weights(tmp_path):
    """So that a comparison compares nothing else."""
    rope, tape = (arithmetic.assemble(recipe(tmp_path, position_encoding=name)) for name in ("rope", "tape"))
    assert problems_of(rope) == problems_of(tape) and len(rope.sequences) == 48
    mine, others = dict(rope.model.named_parameters()), dict(tape.model.named_parameters())
    assert mine.keys() < others.keys() and all(torch.equal(mine[name], others[name]) for name in mine)
    assert set(tape.names) == set(others), "everything is trained"


def test_another_seed_asks_other_problems(tmp_path):
    first, second = (arithmetic.assemble(recipe(tmp_path, seed=seed)) for seed in (7, 8))
    assert problems_of(first) != problems_of(second)


def test_held_out_problems_are_of_all_trained_lengths_and_never_trained(tmp_path):
    """The smallest cell has few; the others five each."""
    asked = recipe(tmp_path, max_digits=3, max_digits_second=2, held_out_samples=30)
    found = arithmetic.Arithmetic.held_out_of(asked)
    assert [one.longest for one in found].count(3) == 2 * 5
    assert {one.longest for one in found} == {1, 2, 3} and len(found) <= 30
    tokenizer = arithmetic.assemble(recipe(tmp_path)).tokenizer
    for one in found:
        text = tokenizer.decode(one.asked.input_ids_1T[0], skip_special_tokens=True)
        first, second = (number[::-1] for number in text.partition("=")[0].split("+"))
        assert split.is_test("addition", (first, second))
        assert text.endswith("=" + str(int(first) + int(second))[::-1])
        assert one.asked.targets == len(text.partition("=")[2]) + 1


def test_no_problems_are_asked_where_none_are_wanted(tmp_path):
    run = arithmetic.assemble(recipe(tmp_path, held_out_samples=0))
    assert run.held_out == [] and run.scoring() == [] and run.figures() == {}
    assert run.outline()["held out"] == "nothing"


def test_loss_is_that_of_answers_alone(tmp_path):
    """What the model is told of prompt and padding does not count: other tokens there, the same loss elsewhere."""
    run = arithmetic.assemble(recipe(tmp_path, position_encoding="tape"))
    batch = collate([run.sequences[index] for index in range(8)])
    whole = run.model(**batch).loss
    logits = run.model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    counted = batch["labels"][:, 1:] != -100
    losses = torch.nn.functional.cross_entropy(logits[:, :-1][counted], batch["labels"][:, 1:][counted])
    torch.testing.assert_close(whole, losses)
    assert counted.sum() == sum(len(run.sequences.sample(index).answer) + 1 for index in range(8))


def test_a_run_from_end_to_end(tmp_path, capsys):
    run = arithmetic.assemble(recipe(tmp_path, position_encoding="tape", max_steps=6))
    trainer = build_trainer(run)
    started = report.begin(run)
    trainer.train()
    report.conclude(run, trainer, started)
    stored = json.loads((tmp_path / "run" / "results" / "run.json").read_text())
    assert (stored["config"]["task"], stored["config"]["max_digits"], stored["config"]["max_digits_second"]) == (
        *("addition", 2),
        2,
    )
    figures = stored["figures"]
    assert (
        figures["exact_match"]["all"]["answers"]
        == len(run.held_out)
        == sum(one["answers"] for one in figures["exact_match"]["by_longest"].values())
    )
    losses = [entry["loss"] for entry in figures["train_loss"]]
    assert losses[0] > 2 and figures["steps"] == 6
    assert stored["data"] == {"arithmetic:addition": sequences.fingerprint("addition", 2, 2)}
    printed = capsys.readouterr().out
    assert f"answering {len(run.held_out)} held-out problems" in printed
    assert "exact match, all trained lengths" in printed and "digits of the first operand" in printed
    again = TapeForCausalLM.from_pretrained(tmp_path / "run" / "trained")
    for (name, weight), other in zip(again.named_parameters(), run.model.parameters(), strict=True):
        assert torch.equal(weight, other), name
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "trained")("12+3=").input_ids == [5, 6, 14, 7, 17]
    assert trained.read_record(tmp_path / "run" / "trained").base is None


def test_what_is_known_scores_all(tmp_path):
    """The score is of answers: a model that is made to know them gets 100 %, by size and in all."""
    run = arithmetic.assemble(recipe(tmp_path, held_out_samples=4, max_digits=1, hidden_size=64))
    batch = collate([one_sequence(problem) for problem in run.held_out])
    optimizer = torch.optim.AdamW(run.model.parameters(), lr=0.01)
    for _ in range(80):
        loss = run.model(**batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    callback = run.scoring()[0]
    state = type("State", (), {"is_world_process_zero": True, "global_step": 80})
    callback.on_train_end(None, state, None, model=run.model)
    assert run.figures()["exact_match"]["all"]["share"] == 1.0


def one_sequence(problem):
    ids = problem.asked.input_ids_1T[0]
    sample_targets = problem.asked.targets
    labels = ids.clone()
    labels[: len(ids) - sample_targets] = -100
    places = {"position_ids": torch.arange(len(ids)), "document_ids": torch.zeros(len(ids), dtype=torch.int32)}
    return {"input_ids": ids, "labels": labels, **places}


@pytest.mark.slow
def test_resumed_equals_uninterrupted_to_the_last_digit(tmp_path):
    settings = {"max_steps": 4, "save_steps": 2, "logging_steps": 1, "position_encoding": "tape"}
    whole = build_trainer(arithmetic.assemble(recipe(tmp_path, **settings)))
    whole.train()
    (tmp_path / "run" / "checkpoint-4" / "trainer_state.json").unlink()
    again = arithmetic.assemble(recipe(tmp_path, resume_from_checkpoint="true", **settings))
    rest = build_trainer(again)
    rest.train(resume_from_checkpoint=str(again.resumed.folder))
    losses = [[entry["loss"] for entry in each.state.log_history if "loss" in entry] for each in (whole, rest)]
    assert losses[0] == losses[1] and len(losses[0]) == 4
    for (name, mine), other in zip(rest.model.named_parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(mine, other), name


def test_longer_problems_are_another_run(tmp_path):
    """A checkpoint is not gone on with where the sequences would be others."""
    settings = {"max_steps": 4, "save_steps": 2}
    build_trainer(arithmetic.assemble(recipe(tmp_path, **settings))).train()
    (tmp_path / "run" / "checkpoint-4" / "trainer_state.json").unlink()
    with pytest.raises(UserError) as caught:
        arithmetic.assemble(recipe(tmp_path, resume_from_checkpoint="true", max_digits=3, **settings))
    assert {"max_digits", "window", "arithmetic:addition"} <= {each.field for each in caught.value.problems}


def test_scores_by_size_add_up():
    problems = [arithmetic.HeldOutProblem(longest, None) for longest in (2, 1, 2)]
    found = arithmetic.by_longest(problems, [True, False, False])
    assert found == {1: ExactMatch(0, 1), 2: ExactMatch(1, 2)} and list(found) == [1, 2]
    assert arithmetic.total(found) == ExactMatch(1, 3)


@pytest.mark.parametrize("name", TASKS)
def test_every_task_can_be_trained(name, tmp_path):
    run = arithmetic.assemble(recipe(tmp_path, task=name, max_steps=1))
    assert run.config.vocab_size == len(TASKS[name].vocabulary)
    loss = run.model(**collate([run.sequences[index] for index in range(16)])).loss
    assert loss.isfinite()
