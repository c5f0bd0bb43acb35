"""The command on SCROLLS: files of texts by id, splits without answers, and cuts that are counted."""

import json

import lm_eval.tasks
import pytest
from lm_eval import evaluator

from tape_ds.cli.evaluate import harness
from tape_ds.data.scrolls import examples
from tape_ds.scoring.harness_tasks import TASKS
from tape_ds.scoring.language_model import HarnessModel
from tests.evaluation.scrolls.conftest import DATA, known_answers


@pytest.fixture
def command(llama, tmp_path, monkeypatch):
    """Starts the command on SCROLLS in miniature."""
    manager = lm_eval.tasks.TaskManager
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)
    monkeypatch.setattr(
        lm_eval.tasks,
        "TaskManager",
        lambda include_path, metadata: manager(
            include_path=str(TASKS / "scrolls"), include_defaults=False, metadata=metadata
        ),
    )

    def start(*names, words=(), **metadata):
        encoded = json.dumps({"data_dir": str(DATA)} | metadata)
        tasks = [f"tape_scrolls_{name}" for name in names]
        fixed = ["--metadata", encoded, "--output", str(tmp_path), "--max_length", "8k"]
        return harness.main([str(llama), "--tasks", *tasks, *fixed, *words])

    return start


def written(folder):
    return {file.stem: json.loads(file.read_text()) for file in (folder / "scrolls").iterdir()}


def figures(folder):
    return json.loads((folder / "harness.json").read_text())["figures"]


def test_an_oracles_texts_are_written_by_id_and_scored(command, tmp_path, monkeypatch):
    known = known_answers("quality", "gov_report")

    def answer(self, requests, disable_tqdm=False):
        return [
            next(text for asked, text in known.items() if asked in each.args[0])
            for each in requests
        ]

    monkeypatch.setattr(HarnessModel, "generate_until", answer)
    names = ("quality", "gov_report")
    assert command(*names, "quality_hard") == 0
    rows = {name: examples.read(name, "validation", DATA) for name in names}
    assert written(tmp_path) == {
        name: {each.id: each.outputs[0] for each in rows[name]} for name in names
    }
    scores = {
        name: (each["metric"], each["value"]) for name, each in figures(tmp_path)["tasks"].items()
    }
    assert scores == {
        "tape_scrolls_quality": ("exact_match", 1.0),
        "tape_scrolls_quality_hard": ("exact_match", 1.0),
        "tape_scrolls_gov_report": ("rouge", pytest.approx(1.0)),
    }


def test_a_split_without_answers_is_written_and_not_scored(command, tmp_path):
    """Texts of an earlier evaluation do not stay."""
    short = ["--gen_kwargs", "max_gen_toks=4"]
    assert command("qasper", words=[*short, "--limit", "1"]) == 0
    assert command("quality", split="test", words=[*short, "--overwrite"]) == 0
    (row,) = examples.read("quality", "test", DATA)
    assert {name: list(texts) for name, texts in written(tmp_path).items()} == {"quality": [row.id]}
    assert figures(tmp_path)["tasks"]["tape_scrolls_quality"]["value"] is None


def test_prompts_are_cut_to_the_models_length_and_counted(command, tmp_path):
    """In the task, which keeps the question: the command needs no other option."""
    assert command("qasper", words=["--max_length", "300", "--gen_kwargs", "max_gen_toks=6"]) == 0
    lengths = [1 + len(row.input.encode()) for row in examples.read("qasper", "validation", DATA)]
    cut = [max(0, length - (300 - 201)) for length in lengths]
    assert figures(tmp_path)["cut"] == {
        "requests": sum(each > 0 for each in cut),
        "tokens": sum(cut),
    }
    assert sum(cut) > 0
