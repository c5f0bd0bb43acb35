"""lm-eval's ``local-completions`` scores a run through the server as ``tape-ds evaluate harness`` scores it."""

import json

import pytest

from tape_ds.scoring import models
from tape_ds.scoring.language_model import HarnessModel
from tests.evaluation.test_models import found
from tests.export.conftest import base, run  # noqa: F401  (fixtures)
from tests.serving.running import listening

pytest.importorskip("fastapi")
pytest.importorskip("tenacity", reason="lm-eval's API models need it: pip install 'lm-eval[api]'")

CHOOSE = """
task: own_choose
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{prompt}}}}"
doc_to_choice: ["w9 w10", "w20", "w30 w31 w32"]
doc_to_target: "{{{{right}}}}"
metric_list: [{{metric: acc}}, {{metric: acc_norm}}]
"""
WRITE = """
task: own_write
dataset_path: json
dataset_kwargs: {{data_files: {{test: {data}}}}}
test_split: test
output_type: generate_until
doc_to_text: "{{{{prompt}}}}"
doc_to_target: "w9"
generation_kwargs: {{until: ["w7", "w55 w5"], max_gen_toks: 12, do_sample: false}}
metric_list: [{{metric: exact_match}}]
"""
TASKS = ["own_choose", "own_write"]
LENGTH = 128


@pytest.fixture
def tasks(tmp_path, monkeypatch):
    from lm_eval import evaluator
    from lm_eval.tasks import TaskManager

    # asks pip, which takes seconds
    monkeypatch.setattr(evaluator, "add_env_info", lambda results: None)
    rows = []
    for number in range(6):
        words = " ".join(
            f"w{5 + (number * 7 + place * place) % 50}" for place in range(4 + 9 * number)
        )
        rows.append(json.dumps({"prompt": words, "right": number % 3}))
    (tmp_path / "rows.jsonl").write_text("\n".join(rows) + "\n")
    for name, text in (("choose", CHOOSE), ("write", WRITE)):
        (tmp_path / f"{name}.yaml").write_text(text.format(data=tmp_path / "rows.jsonl"))
    return TaskManager(include_path=str(tmp_path), include_defaults=False)


def evaluated(model, tasks):
    from lm_eval import simple_evaluate

    results = simple_evaluate(
        model=model, tasks=TASKS, task_manager=tasks, bootstrap_iters=0, log_samples=True
    )
    samples = {}
    for task in TASKS:
        ordered = sorted(results["samples"][task], key=lambda sample: sample["doc_id"])
        samples[task] = [sample["filtered_resps"] for sample in ordered]
    figures = {
        name: value
        for task in TASKS
        for name, value in results["results"][task].items()
        if "stderr" not in name
    }
    return samples, figures


@pytest.mark.parametrize(
    ("encoding", "batch"),
    [("tape", 1), pytest.param("tape", 4, marks=pytest.mark.slow), ("rope", 4)],
)
def test_local_completions_give_the_harness_scores(run, tasks, encoding, batch):  # noqa: F811
    from lm_eval.models.openai_completions import LocalCompletionsAPI

    from tape_ds.serving.app import application
    from tape_ds.serving.served import Served

    folder = str(run(encoding, trained=(".position.",) if encoding == "tape" else ("norm",)))
    samples, figures = evaluated(HarnessModel(found(folder)), tasks)
    model = found(folder)
    with models.used_at(loaded := model.load(), LENGTH):
        app = application(Served(loaded, model.tokenizer(), "tiny", LENGTH))
        with listening(app) as port:
            api = LocalCompletionsAPI(
                base_url=f"http://127.0.0.1:{port}/v1/completions",
                model="tiny",
                tokenizer=str(model.folder),
                tokenizer_backend="huggingface",
                max_length=LENGTH,
                batch_size=batch,
                max_retries=1,
            )
            through_samples, through_figures = evaluated(api, tasks)
    assert through_figures == figures
    assert through_samples["own_write"] == samples["own_write"]
    assert len({text for (text,) in samples["own_write"]}) > 2, (
        "the texts differ from one prompt to another"
    )
    for mine, theirs in zip(through_samples["own_choose"], samples["own_choose"], strict=True):
        assert [score for score, _ in mine] == pytest.approx(
            [score for score, _ in theirs], abs=1e-4
        )
        assert [greedy for _, greedy in mine] == [greedy for _, greedy in theirs]
