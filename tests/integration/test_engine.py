"""Two real DeepSpeed ranks: what is trained under every ZeRO stage, and what survives it."""

import json
import math
from pathlib import Path

import pytest

from tape_ds.checkpoint import merging, trained
from tape_ds.models.configuration import TapeConfig
from tests.integration.conftest import forked

ZERO = (".position.attend.weight", ".position.expand.weight")


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """One launch for the whole module: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("engine")
    ended = forked("tests/integration/workers/engine.py", "--folder", str(folder))
    assert ended.code == 0, ended.output[-4000:]
    return folder, ended.output


@pytest.fixture(scope="module")
def folder(launched) -> Path:
    """Where the launch wrote."""
    return launched[0]


@pytest.fixture(scope="module")
def everything(folder: Path) -> list[dict]:
    """What each engine did."""
    return json.loads((folder / "outcomes.json").read_text())


@pytest.fixture(scope="module")
def outcomes(everything) -> list[dict]:
    """What each engine did whose gradients were all finite."""
    return [outcome for outcome in everything if not outcome["special"]]


def test_every_stage_ran(outcomes):
    """ZeRO-0 to 3, checkpointing on and off, bf16, LoRA and full training."""
    ran = {(o["stage"], o["checkpointing"]) for o in outcomes if o["method"] == "tape" and not o["bf16"]}
    assert ran == {(stage, checkpointing) for stage in (0, 1, 2, 3) for checkpointing in (False, True)}
    assert {"lora", "full"} < {o["method"] for o in outcomes}
    assert {o["dtype"] for o in outcomes if o["bf16"]} == {"torch.bfloat16"}


def test_exactly_the_named_parameters_move(outcomes):
    """The published code's reentrant checkpointing cut every position update off from its gradient."""
    for outcome in outcomes:
        assert outcome["moved"] == outcome["trainable"], (outcome["stage"], outcome["checkpointing"], outcome["method"])
        if outcome["method"] == "tape":
            assert sum(".position." in name for name in outcome["moved"]) == 8  # 4 kinds in all layers but the last


def test_zero_initialisation_survives_partitioning(outcomes):
    """Under zero.Init a parameter that is zeroed while it is sharded keeps whatever memory held."""
    for outcome in outcomes:
        if outcome["method"] == "lora":
            continue
        assert len(outcome["fresh_zero"]) == 4 and all(name.endswith(ZERO) for name in outcome["fresh_zero"])
        assert all(0.15 < std < 0.25 for name, std in outcome["fresh_std"].items() if name.endswith("gate.weight"))


def test_stages_and_checkpointing_agree(outcomes):
    """Sharding and recomputation are no part of the mathematics: same losses to 1e-4 in fp32."""
    losses = [o["losses"] for o in outcomes if o["method"] == "tape" and not o["bf16"]]
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], abs=1e-4)


def test_position_parameters_have_their_own_rate_and_no_decay(everything):
    """Under every stage, whether the engine's configuration names the optimizer or not, and after a resume; the
    schedule scales all rates alike."""
    for outcome in everything:
        own = [] if outcome["method"] == "lora" else [[pytest.approx(0.03), 0.0]]
        assert outcome["groups"] == [[0.01, 0.3], [0.01, 0.0], *own], (outcome["stage"], outcome["method"])
        rates, positions = zip(*outcome["rates"], strict=True)
        assert 0.01 >= max(rates) > min(rates)
        assert positions == tuple(None if not own else pytest.approx(3 * rate) for rate in rates)


def test_positions_stay_distinct_under_the_engine(outcomes):
    """The engine's cast to bf16 leaves 897 of 8,192 positions where frequencies are a parameter or a buffer."""
    for outcome in outcomes:
        assert outcome["distinct"] == {"8192": 8192, "131072": 131072}


def test_a_step_skipped_on_another_rank_is_said_aloud(launched, everything):
    """NaN on rank 1 alone: rank 0's own numbers look healthy, so the engine's count is what tells."""
    _, printed = launched
    poisoned = [outcome for outcome in everything if outcome["special"] == "poisoned"]
    assert [(outcome["stage"], outcome["skipped"]) for outcome in poisoned] == [(1, 1), (2, 1), (3, 1)]
    assert printed.count("step 2: the loss on rank 1 is NaN") == printed.count("step SKIPPED, weights unchanged") == 3
    assert all(math.isnan(outcome["losses"][1]) and outcome["losses"][2] > 0 for outcome in poisoned)


def test_resumed_equals_uninterrupted_under_every_stage(everything, outcomes):
    """Frozen weights are in no checkpoint; adapters and tied embeddings come back as they were, to the last digit."""
    resumed = [outcome for outcome in everything if outcome["special"] == "resumed"]
    assert {(o["stage"], o["method"]) for o in resumed} == {(1, "tape"), (2, "tape"), (3, "lora"), (3, "full")}
    for outcome in resumed:
        key = ("stage", "checkpointing", "method", "bf16")
        (whole,) = [other for other in outcomes if all(other[name] == outcome[name] for name in key)]
        assert outcome["losses"][-2:] == whole["losses"][-2:], [outcome[name] for name in key]


@pytest.mark.parametrize(
    "name", ["trained-3-True-tape", "trained-3-True-lora", "trained-3-True-full", "trained-1-False-tape"]
)
def test_what_was_trained_loads_again(folder, name):
    """Small for tape and lora, whole for full; never an empty tensor out of ZeRO-3."""
    record = trained.read_record(folder / name)
    model = trained.load_trained(folder / name)
    assert isinstance(model.config, TapeConfig)
    whole = sum(file.stat().st_size for file in (folder / "base").glob("*.safetensors"))
    saved = sum(file.stat().st_size for file in (folder / name).glob("*.safetensors"))
    assert saved > whole if record.method == "full" else saved < whole
    merged = merging.merge(folder / name)
    assert all(parameter.numel() for parameter in merged.parameters())
