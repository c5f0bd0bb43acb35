"""The harness as a person starts it: several processes, and lm-eval's own command on an exported folder."""

import json
import os
import subprocess
import sys

import pytest
import torch
from lm_eval import simple_evaluate, tasks
from lm_eval.tasks import TaskManager

from tape_ds import TapeConfig, TapeForCausalLM
from tape_ds.cli import export
from tape_ds.cli.evaluate import harness
from tests.cli.evaluate.test_harness import WRITE
from tests.integration.conftest import ROOT, forked
from tests.models.helpers import randomised

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


@pytest.fixture(scope="module")
def own(tmp_path_factory):
    """A folder of tasks on questions of its own."""
    folder = tmp_path_factory.mktemp("own")
    rows = [{"prompt": f"is {n} def {'of ' * (n % 5)}it", "wanted": "w"} for n in range(17)]
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for name, text in (("choose", CHOOSE), ("write", WRITE)):
        (folder / f"{name}.yaml").write_text(text.format(folder / "rows.jsonl"))
    return folder


@pytest.fixture(autouse=True)
def short_index(own, monkeypatch):
    """In this process the index of tasks holds those of ``own`` alone: lm-eval's own ones are many thousands."""

    def manager(include_path, metadata):
        return TaskManager(include_path=str(own), include_defaults=False, metadata=metadata)

    monkeypatch.setattr(tasks, "TaskManager", manager)


@pytest.mark.slow
def test_two_processes_give_what_one_gives(tiny, own, tmp_path):
    """17 questions in batches of 3, dealt to both processes of DeepSpeed's launcher; then all of them in this one."""
    asked = ["--tasks", "own_choose", "own_write", "--include_path", str(own)]
    words = [str(tiny / "model"), *asked, "--batch_size", "3", "--output"]
    two = forked("evaluation/__main__.py", "harness", *words, str(tmp_path / "two"))
    assert two.code == 0, two.output
    assert two.output.count("written: ") == 1, "one process speaks"
    assert harness.main([*words, str(tmp_path / "one")]) == 0
    one, other = (json.loads((tmp_path / name / "harness.json").read_text()) for name in ("one", "two"))
    assert all(json.dumps(one[part]) == json.dumps(other[part]) for part in ("config", "model", "data"))
    for name, entry in one["figures"]["tasks"].items():
        for metric, score in entry["metrics"].items():
            assert score == pytest.approx(other["figures"]["tasks"][name]["metrics"][metric]), (name, metric)
    assert one["figures"]["tasks"]["own_choose"]["samples"] == 17
    assert other["figures"]["tasks"]["own_choose"]["samples"] == 17
    assert len(list((tmp_path / "two" / "lm_eval").rglob("results_*.json"))) == 1


@pytest.fixture(scope="module")
def exported(tiny, tmp_path_factory):
    """A random model, and its export beside it."""
    folder = tmp_path_factory.mktemp("exported")
    config = json.loads((tiny / "model" / "config.json").read_text())
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    sizes = {name: config[name] for name in (*names, "vocab_size", "bos_token_id", "eos_token_id")}
    torch.manual_seed(5)
    model = TapeForCausalLM(TapeConfig(**sizes, max_position_embeddings=64, position_encoding="tape"))
    randomised(model).save_pretrained(folder / "model")
    for file in (tiny / "model").glob("tokenizer*"):
        (folder / "model" / file.name).write_bytes(file.read_bytes())
    assert export.main([str(folder / "model"), str(folder / "exported")]) == 0
    return folder


def in_python(exported, own):
    """Return the log-likelihood of every answer, as lm-eval computes them in this process."""
    index = TaskManager(include_path=str(own), include_defaults=False)
    model = {"pretrained": str(exported), "trust_remote_code": True, "dtype": "float32"}
    done = simple_evaluate("hf", model, tasks=["own_choose"], task_manager=index, device="cpu", log_samples=True)
    return answers(done["samples"]["own_choose"])


def by_command(exported, own):
    """Return the same from its own command, whose index of tasks takes half a minute."""
    told = f"pretrained={exported},trust_remote_code=True,dtype=float32"
    command = [sys.executable, "-m", "lm_eval", "--model", "hf", "--model_args", told, "--device", "cpu"]
    command += ["--tasks", "own_choose", "--include_path", str(own)]
    command += ["--output_path", str(exported.parent / "theirs"), "--log_samples"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(exported.parent)}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return written(exported.parent / "theirs")


@pytest.mark.parametrize("plain", [in_python, pytest.param(by_command, marks=pytest.mark.slow)])
def test_plain_lm_eval_gives_the_same_on_an_exported_folder(exported, own, tmp_path, plain):
    """Nothing of this project is named but the exported folder, whose own code it runs."""
    theirs = plain(exported / "exported", own)
    tasks = ["--tasks", "own_choose", "--include_path", str(own)]
    assert harness.main([str(exported / "model"), *tasks, "--log_samples", "--output", str(tmp_path / "ours")]) == 0
    assert len(theirs) == 17 * 3 and theirs == pytest.approx(written(tmp_path / "ours" / "lm_eval"), abs=1e-4)


def written(folder):
    """Return the log-likelihood of every answer, as lm-eval's file of samples has them."""
    (file,) = folder.rglob("samples_own_choose_*.jsonl")
    return answers(json.loads(line) for line in file.read_text().splitlines())


def answers(samples):
    """Return the log-likelihoods of samples, in their order."""
    rows = sorted(samples, key=lambda row: row["doc_id"])
    return [float(answer[0]) for row in rows for answer in row["filtered_resps"]]
