"""What a library would refuse in the middle of a run is refused before data are read, in the dry run too."""

import json

import pytest
import torch
from transformers import get_scheduler

from tape_ds.config import kinds, loading
from tape_ds.config.extension import ExtensionRecipe
from tape_ds.errors import UserError
from tape_ds.training import dry_run, library_checks, run
from tests.config.loads import extension as load


def recipe(**fields):
    """The demo's recipe with these fields, of a machine that is not looked at."""
    plain = {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in fields.items()
    }
    words = [part for name, value in plain.items() for part in (f"--{name}", value)]
    return load(words, elsewhere=True)


def rates(asked, steps):
    """The learning rates of a run's steps, relative to the recipe's, as transformers gives them."""
    optimizer = torch.optim.SGD(
        [torch.nn.Parameter(torch.zeros(1))], lr=asked.trainer.learning_rate
    )
    warmup = library_checks.warmup_steps(asked.trainer.warmup_steps, steps)
    given = asked.trainer.lr_scheduler_kwargs
    scheduler, found = (
        get_scheduler(asked.trainer.lr_scheduler_type, optimizer, warmup, steps, given),
        [],
    )
    for _ in range(steps):
        found.append(scheduler.get_last_lr()[0] / asked.trainer.learning_rate)
        optimizer.step()
        scheduler.step()
    return found


@pytest.mark.parametrize("name", ["chat_tiny", "scrolls_tiny", "demo"])
def test_one_step_of_a_shipped_recipe_is_trained_at_its_full_rate(name):
    """`tape-ds finetune --max_steps 1`, what a newcomer does first, was a traceback after its only step."""
    kind = kinds.of(name, ExtensionRecipe)
    asked = loading.load(["--recipe", name, "--max_steps", "1"], kind=kind, elsewhere=True)
    assert library_checks.check(asked) == [] and rates(asked, 1) == [1.0]


@pytest.mark.parametrize(
    ("asked", "steps", "warmup"),
    [
        (0.1, 1, 0),
        (0.1, 2, 1),
        (0.1, 10, 1),
        (0.03, 100, 3),
        (0.9, 2, 1),
        (0, 5, 0),
        (2, 10, 2),
        (2.0, 2, 2),
    ],
)
def test_a_share_of_warmup_never_is_the_whole_run(asked, steps, warmup):
    assert library_checks.warmup_steps(asked, steps) == warmup


IMPOSSIBLE = {
    "all warm-up": (
        "lr_scheduler_type",
        {"lr_scheduler_type": "polynomial", "max_steps": 2, "warmup_steps": 2},
    ),
    "rate of 0": (
        "lr_scheduler_type",
        {"lr_scheduler_type": "linear", "max_steps": 1, "warmup_steps": 1},
    ),
    "no min_lr": ("lr_scheduler_type", {"lr_scheduler_type": "cosine_with_min_lr"}),
    "end": (
        "lr_scheduler_type",
        {
            "lr_scheduler_type": "polynomial",
            "lr_scheduler_kwargs": {"lr_end": 0.5},
            "learning_rate": 0.1,
        },
    ),
    "above 1": (
        "lr_scheduler_type",
        {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 9}},
    ),
    "long decay": (
        "lr_scheduler_kwargs.num_decay_steps",
        {
            "lr_scheduler_type": "warmup_stable_decay",
            "lr_scheduler_kwargs": {"num_decay_steps": 9},
            "max_steps": 8,
        },
    ),
    "unknown": (
        "lr_scheduler_kwargs.num_cycle",
        {"lr_scheduler_type": "cosine", "lr_scheduler_kwargs": {"num_cycle": 2}},
    ),
    "optimizer's argument": ("optim_args", {"optim": "sgd", "optim_args": "momentum=much"}),
    "not read": ("optim_args", {"optim_args": "momentum=0.9"}),
    "nesterov": ("optim_args", {"optim": "sgd", "optim_args": "nesterov=true"}),
    "backend": (
        "torch_compile_backend",
        {"torch_compile": True, "torch_compile_backend": "indictor"},
    ),
    "mode": ("torch_compile_mode", {"torch_compile": True, "torch_compile_mode": "fast"}),
    "compiled with ZeRO-3": ("torch_compile", {"torch_compile": True, "deepspeed": "zero3"}),
    "nothing to compile": ("torch_compile_mode", {"torch_compile_mode": "default"}),
    "recomputing": (
        "activation_checkpointing_kwargs",
        {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"early": True}},
    ),
}


@pytest.mark.parametrize("name", IMPOSSIBLE)
def test_what_a_library_refuses_later_is_refused_in_the_dry_run(name):
    field, fields = IMPOSSIBLE[name]
    with pytest.raises(UserError) as refused:
        dry_run.describe(recipe(**fields))
    (problem,) = refused.value.problems
    assert problem.field == field


POSSIBLE = {
    "linear": {},
    "cosine": {"num_cycles": 0.5},
    "cosine_with_restarts": {"num_cycles": 2},
    "polynomial": {"lr_end": 0.0, "power": 2.0},
    "constant": {},
    "constant_with_warmup": {},
    "inverse_sqrt": {"timescale": 4},
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1, "warmup_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 1, "decay_type": "linear"},
}


@pytest.mark.parametrize(("steps", "warmup"), [(2, 1), (7, 0.5), (300, 0)])
@pytest.mark.parametrize("name", POSSIBLE)
def test_what_transformers_runs_is_not_refused(name, steps, warmup):
    fields = {"lr_scheduler_type": name, "warmup_steps": warmup, "max_steps": steps}
    asked = recipe(**fields, **({"lr_scheduler_kwargs": POSSIBLE[name]} if POSSIBLE[name] else {}))
    assert library_checks.check(asked) == []
    assert 0 < max(rates(asked, steps)) <= 1 + 1e-9


def test_arguments_of_an_optimizer_that_need_each_other_are_possible():
    """Nesterov's momentum needs a momentum: looked at one without the other, it ended in a traceback."""
    assert library_checks.check(recipe(optim="sgd", optim_args="momentum=0.9, nesterov=true")) == []


def test_a_run_over_epochs_is_checked_as_soon_as_its_steps_are_known():
    """8 sequences are one step of the demo, which cannot decay for 5."""
    fields = {
        "lr_scheduler_type": "warmup_stable_decay",
        "lr_scheduler_kwargs": {"num_decay_steps": 5},
    }
    asked = recipe(max_steps=-1, num_train_epochs=1, **fields)
    assert library_checks.check(asked) == [], "the data may be long enough"
    assert run.sample_count(asked, 48) == 48
    with pytest.raises(UserError, match="num_decay_steps"):
        run.sample_count(asked, 8)


def test_a_package_that_this_machine_lacks_is_another_s_business(monkeypatch):
    def absent(*_):
        raise ImportError("You need to install `bitsandbytes`")

    monkeypatch.setattr("transformers.Trainer.get_optimizer_cls_and_kwargs", absent)
    asked = recipe(optim="adamw_8bit")
    assert library_checks.check(asked) == []
    shown = dry_run.describe(asked)
    assert "This machine would refuse the run:" in shown and "optim = 'adamw_8bit'" in shown


def test_the_engine_s_own_optimizer_and_schedule_are_left_to_it():
    """They replace the trainer's; the JSON is checked elsewhere."""
    engine = {"optimizer": {"type": "AdamW"}, "scheduler": {"type": "WarmupDecayLR", "params": {}}}
    asked = recipe(
        lr_scheduler_type="linear",
        warmup_steps=1,
        max_steps=1,
        deepspeed=engine,
        optim="adamw_torch",
    )
    assert library_checks.check(asked) == []
