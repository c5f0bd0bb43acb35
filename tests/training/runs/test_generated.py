"""Runs on generated tasks: what they assemble, train and score, without an engine."""

from contextlib import nullcontext

import pytest
import torch
from transformers import AutoTokenizer

from tape_ds import encodings
from tape_ds.data.generated import TASKS
from tape_ds.data.order import collate
from tape_ds.training.run import build_trainer
from tape_ds.training.runs import generated
from tests.config.loads import generated as load
from tests.training.runs.helpers import assemble, complete, flags

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


LENGTHS = {
    "look_back": "28 32",
    "look_ahead": "28 32",
    "flip_flop": "24 32",
    "selective_copy": "28",
    "recall": "16 32",
}


def recipe(tmp_path, task="addition", lengths=None, **changes):
    fields = FIELDS | {"output_dir": tmp_path / "run", "task": task} | changes
    words = []
    if task in LENGTHS:
        del fields["max_digits"]
        words = ["--train_lengths", *(lengths or LENGTHS[task]).split()]
    (tmp_path / "empty.yaml").write_text("seed: 7\n")
    return load(["--recipe", str(tmp_path / "empty.yaml"), *flags(fields), *words])


def problems_of(run):
    return [run.sequences.sample(index).words for index in range(len(run.sequences))]


def test_encodings_share_sequences_and_weights(tmp_path):
    """So that a comparison compares nothing else."""
    rope, tape = (assemble(recipe(tmp_path, position_encoding=name)) for name in ("rope", "tape"))
    assert problems_of(rope) == problems_of(tape) and len(rope.sequences) == 48
    mine, others = dict(rope.model.named_parameters()), dict(tape.model.named_parameters())
    assert mine.keys() < others.keys() and all(
        torch.equal(mine[name], others[name]) for name in mine
    )
    assert set(tape.names) == set(others), "everything is trained"


def test_loss_is_that_of_answers_alone(tmp_path):
    """Prompt and padding do not count: other tokens there, the same loss elsewhere."""
    run = assemble(recipe(tmp_path, position_encoding="tape"))
    batch = collate([run.sequences[index] for index in range(8)])
    whole = run.model(**batch).loss
    logits = run.model(**{name: value for name, value in batch.items() if name != "labels"}).logits
    counted = batch["labels"][:, 1:] != -100
    losses = torch.nn.functional.cross_entropy(
        logits[:, :-1][counted], batch["labels"][:, 1:][counted]
    )
    torch.testing.assert_close(whole, losses)
    assert counted.sum() == sum(len(run.sequences.sample(index).answers) for index in range(8))


@pytest.mark.parametrize(("task", "lengths"), [("addition", [10]), ("look_back", [35, 51, 67])])
def test_tests_beyond_the_window_are_asked_by_length(task, lengths, tmp_path, monkeypatch):
    """An encoding that follows from the length is the trained one within the window; one pass asks all of that."""
    run, used = assemble(recipe(tmp_path, task, held_out_samples=4)), []
    monkeypatch.setattr(
        generated, "evaluated_at", lambda model, length: used.append(length) or nullcontext()
    )
    run.scoring()[0].measure(run.model)
    assert used == lengths and used[0] == run.config.max_position_embeddings


@pytest.mark.parametrize("task", TASKS)
def test_every_task_can_be_trained(task, tmp_path):
    run = assemble(recipe(tmp_path, task))
    assert run.config.vocab_size == len(TASKS[task].vocabulary) and len(run.sequences) == 48
    loss = run.model(**collate([run.sequences[index] for index in range(16)])).loss
    assert loss.isfinite() and set(run.names) == {name for name, _ in run.model.named_parameters()}


@pytest.mark.parametrize("encoding", encodings.available())
def test_every_encoding_is_trained_and_scored_beyond_its_sequences(encoding, tmp_path):
    settings = {
        "position_encoding": encoding,
        "attention_backend": "sdpa",
        "max_steps": 1,
        "held_out_samples": 3,
    }
    run = assemble(recipe(tmp_path, "look_back", **settings))
    build_trainer(run).train()
    assert [(one["length"], one["rows"]) for one in run.figures()["addressing"]] == [
        (32, 3),
        (48, 3),
        (64, 3),
    ]


def test_a_run_of_addressing_from_end_to_end(tmp_path):
    settings = {
        "task": "flip_flop",
        "position_encoding": "tape",
        "max_steps": 4,
        "held_out_samples": 10,
    }
    _, stored = complete(assemble(recipe(tmp_path, **settings)))
    assert (stored["config"]["task"], stored["config"]["train_lengths"]) == ("flip_flop", [24, 32])
    assert stored["data"] == {"addressing:flip_flop": TASKS["flip_flop"].fingerprint((24, 32))}
    kinds = [(one["length"], one["kind"]) for one in stored["figures"]["addressing"]]
    assert kinds == [
        (length, kind) for kind in ("", "ignore 0.98", "ignore 0.1") for length in (32, 48, 64)
    ]
    assert AutoTokenizer.from_pretrained(tmp_path / "run" / "trained")("w 1 r").input_ids == [
        4,
        8,
        5,
    ]
