"""Recipes written for a test, and what is wrong with them."""

import importlib.util
import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tape_ds.config import files, method
from tape_ds.errors import UserError
from tests.config import loads

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


def write(name="mine.yaml", without=(), text=None, good=GOOD, **fields):
    """A recipe file in the current folder: a ``good`` one with ``fields``, or exactly ``text``."""
    content = {key: value for key, value in (good | fields).items() if key not in without}
    Path(name).write_text(yaml.safe_dump(content) if text is None else text)
    return name


def in_folder(name):
    """Names of the recipes of a folder of ``launchers/recipes``."""
    return [
        each for each, place in files.shipped().items() if place.path.parent == files.RECIPES / name
    ]


def said(name):
    """The fields that a shipped recipe gives itself, and its base, also of a variant that leaves it out."""
    path, variant = files.shipped()[name]
    content = yaml.safe_load(path.read_text())
    variants = content.pop("variants", {})
    if variant is None:
        return content
    return {"base": path.stem} | {
        key: value for key, value in variants[variant].items() if key != "about"
    }


def has_bitsandbytes(monkeypatch):
    """Recipes load as where it is installed."""
    find = importlib.util.find_spec
    finder = SimpleNamespace(find_spec=lambda name: name if name == "bitsandbytes" else find(name))
    monkeypatch.setattr(method, "importlib", SimpleNamespace(util=finder))


def problems_of(*argv, world_size=1, load=loads.extension):
    """Problems of a recipe that must not load, as {field: problem}, and the message."""
    with pytest.raises(UserError) as caught:
        load(list(argv), world_size=world_size)
    return {problem.field: problem for problem in caught.value.problems}, str(caught.value)


def json_file(**changes):
    """A DeepSpeed JSON: a good one with ``changes``."""
    Path("ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}} | changes))
    return "ds.json"
