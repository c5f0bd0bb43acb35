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
            patch.setattr(datasets, "load_dataset", local_tasks.redirected(datasets.load_dataset, root))
            patch.setattr(evaluator, "add_env_info", lambda results: None)  # asks pip, which takes seconds
            manager = TaskManager(include_path=[str(each) for each in included], include_defaults=False)
            told = local_tasks.Told(judge)
            found = simple_evaluate(told, tasks=[group], task_manager=manager, bootstrap_iters=0, limit=limit)
        return harness_tasks.figures(found, {"requests": 0, "tokens": 0})

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


@pytest.fixture
def load(base, tmp_path, monkeypatch):
    """Loads tasks as the command does, from an index of RULER and of ``tmp_path`` alone."""
    included = [local_tasks.THEIRS / "ruler", local_tasks.OURS / "long_context", tmp_path]

    def manager(include_path, metadata):
        return TaskManager(include_path=[str(each) for each in included], include_defaults=False, metadata=metadata)

    monkeypatch.setattr(tasks, "TaskManager", manager)

    def start(*names, seed=3, **metadata):
        told = {"tokenizer": str(base)} | metadata
        config = EvaluatorConfig(tasks=list(names), metadata=told, seed=[seed] * 4)
        return harness_tasks.load(config)

    return start


def test_drawn_texts_follow_the_seed(load, monkeypatch):
    """An interrupted evaluation has to find its own tasks again, and every process the same ones."""
    local_tasks.shorten_ruler(monkeypatch, samples=2)
    one, again, other = (load("niah_multikey_2", seed=seed).fingerprints(None) for seed in (3, 3, 4))
    assert one == again != other


def test_shots_count_only_where_there_are_any(load, tmp_path):
    def fingerprint(shot, number):
        for name, text in (("rows", "a question"), ("shots", shot)):
            (tmp_path / f"{name}.jsonl").write_text(json.dumps({"prompt": text, "wanted": "w"}) + "\n")
        files = {split: str(tmp_path / f"{name}.jsonl") for split, name in (("test", "rows"), ("dev", "shots"))}
        task = {"task": "own_shots", "dataset_path": "json", "dataset_kwargs": {"data_files": files}}
        task |= {"test_split": "test", "fewshot_split": "dev", "output_type": "generate_until"}
        task |= {"doc_to_text": "{{prompt}}", "doc_to_target": "{{wanted}}"}
        (tmp_path / "own_shots.yaml").write_text(json.dumps(task))
        return load("own_shots").fingerprints(number)

    assert fingerprint("one", 2) != fingerprint("another", 2)
    assert fingerprint("one", None) == fingerprint("another", None)


@pytest.mark.parametrize(
    ("rows", "changed"),
    [('{"prompt": "a"\n', {}), ('{"prompt": "a"}\n', {"test_split": "nowhere"})],
)
def test_a_task_that_cannot_be_loaded_is_refused(load, tmp_path, rows, changed):
    (tmp_path / "rows.jsonl").write_text(rows)
    task = {"task": "own_broken", "dataset_path": "json", "test_split": "test", "output_type": "generate_until"}
    task |= {"dataset_kwargs": {"data_files": {"test": str(tmp_path / "rows.jsonl")}}}
    (tmp_path / "own_broken.yaml").write_text(
        json.dumps(task | {"doc_to_text": "{{prompt}}", "doc_to_target": "x"} | changed)
    )
    with pytest.raises(UserError, match=r"own_broken.*cannot be loaded"):
        load("own_broken")
