"""Adapters over a base that is held in 4 bits (QLoRA), on whatever device bitsandbytes serves."""

import json

import pytest
import torch

from tape_ds.checkpoint import merging
from tape_ds.checkpoint.trained import read_record
from tape_ds.training import execution
from tests.training.runs.helpers import assemble
from tests.training.runs.test_extension import model, recipe

__all__ = ["model"]  # the fixture

bitsandbytes = pytest.importorskip("bitsandbytes")


def train_losses(run):
    stored = json.loads((run.output / "results" / "run.json").read_text())
    return [entry["loss"] for entry in stored["figures"]["train_loss"]]


@pytest.mark.parametrize("method", ["lora", "tape+lora"])
def test_adapters_train_over_four_bits_and_merge_onto_the_base(model, method, monkeypatch):
    """Linear maps are packed, what is trained whole is not; the folder says nothing of 4 bits, since its adapters go
    onto the base as it is stored."""
    monkeypatch.setattr(execution, "leave_process_group", lambda: None)
    settings = {
        "method": method,
        "max_steps": 3,
        "train_embeddings": False,
        "learning_rate": 0.02,
        "save_steps": 2,
    }
    run = assemble(recipe(model, load_in_4bit=True, **settings))
    packed = {
        name
        for name, module in run.model.named_modules()
        if isinstance(module, bitsandbytes.nn.Linear4bit)
    }
    assert any(name.endswith("down_proj") for name in packed)
    assert not any(".position." in name or "lm_head" in name for name in packed)
    full = assemble(recipe(model, **settings))
    assert run.parameter_counts == full.parameter_counts
    assert execution.execute(run) == 0
    losses = train_losses(run)
    assert losses[-1] < losses[0]
    trained = run.output / "trained"
    assert "quantization_config" not in json.loads((trained / "config.json").read_text())
    merged = merging.merge(trained)
    assert {parameter.dtype for parameter in merged.parameters()} == {torch.float32}
    assert set(read_record(trained).names) == set(full.names)
    resumed = recipe(
        model, load_in_4bit=True, resume_from_checkpoint=run.output / "checkpoint-2", **settings
    )
    assert execution.execute(assemble(resumed)) == 0
    assert train_losses(run) == losses, (
        "no checkpoint of such a run could be resumed: its base is held otherwise"
    )
