"""Recipes written for a test, and what is wrong with them."""

import json
from pathlib import Path

import pytest
import yaml

from tape_ds.errors import UserError
from tape_ds.training.recipe import extension

GOOD = {
    "model": "smollm2",
    "target_length": 16384,
    "rope_parameters": {"rope_type": "yarn", "factor": 2.0},
    "train_data": ["stdlib"],
    "window": 1024,
    "pose_chunks": 2,
    "max_steps": 4,
    "learning_rate": 3e-4,
    "per_device_train_batch_size": 2,
    "global_batch_size": 8,
    "bf16": True,
    "deepspeed": "zero3",
}


def write(name="mine.yaml", without=(), text=None, **fields):
    """A recipe file in the current folder: :data:`GOOD` with ``fields``, or exactly ``text``."""
    content = {key: value for key, value in (GOOD | fields).items() if key not in without}
    Path(name).write_text(yaml.safe_dump(content) if text is None else text)
    return name


def problems_of(*argv, world_size=1, load=extension.load):
    """Problems of a recipe that must not load, as {field: problem}, and the message."""
    with pytest.raises(UserError) as caught:
        load(list(argv), world_size=world_size)
    return {problem.field: problem for problem in caught.value.problems}, str(caught.value)


def json_file(**changes):
    """A DeepSpeed JSON of our own: a good one with ``changes``."""
    Path("ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}} | changes))
    return "ds.json"
