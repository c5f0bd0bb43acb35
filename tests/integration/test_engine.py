"""Two real DeepSpeed ranks: what is trained under every ZeRO stage, and what survives it."""

import json
from pathlib import Path

import pytest

from tests.integration.conftest import forked
from tests.integration.workers.engine import LAYOUTS

ZERO = (".position.attend.weight", ".position.expand.weight")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """One launch for the whole module."""
    folder = tmp_path_factory.mktemp("engine")
    ended = forked("tests/integration/workers/engine.py", "--folder", str(folder))
    assert ended.code == 0, ended.output[-4000:]
    return folder


@pytest.fixture(scope="module")
def everything(folder: Path) -> list[dict]:
    """What each engine did."""
    return json.loads((folder / "outcomes.json").read_text())


@pytest.fixture(scope="module")
def outcomes(everything) -> list[dict]:
    """What each engine did that began at the first step, without a teacher."""
    return [outcome for outcome in everything if not outcome["special"]]


def test_exactly_the_named_parameters_move(outcomes):
    """The published code's reentrant checkpointing cut every position update off from its gradient."""
    assert {o["dtype"] for o in outcomes if o["bf16"]} == {"torch.bfloat16"}
    for outcome in outcomes:
        assert outcome["moved"] == outcome["trainable"], (
            outcome["stage"],
            outcome["checkpointing"],
            outcome["method"],
        )
        if outcome["method"] == "tape":
            # 4 kinds in all layers but the last
            assert sum(".position." in name for name in outcome["moved"]) == 8


def test_zero_initialisation_survives_partitioning(outcomes):
    """Under zero.Init a parameter that is zeroed while it is sharded keeps whatever memory held."""
    for outcome in outcomes:
        if outcome["method"] == "lora":
            continue
        assert len(outcome["fresh_zero"]) == 4 and all(
            name.endswith(ZERO) for name in outcome["fresh_zero"]
        )
        assert all(
            0.15 < std < 0.25
            for name, std in outcome["fresh_std"].items()
            if name.endswith("gate.weight")
        )


def test_stages_and_checkpointing_agree(outcomes):
    """Sharding and recomputation are no part of the mathematics: same losses to 1e-4 in fp32."""
    losses = [o["losses"] for o in outcomes if o["method"] == "tape" and not o["bf16"]]
    assert len(losses) == len(LAYOUTS)
    for other in losses[1:]:
        assert other == pytest.approx(losses[0], abs=1e-4)


def test_position_parameters_have_their_own_rate_and_no_decay(everything):
    """Under every stage, whether the engine's configuration names the optimizer or not, and after a resume; the
    schedule scales all rates alike."""
    for outcome in everything:
        own = [] if outcome["method"] == "lora" else [[pytest.approx(0.03), 0.0]]
        assert outcome["groups"] == [[0.01, 0.3], [0.01, 0.0], *own], (
            outcome["stage"],
            outcome["method"],
        )
        rates = [line["learning_rate"] for line in outcome["lines"]]
        assert 0.01 >= max(rates) > min(rates)
        positions = [line.get("position_learning_rate") for line in outcome["lines"]]
        assert positions == [None if not own else pytest.approx(3 * rate) for rate in rates]


def test_positions_stay_distinct_under_the_engine(outcomes):
    """The engine's cast to bf16 leaves 897 of 8,192 positions where frequencies are a parameter or a buffer."""
    for outcome in outcomes:
        assert outcome["distinct"] == {"8192": 8192, "131072": 131072}


def test_resumed_equals_uninterrupted_under_every_stage(everything, outcomes):
    """Frozen weights are in no checkpoint; adapters and tied embeddings come back as they were, to the last digit."""
    resumed = [outcome for outcome in everything if outcome["special"] == "resumed"]
    assert {(o["stage"], o["method"]) for o in resumed} == {
        (1, "tape"),
        (2, "tape"),
        (3, "lora"),
        (3, "full"),
    }
    for outcome in resumed:
        key = ("stage", "checkpointing", "method", "bf16")
        (whole,) = [
            other for other in outcomes if all(other[name] == outcome[name] for name in key)
        ]
        assert outcome["losses"][-2:] == whole["losses"][-2:], [outcome[name] for name in key]


def test_a_student_begins_as_its_teacher_and_learns_from_both(everything):
    """TAPE's updates start at zero."""
    ((first, *rest),) = [
        outcome["lines"] for outcome in everything if outcome["special"] == "distilled"
    ]
    assert abs(first["divergence"]) < 1e-5 and all(line["divergence"] > 1e-5 for line in rest[1:])
    for line in (first, *rest):
        assert line["loss"] == pytest.approx(
            0.75 * line["cross_entropy"] + 0.25 * line["divergence"], abs=1e-5
        )
