"""What runs learn is what they learnt when it was frozen, however they share the work and wherever they stop."""

import functools

import pytest
import torch

from tape_ds import results
from tape_ds.cli import consolidate
from tests.integration import freeze_losses
from tests.integration.conftest import forked
from tests.integration.freeze_losses import LAUNCHERS, NAMES, SAVED, SHARING

DAILY = {"extend_llama-zero3", "pretrain_c4-zero1", "finetune_scrolls-zero2", "train_arithmetic-null"}
"""Of each launcher, one engine; the others are slow."""
MACHINE, FROZEN = freeze_losses.load()
EXACT = freeze_losses.machine() == MACHINE


def some(names, daily):
    """Cases for all, marked slow but for the daily ones."""
    return [pytest.param(name, marks=[] if name in daily else [pytest.mark.slow]) for name in names]


@pytest.fixture(scope="module")
def material(tmp_path_factory):
    """What all runs share."""
    return freeze_losses.make_material(tmp_path_factory.mktemp("material"))


@pytest.fixture(scope="module")
def uninterrupted(material, tmp_path_factory):
    """By name, a run's folder and what it found; each is started once."""

    @functools.cache
    def run(name):
        output = tmp_path_factory.mktemp(name)
        return output, freeze_losses.run(name, material, output, forked)

    return run


@pytest.mark.parametrize("name", some(NAMES, DAILY))
def test_losses_and_weights_are_the_frozen_ones(uninterrupted, name):
    """To the last digit where torch and the CPU are those they were frozen on."""
    assert freeze_losses.differences(uninterrupted(name)[1], FROZEN[name], EXACT) == []


@pytest.mark.parametrize("name", some(NAMES, {"train_arithmetic-null"}))
def test_resumed_equals_uninterrupted_to_the_last_digit(uninterrupted, material, tmp_path, name):
    """From the checkpoint half way, in a folder of its own."""
    output, whole = uninterrupted(name)
    start = output / f"checkpoint-{SAVED}"
    rest = freeze_losses.run(name, material, tmp_path, forked, resume_from_checkpoint=start)
    assert rest["losses"] == whole["losses"][SAVED:] and rest["grad_norms"] == whole["grad_norms"][SAVED:]
    assert rest["sha256"] == whole["sha256"]


LEFT_OPEN = {"deepspeed": "auto", "activation_checkpointing": "auto", "per_device_train_batch_size": "auto"}
OTHERS = {"deepspeed": "zero2", "activation_checkpointing": "true", "checkpoint_layers": "selective"}


@pytest.fixture(scope="module")
def chosen(material, tmp_path_factory):
    """Folder and numbers of a run whose plan chose for a GPU."""

    def start(script, *words, processes):
        return forked("tests/integration/workers/chosen.py", *words, processes=processes)

    output = tmp_path_factory.mktemp("chosen")
    return output, freeze_losses.run("extend_llama-zero1", material, output, start, **LEFT_OPEN)


def config_of(output):
    return results.load(output / "results" / "run.json").config


def test_losses_do_not_depend_on_the_chosen_layout(chosen):
    """Other stage, recomputation and micro-batch than those that were frozen, stored as values."""
    output, found = chosen
    assert freeze_losses.differences(found, FROZEN["extend_llama-zero1"], exact=False) == []
    config = config_of(output)
    assert config["activation_checkpointing"] is False and config["per_device_train_batch_size"] == 4
    assert config["deepspeed"]["zero_optimization"]["stage"] in (1, 2, 3) and config["global_batch_size"] == 8


@pytest.mark.slow
@pytest.mark.parametrize("fields", [LEFT_OPEN, {**OTHERS, "per_device_train_batch_size": 1}], ids=["cautious", "other"])
def test_losses_do_not_depend_on_other_layouts(fields, material, tmp_path):
    """Without a GPU the cautious values; and one that a plan chooses where memory is scarce."""
    found = freeze_losses.run("extend_llama-zero1", material, tmp_path, forked, **fields)
    assert freeze_losses.differences(found, FROZEN["extend_llama-zero1"], exact=False) == []


@pytest.mark.slow
def test_a_resumed_run_keeps_the_layout_that_was_chosen(chosen, material, tmp_path):
    """Where a new choice would be another: here is no GPU."""
    output, whole = chosen
    start = output / f"checkpoint-{SAVED}"
    rest = freeze_losses.run(
        "extend_llama-zero1", material, tmp_path, forked, **LEFT_OPEN, resume_from_checkpoint=start
    )
    assert rest["losses"] == whole["losses"][SAVED:] and rest["sha256"] == whole["sha256"]
    own = {"output_dir", "resume_from_checkpoint"}
    first, second = ({k: v for k, v in config_of(each).items() if k not in own} for each in (output, tmp_path))
    assert first == second


@pytest.mark.parametrize("name", some([name for name in NAMES if not name.endswith("-null")], DAILY))
def test_the_last_checkpoint_consolidates_to_what_was_trained(uninterrupted, tmp_path, name):
    """The engine's shards or pieces, put together by the tool, in fp32."""
    output, _ = uninterrupted(name)
    assert consolidate.main([str(output / f"checkpoint-{2 * SAVED}"), str(tmp_path / "whole")]) == 0
    found, expected = (freeze_losses.weights_in(folder) for folder in (tmp_path / "whole", output / "trained"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], weight) for name, weight in expected.items())


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_however_the_work_is_shared_one_process_learnt_the_same(launcher):
    """Of the frozen numbers themselves."""
    alone = FROZEN[f"{launcher}-null"]
    for sharing in SHARING:
        wrong = freeze_losses.differences(FROZEN[f"{launcher}-{sharing}"], alone, exact=False)
        assert wrong == [], sharing


@pytest.mark.parametrize("kind", ["losses", "weights", "sha256"])
def test_another_number_is_noticed(kind):
    """In the last digit where that is asked for, else beyond the tolerance."""
    frozen = FROZEN["pretrain_c4-zero1"]
    if kind == "losses":
        slight, large = ({**frozen, kind: [*frozen[kind][:-1], frozen[kind][-1] * by]} for by in (1 + 1e-7, 1 + 1e-5))
    elif kind == "weights":
        name, (size, placed) = next(iter(frozen[kind].items()))
        slight, large = ({**frozen, kind: {**frozen[kind], name: [size, placed + size * by]}} for by in (1e-6, 1e-4))
    else:
        slight = large = {**frozen, kind: "0" * 64}
    assert freeze_losses.differences(slight, frozen, exact=True)
    assert not freeze_losses.differences(slight, frozen, exact=False)
    assert bool(freeze_losses.differences(large, frozen, exact=False)) is (kind != "sha256")
