"""The groups of this project through lm-eval's pipeline, with models whose scores are known beforehand."""

import json

import datasets
import pytest
from lm_eval import evaluator, simple_evaluate, tasks
from lm_eval.config.evaluate_config import EvaluatorConfig
from lm_eval.tasks import TaskManager

from tape_ds.errors import UserError
from tape_ds.scoring import harness_tasks
from tests.evaluation import local_tasks

ITEMS = 100


@pytest.fixture(scope="module")
def scored(tmp_path_factory):
    """Runs a group on a model that judges continuations; gives the figures of harness.json."""
    root = tmp_path_factory.mktemp("hub")
    local_tasks.write_data(root, ITEMS)
    included = [*local_tasks.write_tasks(root / "tasks"), local_tasks.OURS / "table9"]

    def run(group, judge, limit=None):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                datasets, "load_dataset", local_tasks.redirected(datasets.load_dataset, root)
            )
            # asks pip, which takes seconds
            patch.setattr(evaluator, "add_env_info", lambda results: None)
            manager = TaskManager(
                include_path=[str(each) for each in included], include_defaults=False
            )
            oracle = local_tasks.Oracle(judge=judge)
            found = simple_evaluate(
                oracle, tasks=[group], task_manager=manager, bootstrap_iters=0, limit=limit
            )
        return harness_tasks.figures(found, {"requests": 0, "tokens": 0})

    return run


def test_an_oracle_scores_all_of_table_9(scored):
    found = scored(
        "tape_table9", lambda *text: 0.0 if local_tasks.is_true(*text) else -60.0, limit=12
    )
    shown = {
        name: (each["metric"], each["value"], each["shots"], each["samples"])
        for name, each in found["tasks"].items()
    }
    assert shown == {
        "arc_challenge": ("acc_norm", 1.0, 0, 12),
        "arc_easy": ("acc_norm", 1.0, 0, 12),
        **dict.fromkeys(local_tasks.SUBJECTS, ("acc", 1.0, 0, 12)),
    }
    assert {name: (each["metric"], each["value"]) for name, each in found["groups"].items()} == {
        f"mmlu_{part}": ("acc", 1.0) for part in local_tasks.PARTS
    }


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Writes a task, and loads it as the command does from an index of it alone."""

    def manager(include_path, metadata):
        return TaskManager(include_path=str(tmp_path), include_defaults=False, metadata=metadata)

    monkeypatch.setattr(tasks, "TaskManager", manager)
    (tmp_path / "draw.py").write_text(DRAW)

    def start(shot="b", seed=3, shots=None, **changes):
        for name, text in (("test", "a"), ("dev", shot)):
            (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": text}))
        files = {name: str(tmp_path / f"{name}.jsonl") for name in ("test", "dev")}
        task = {
            "task": "own",
            "dataset_path": "json",
            "dataset_kwargs": {"data_files": files},
            "test_split": "test",
        }
        task |= {"fewshot_split": "dev", "output_type": "generate_until"}
        task |= {"doc_to_text": "{{prompt}}", "doc_to_target": "x"} | changes
        lines = [
            f"{name}: {value if name == 'custom_dataset' else json.dumps(value)}"
            for name, value in task.items()
        ]
        (tmp_path / "own.yaml").write_text("\n".join(lines))
        return harness_tasks.load_tasks(
            EvaluatorConfig(tasks=["own"], metadata={}, seed=[seed] * 4)
        ).fingerprints(shots)

    return start


DRAW = """
import random

import datasets


def rows(**_):
    return {"test": datasets.Dataset.from_list([{"prompt": str(random.random())}])}
"""


def test_drawn_texts_follow_the_seed(load):
    """An interrupted evaluation has to find its own tasks again, and every process the same ones."""
    drawn = {
        "custom_dataset": "!function draw.rows",
        "dataset_path": "",
        "dataset_kwargs": {},
        "fewshot_split": None,
    }
    one, again, other = (load(seed=seed, **drawn) for seed in (3, 3, 4))
    assert one == again != other


def test_shots_count_only_where_there_are_any(load):
    assert load(shot="one", shots=2) != load(shot="another", shots=2)
    assert load(shot="one") == load(shot="another")


def test_a_task_that_cannot_be_loaded_is_refused(load):
    with pytest.raises(UserError, match=r"own.*cannot be loaded"):
        load(test_split="nowhere")


def test_a_length_that_ruler_was_not_asked_for_is_no_figure():
    found = harness_tasks.summarise({"4096,none": 0.5, "8192,none": -1}, None, 4)
    assert (found["metric"], found["value"], list(found["metrics"])) == ("4096", 0.5, ["4096,none"])
