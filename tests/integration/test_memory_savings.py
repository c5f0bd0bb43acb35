"""Two real DeepSpeed ranks: every memory saving trains what no saving trains, and a profile of both is written."""

import json
import re

import pytest

from tests.integration.conftest import launch
from tests.integration.workers.common import LENGTH
from tests.integration.workers.memory_savings import SAVINGS, STEPS

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    """One launch for the whole module: its folder and what it printed."""
    folder = tmp_path_factory.mktemp("savings")
    ended = launch("tests/integration/workers/memory_savings.py", "--folder", str(folder))
    assert ended.code == 0, ended.output[-4000:]
    return folder, ended.output


@pytest.fixture(scope="module")
def outcomes(launched):
    """(engine, saving) -> what came of it; of the run that was recorded, (3, "recorded")."""
    found = json.loads((launched[0] / "outcomes.json").read_text())
    return {(o["engine"], "recorded" if "recorded" in o else o["saving"]): o for o in found}


@pytest.mark.parametrize("stage", [1, 3])
@pytest.mark.parametrize("saving", [name for name in SAVINGS if name != "nothing"])
def test_a_saving_changes_no_number(outcomes, stage, saving):
    """Losses and trained weights after three steps, to the last bit; tiles, whose sums have another order, to 1e-5."""
    plain, found = outcomes[stage, "nothing"], outcomes[stage, saving]
    if saving == "tiles":
        assert found["losses"] == pytest.approx(plain["losses"], rel=1e-5)
        assert found["norms"] == pytest.approx(plain["norms"], rel=1e-5)
    else:
        assert (found["losses"], found["weights"]) == (plain["losses"], plain["weights"])


@pytest.mark.parametrize("stage", [1, 3])
def test_both_states_are_moved_and_come_back(outcomes, stage):
    """Of three blocks of 32 columns and two groups of 8: with every block, hidden states of two and the state of one,
    the last block's own staying."""
    hidden, state = (2 * LENGTH * columns * 4 for columns in (32, 16))
    expected = {"tiles": 2 * hidden + state, "selective, moved": 2 * hidden + state, "moved": 2 * hidden + state}
    for saving, each in expected.items():
        moved = outcomes[stage, saving]["moved"]
        assert moved == [STEPS * each, STEPS * each, 0], saving
    assert outcomes[stage, "selective, moved"]["kept"] == STEPS * 3


def test_the_optimizer_may_live_in_the_hosts_memory(outcomes):
    """ZeRO-Offload at stage 2 trains what stage 1 trains, to 1e-5: the sums of gradients have another order."""
    found, plain = outcomes["zero2_offload", "nothing"], outcomes[1, "nothing"]
    assert found["losses"] == pytest.approx(plain["losses"], rel=1e-5)
    assert found["norms"] == pytest.approx(plain["norms"], rel=1e-5)


def test_what_is_recorded_changes_nothing(outcomes):
    assert outcomes[3, "recorded"]["weights"] == outcomes[3, "selective, moved"]["weights"]


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_stores_its_profile(launched, rank):
    folder, printed = launched
    summary = (folder / "3-selective, moved" / "profile" / f"summary_rank{rank}.md").read_text()
    assert re.search(r"\| forward \| [\d.]*[1-9]", summary)
    assert printed.count("profile of rank 0") == 1 and "rank 1: " not in printed
