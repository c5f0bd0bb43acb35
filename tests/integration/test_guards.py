"""Two real DeepSpeed ranks, one of which computes NaN: seen from the other one, left out, counted, ended."""

import json
from pathlib import Path
from typing import Any

import pytest

from tape_ds.run_folder import METRICS, NONFINITE
from tests.integration.conftest import forked
from tests.integration.workers.guards import BAD, ENGINES, LIMIT


@pytest.fixture(scope="module")
def launched(tmp_path_factory) -> tuple[dict[str, dict[str, Any]], str]:
    """One launch for the whole module: what each engine did, and what was printed."""
    folder = tmp_path_factory.mktemp("guards")
    ended = forked("tests/integration/workers/guards.py", "--folder", str(folder))
    assert ended.code == 0, ended.output[-4000:]
    found = json.loads((folder / "outcomes.json").read_text())
    return {
        f"ZeRO-{each['stage']} in {'bf16' if each['bf16'] else 'fp32'}": each for each in found
    }, ended.output


def lines(outcome: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A file of JSON lines in a run's folder."""
    return [json.loads(line) for line in (Path(outcome["output"]) / name).read_text().splitlines()]


def test_only_fp32_without_zero_needs_protection(launched):
    """What the other engines do by themselves; a DeepSpeed that no longer does it is noticed here."""
    outcomes, _ = launched
    alone = [name for name, outcome in outcomes.items() if not outcome["protects_itself"]]
    assert alone == ["ZeRO-0 in fp32"] and len(outcomes) == len(ENGINES)


def test_a_bad_step_changes_no_weight_on_any_rank_and_is_counted(launched):
    """NaN on rank 1 is in the gradient of both; the steps between train."""
    for name, outcome in launched[0].items():
        for own in outcome["ranks"]:
            assert own["finite"] and own["moved"] == [True, False, True, False, False], (name, own)
        assert [line["skipped"] for line in lines(outcome, METRICS)] == [0, 1, 1, 2], name


def test_the_rank_and_its_sample_are_named_and_kept(launched):
    """Rank 0's own loss is fine, and rank 0 is where a person looks."""
    outcomes, printed = launched
    assert printed.count("step 2: the loss on rank 1 is NaN (samples 3); step SKIPPED") == len(
        outcomes
    )
    for name, outcome in outcomes.items():
        found = [
            (line["step"], line["kind"], line["ranks"], line["samples"])
            for line in lines(outcome, NONFINITE)
        ]
        assert found == [(step, "loss", [1], {"1": [2 * step - 1]}) for step in BAD], name


def test_too_many_in_a_row_stop_all_ranks_at_the_same_step(launched):
    """The first bad step has a good one after it, and stops nothing."""
    for name, outcome in launched[0].items():
        assert (outcome["steps"], outcome["skipped"]) == (BAD[-1], len(BAD)), name
        for own in outcome["ranks"]:
            assert (
                f"stopped: {LIMIT} steps in a row were not finite (nonfinite_limit)"
                in own["stopped"]
            )
