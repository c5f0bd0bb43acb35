"""A run from its recipe to its files, in one process without an engine; methods that train nothing too."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM

from tape_ds.checkpoint import merging
from tape_ds.distributed import rendezvous
from tape_ds.resilience import stopping
from tape_ds.resilience.stopping import StopRequest
from tape_ds.training import execution
from tests.training.runs.helpers import assemble
from tests.training.runs.test_extension import model, recipe

__all__ = ["model"]  # the fixture


@pytest.fixture(autouse=True)
def no_process_group(monkeypatch):
    """The process of the tests continues after a run."""
    monkeypatch.setattr(execution, "leave_process_group", lambda: None)


@pytest.mark.parametrize("method", ["yarn", "dynamic"])
def test_a_method_that_trains_nothing_scores_and_leaves_a_model(model, method):
    """No step, no engine, no training data read; its angles are in the folder, and merge onto the base."""
    settings = {
        "method": method,
        "deepspeed": "zero3",
        "target_length": 128,
        "train_data": "hub:nobody/nothing",
    }
    asked = recipe(
        model, **settings, eval_data=f"text:{model.parent}/text.txt", eval_length=96, eval_span=32
    )
    assert execution.execute(assemble(asked)) == 0
    output = model.parent / "run"
    result = json.loads((output / "results" / "run.json").read_text())
    assert result["figures"]["steps"] == 0 and result["figures"]["trained"] == []
    assert list(result["figures"]["loss_by_position"]) == ["untouched", f"{method} x2, untrained"]
    losses = [parts["text.txt"]["nll"] for parts in result["figures"]["loss_by_position"].values()]
    assert losses[0] != losses[1]
    merged = merging.merge(output / "trained")
    assert (
        merged.config.rope_parameters["factor"] == 2.0
        and merged.config.max_position_embeddings == 128
    )
    base = AutoModelForCausalLM.from_pretrained(model)
    for (name, mine), other in zip(merged.named_parameters(), base.parameters(), strict=True):
        assert torch.equal(mine, other), name


def test_results_go_with_the_weights_they_are_of(model, monkeypatch):
    """A second run in the same folder that ends while it scores: its weights were next to the results of the first,
    which an export then took for theirs."""
    (model.parent / "held.txt").write_text("three one two " * 60)
    fields = {
        "eval_data": f"text:{model.parent}/held.txt",
        "max_steps": 2,
        "report_to": "none",
        "method": "norms",
    }
    result = model.parent / "run" / "results" / "run.json"
    execution.execute(assemble(recipe(model, **fields)))
    assert result.is_file()

    def fails(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr("tape_ds.training.held_out.ScoredAround.on_train_end", fails)
    with pytest.raises(RuntimeError, match="out of memory"):
        execution.execute(assemble(recipe(model, **fields, learning_rate=0.5, start_anew=True)))
    assert not result.exists() and (model.parent / "run" / "trained" / "trained.json").is_file()


def test_a_run_that_has_nothing_to_do_lets_go_of_its_folder(model, monkeypatch, capsys):
    """Its file among those of living ranks was not removed."""
    monkeypatch.setattr(StopRequest, "listen", lambda self: None)
    monkeypatch.setattr(stopping, "watch_launcher", lambda stop: None)
    monkeypatch.setattr(stopping, "tolerate_lost_terminal", lambda: None)
    monkeypatch.setattr(rendezvous, "leave_when", lambda asked: None)
    asked = recipe(
        model,
        method="norms",
        max_steps=2,
        report_to="none",
        resume="auto",
        expandable_segments=False,
    )
    for sentence in ("results:", "finished already, at step 2"):
        assert execution.launch(asked) == 0
        assert sentence in capsys.readouterr().out
        assert list((model.parent / "run" / "ranks").iterdir()) == []


@pytest.mark.parametrize(
    ("message", "is_lost"),
    [
        ("[../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711", True),
        (
            "NCCL error in: ProcessGroupNCCL.cpp:3763, remote process exited or there was a network error",
            True,
        ),
        (
            "store->get('0') got error: Failed to recv, got 0 bytes. Connection was likely closed.",
            True,
        ),
        (
            "NCCL error in: NCCLUtils.hpp:317, unhandled system error (run with NCCL_DEBUG=INFO for details)",
            False,
        ),
    ],
)
def test_a_lost_peer_is_known_by_the_words_of_either_backend_and_of_the_store(message, is_lost):
    """By NCCL's it was a traceback."""
    assert (execution._lost_peer(RuntimeError(message)) is not None) is is_lost
