"""Evaluations by several processes, one of them killed, and by lm-eval's own command."""

import json
import os
import subprocess
import sys
import time

import pytest
import torch
from lm_eval import simple_evaluate, tasks
from lm_eval.tasks import TaskManager

from tape_ds import TapeConfig, TapeForCausalLM, results
from tape_ds.cli import export
from tape_ds.cli.evaluate import generated, harness, passkey, perplexity
from tape_ds.data.generated import TASKS
from tape_ds.data.generated.task import tokenizer_of
from tests.integration.conftest import ROOT, forked, start
from tests.models.helpers import randomised, tiny_model

CHOOSE = """
task: own_choose
dataset_path: json
dataset_kwargs: {{data_files: {{test: {}}}}}
test_split: test
output_type: multiple_choice
doc_to_text: "Question: {{{{prompt}}}}\\nAnswer:"
doc_to_choice: ["yes", "no", "perhaps not"]
doc_to_target: 0
metric_list:
  - metric: acc
  - metric: acc_norm
"""
KEYS = ["--lengths", "400", "500", "--depths", "0", "0.5", "1", "--trials", "1"]
WINDOWS = ["--max_tokens", "2k", "--spans", "16", "--lengths", "24", "32", "40", "--stride", "16"]
GRID = ["--task", "addition", "--trained", "3", "--samples", "20", "--batch_size", "20"]


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A folder with a task."""
    folder = tmp_path_factory.mktemp("own")
    rows = [{"prompt": f"is {n} def {'of ' * (n % 5)}it"} for n in range(17)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "choose.yaml").write_text(CHOOSE.format(folder / "rows.jsonl"))
    return folder


@pytest.fixture
def words(request, tiny, own, tmp_path, monkeypatch):
    """A command line by the name of its command; a fresh cache of tokenised text."""
    monkeypatch.setenv("HOME", str(tmp_path))
    if request.param == "perplexity":
        data = ["--data", f"text:{tiny}/held_out.txt", "--convention", "all_tokens"]
        return ["perplexity", str(tiny / "model"), *data, *WINDOWS]
    if request.param == "passkey":
        return ["passkey", str(tiny / "model"), *KEYS]
    if request.param == "harness":
        asked = ["--tasks", "own_choose", "--include_path", str(own), "--batch_size", "3"]
        return ["harness", str(tiny / "model"), *asked]
    torch.manual_seed(0)
    tiny_model(encoding="tape", vocab_size=19, eos_token_id=3).save_pretrained(tmp_path / "model")
    tokenizer_of(TASKS["addition"]).save_pretrained(tmp_path / "model")
    return ["generated", str(tmp_path / "model"), *GRID]


def figures(folder):
    """All that was found but when and how long."""
    (file,) = folder.glob("*.json")
    found = dict(results.load(file).figures)
    found.pop("cost", None)
    return json.dumps(found, sort_keys=True)


@pytest.mark.slow
@pytest.mark.parametrize("words", ["perplexity", "passkey", "generated", "harness"], indirect=True)
def test_two_processes_find_what_one_does(words, tmp_path):
    """Killed at their first line where a command keeps one, and started again."""
    two, one, command = tmp_path / "two", tmp_path / "one", words[0]
    asked = [*words, "--output", str(two)]
    if command in ("perplexity", "generated"):
        with start(tmp_path / "log", "--module", "evaluation", *asked) as running:
            while not running.ended and not any(
                path.stat().st_size for path in two.glob(".*/*.jsonl")
            ):
                time.sleep(0.01)
        assert not (two / f"{command}.json").exists()
    ended = forked("evaluation/__main__.py", *asked)
    assert ended.code == 0 and ended.output.count("written: ") == 1, ended.output
    main = {
        "perplexity": perplexity,
        "passkey": passkey,
        "generated": generated,
        "harness": harness,
    }[command].main
    assert main([*words[1:], "--output", str(one)]) == 0
    assert figures(two) == figures(one)


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory):
    """A random model, and its export."""
    folder = tmp_path_factory.mktemp("exported")
    config = json.loads((tiny / "model" / "config.json").read_text())
    names = (
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    )
    sizes = {name: config[name] for name in (*names, "vocab_size", "bos_token_id", "eos_token_id")}
    torch.manual_seed(5)
    model = TapeForCausalLM(
        TapeConfig(**sizes, max_position_embeddings=64, position_encoding="tape")
    )
    randomised(model).save_pretrained(folder / "model")
    for file in (tiny / "model").glob("tokenizer*"):
        (folder / "model" / file.name).write_bytes(file.read_bytes())
    assert export.main([str(folder / "model"), str(folder / "exported")]) == 0
    return folder


def lm_eval(output, *words, **variables):
    """``lm_eval`` as it is typed."""
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--device", "cpu", *words]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(output),
    }
    environment.pop("PYTHONPATH", None)
    command += ["--output_path", str(output), "--log_samples"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment | variables, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_plain_lm_eval_gives_the_same_on_an_exported_folder(exported, own, tmp_path, monkeypatch):
    """Nothing of this project is named but the exported folder, whose own code it runs."""
    # its own tasks are many thousands
    index = TaskManager(include_path=str(own), include_defaults=False)
    model_args = {
        "pretrained": str(exported / "exported"),
        "trust_remote_code": True,
        "dtype": "float32",
    }
    done = simple_evaluate(
        "hf", model_args, tasks=["own_choose"], task_manager=index, device="cpu", log_samples=True
    )
    theirs = answers(done["samples"]["own_choose"])
    monkeypatch.setattr(tasks, "TaskManager", lambda **options: index)
    asked = ["--tasks", "own_choose", "--include_path", str(own)]
    assert (
        harness.main(
            [str(exported / "model"), *asked, "--log_samples", "--output", str(tmp_path / "ours")]
        )
        == 0
    )
    assert len(theirs) == 17 * 3 and theirs == pytest.approx(
        written(tmp_path / "ours" / "lm_eval"), abs=1e-4
    )


def written(folder):
    """Return the log-likelihood of every answer, as lm-eval's file of samples has them."""
    (file,) = folder.rglob("samples_*.jsonl")
    return answers(json.loads(line) for line in file.read_text().splitlines())


def answers(samples):
    """Return the log-likelihoods of samples, in their order."""
    rows = sorted(samples, key=lambda row: row["doc_id"])
    return [float(answer[0]) for row in rows for answer in row["filtered_resps"]]


@pytest.mark.slow
def test_plain_lm_eval_runs_the_passkey_task(tiny, tmp_path):
    """Nothing of this project but its folder of tasks is named; the model's arguments name the tokenizer."""
    asked = json.dumps({"lengths": [400, 500], "depths": [0, 1], "trials": 1})
    model = f"pretrained={tiny / 'model'},max_length=600,dtype=float32"
    task = [
        "--tasks",
        "tape_passkey",
        "--include_path",
        "tape_ds/scoring/tasks",
        "--metadata",
        asked,
    ]
    lm_eval(tmp_path, "--model_args", model, *task, "--batch_size", "1", PYTHONPATH=str(ROOT))
    (stored,) = tmp_path.rglob("results_*.json")
    scores = json.loads(stored.read_text())["results"]["tape_passkey"]
    assert {"exact_match_400,none", "exact_ids_500,none"} <= scores.keys()
    (samples,) = tmp_path.rglob("samples_*.jsonl")
    assert len(samples.read_text().splitlines()) == 4
