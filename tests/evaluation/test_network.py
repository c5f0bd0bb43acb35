"""The true data sets are at the addresses in the code (run with ``-m network`` and ``HF_HUB_OFFLINE=0``)."""

import itertools

import pytest

from tape_ds.cli.prepare_test_set import TEST_SETS
from tape_ds.data.sources import parse_all

pytestmark = pytest.mark.network
PUBLISHED = [name for name, each in TEST_SETS.items() if each]


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_test_set_has_long_documents(name):
    (source,) = parse_all(TEST_SETS[name]["data"], "--data")
    documents = list(itertools.islice(source.documents("heldout"), 3))
    assert len(documents) == 3
    assert all(len(document.text) > 200 for document in documents)


@pytest.mark.parametrize(("group", "tasks"), [("tape_table9", 59), ("tape_pose_standard", 7)])
def test_a_group_loads_with_its_questions(group, tasks):
    from lm_eval.tasks import TaskManager

    from tape_ds.scoring.harness_tasks import TASKS

    found = TaskManager(include_path=str(TASKS)).load([group])["tasks"]
    assert len(found) == tasks
    assert all(len(task.eval_docs) >= 100 for task in found.values())
