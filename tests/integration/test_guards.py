"""Two real DeepSpeed ranks, one of which counts wrong: seen from the other one, left out, counted, ended."""

import json
from pathlib import Path
from typing import Any

import pytest

from tape_ds.run_folder import METRICS, NONFINITE
from tests.integration.conftest import forked
from tests.integration.workers.guards import BAD, LIMIT


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> tuple[list[dict[str, Any]], str]:
    """One launch for the whole module: what each engine did, and what was printed."""
    folder = tmp_path_factory.mktemp("guards")
    ended = forked("tests/integration/workers/guards.py", "--folder", str(folder))
    assert ended.code == 0, ended.output[-4000:]
    return json.loads((folder / "outcomes.json").read_text()), ended.output


@pytest.fixture(scope="module")
def outcomes(launched) -> list[dict[str, Any]]:
    """What each engine did."""
    return launched[0]


def lines(outcome: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A file of JSON lines in a run's folder."""
    return [json.loads(line) for line in (Path(outcome["output"]) / name).read_text().splitlines()]


def name_of(outcome: dict[str, Any]) -> str:
    """The engine."""
    return f"ZeRO-{outcome['stage']} in {'bf16' if outcome['bf16'] else 'fp32'}"


def test_only_fp32_without_zero_needs_protection(outcomes):
    """What the other engines do by themselves; a DeepSpeed that no longer does it is noticed here."""
    unprotected = {name_of(outcome): not outcome["protects_itself"] for outcome in outcomes}
    assert [name for name, alone in unprotected.items() if alone] == ["ZeRO-0 in fp32"] and len(unprotected) == 8


def test_a_bad_step_changes_no_weight_on_any_rank(outcomes):
    """NaN on rank 1 is in everybody's gradient; the steps between train."""
    for outcome in outcomes:
        for own in outcome["ranks"]:
            assert own["finite"] and own["moved"] == [True, False, True, False, False], (name_of(outcome), own)


def test_a_bad_step_is_counted_and_in_the_metrics(outcomes):
    for outcome in outcomes:
        assert [line["skipped"] for line in lines(outcome, METRICS)] == [0, 1, 1, 2], name_of(outcome)


def test_the_rank_and_its_sample_are_named_and_kept(launched, outcomes):
    """Rank 0's own loss is fine, and rank 0 is where a person looks."""
    said = "step 2: the loss on rank 1 is NaN (samples 3); step SKIPPED, weights unchanged (1 so far, 1 in a row)"
    assert launched[1].count(said) == len(outcomes)
    for outcome in outcomes:
        found = [(line["step"], line["kind"], line["ranks"], line["samples"]) for line in lines(outcome, NONFINITE)]
        assert found == [(step, "loss", [1], {"1": [2 * step - 1]}) for step in BAD], name_of(outcome)


def test_too_many_in_a_row_stop_all_ranks_at_the_same_step(outcomes):
    """The first bad step has a good one after it, and stops nothing."""
    for outcome in outcomes:
        assert (outcome["steps"], outcome["skipped"]) == (BAD[-1], len(BAD)), name_of(outcome)
        for own in outcome["ranks"]:
            assert f"stopped: {LIMIT} steps in a row were not finite (nonfinite_limit)" in own["stopped"]
