"""The groups of this project through lm-eval's pipeline, with models whose scores are known beforehand."""

import random

import datasets
import pytest
from lm_eval import evaluator, simple_evaluate
from lm_eval.tasks import TaskManager

from evaluation import harness_results
from tests.evaluation import local_tasks

ITEMS = 100


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Runs a group on a model that judges continuations; gives the figures of harness.json."""
    root = tmp_path_factory.mktemp("hub")
    local_tasks.write_data(root, ITEMS)
    included = [*local_tasks.write_tasks(root / "tasks"), *(local_tasks.OURS / n for n in ("table9", "pose_standard"))]

    def run(group, judge, limit=None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(datasets, "load_dataset", local_tasks.redirected(datasets.load_dataset, root))
            patch.setattr(evaluator, "add_env_info", lambda results: None)  # asks pip, which takes seconds
            manager = TaskManager(include_path=[str(each) for each in included], include_defaults=False)
            told = local_tasks.Told(judge)
            found = simple_evaluate(told, tasks=[group], task_manager=manager, bootstrap_iters=0, limit=limit)
        return harness_results.figures(found, {"requests": 0, "tokens": 0})

    return run


def test_an_oracle_scores_all_of_table_9(scored):
    found = scored("tape_table9", lambda *text: 0.0 if local_tasks.is_true(*text) else -60.0, limit=12)
    shown = {
        name: (each["metric"], each["value"], each["shots"], each["samples"]) for name, each in found["tasks"].items()
    }
    assert shown == {
        "arc_challenge": ("acc_norm", 1.0, 0, 12),
        "arc_easy": ("acc_norm", 1.0, 0, 12),
        **dict.fromkeys(local_tasks.SUBJECTS, ("acc", 1.0, 0, 12)),
    }
    assert {name: (each["metric"], each["value"]) for name, each in found["groups"].items()} == {
        f"mmlu_{part}": ("acc", 1.0) for part in local_tasks.PARTS
    }


def test_a_guess_scores_chance_on_table_9(scored):
    draw = random.Random(3)
    found = scored("tape_table9", lambda *text: draw.random())
    mmlu = sum(found["tasks"][task]["value"] for task in local_tasks.SUBJECTS) / len(local_tasks.SUBJECTS)
    arc = sum(found["tasks"][task]["metrics"]["acc,none"]["value"] for task in ("arc_challenge", "arc_easy")) / 2
    for value, items in ((mmlu, 4 * ITEMS), (arc, 2 * ITEMS)):
        assert abs(value - 0.25) < 4 * (0.25 * 0.75 / items) ** 0.5


def test_an_oracle_scores_all_of_poses_benchmarks(scored):
    found = scored("tape_pose_standard", lambda *text: 0.0 if local_tasks.is_true(*text) else -60.0, limit=12)
    shown = {name: (each["metric"], round(each["value"], 9), each["shots"]) for name, each in found["tasks"].items()}
    assert shown == {
        "arc_challenge": ("acc_norm", 1.0, 25),
        "boolq": ("acc", 1.0, 0),
        "hellaswag": ("acc_norm", 1.0, 10),
        "piqa": ("acc_norm", 1.0, 0),
        "truthfulqa_mc1": ("acc", 1.0, 0),
        "truthfulqa_mc2": ("acc", 1.0, 0),
        "winogrande": ("acc", 1.0, 0),
    }


def test_the_long_context_groups_name_tasks_that_exist():
    ruler = local_tasks.THEIRS / "ruler"
    manager = TaskManager(include_path=[str(ruler), str(local_tasks.OURS / "long_context")], include_defaults=False)
    for group in ("tape_needle", "tape_ruler"):
        children = manager.task_index[group].cfg["task"]
        assert children and set(children) <= set(manager.all_subtasks)
