"""The harness as a person starts it: several processes, and lm-eval's own command on an exported folder."""

import json
import os
import subprocess
import sys

import pytest
import torch
from lm_eval.tasks import TaskManager

from evaluation import harness, harness_tasks
from tape_ds import TapeConfig, TapeForCausalLM
from tests.evaluation.test_harness import WRITE
from tests.integration.conftest import ROOT, forked
from tests.model.helpers import randomised
from tools import export_hf

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

    monkeypatch.setattr(harness_tasks, "TaskManager", manager)


@pytest.mark.slow
def test_two_processes_give_what_one_gives(tiny, own, tmp_path):
    """17 questions in batches of 3, read by both processes of DeepSpeed's launcher; then all of them in this one."""
    tasks = ["--tasks", "own_choose", "own_write", "--include_path", str(own)]
    words = [str(tiny / "model"), *tasks, "--batch_size", "3", "--output"]
    two = forked("evaluation/__main__.py", "harness", *words, str(tmp_path / "two"))
    assert two.code == 0, two.output
    assert two.output.count("written: ") == 1, "one process speaks"
    assert harness.main([*words, str(tmp_path / "one")]) == 0
    one, other = (json.loads((tmp_path / name / "harness.json").read_text()) for name in ("one", "two"))
    for result in (one, other):
        assert result["figures"].pop("cost")["seconds"] > 0
    assert all(json.dumps(one[part]) == json.dumps(other[part]) for part in ("figures", "config", "model", "data"))
    assert one["figures"]["tasks"]["own_choose"]["samples"] == 17
    assert len(list((tmp_path / "two" / "lm_eval").rglob("results_*.json"))) == 1


def test_plain_lm_eval_gives_the_same_on_an_exported_folder(tiny, own, tmp_path):
    """Nothing of this project is named but the exported folder, whose own code it runs."""
    config = json.loads((tiny / "model" / "config.json").read_text())
    names = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    sizes = {name: config[name] for name in (*names, "vocab_size", "bos_token_id", "eos_token_id")}
    torch.manual_seed(5)
    model = TapeForCausalLM(TapeConfig(**sizes, max_position_embeddings=64, position_encoding="tape"))
    randomised(model).save_pretrained(tmp_path / "model")
    for file in (tiny / "model").glob("tokenizer*"):
        (tmp_path / "model" / file.name).write_bytes(file.read_bytes())
    assert export_hf.main([str(tmp_path / "model"), str(tmp_path / "exported")]) == 0
    tasks = ["--tasks", "own_choose", "--include_path", str(own)]
    told = f"pretrained={tmp_path / 'exported'},trust_remote_code=True,dtype=float32"
    command = ["lm_eval", "--model", "hf", "--model_args", told, "--device", "cpu", *tasks]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "home")}
    environment.pop("PYTHONPATH", None)
    done = subprocess.run(
        [sys.executable, "-m", *command, "--output_path", str(tmp_path / "theirs"), "--log_samples"],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert harness.main([str(tmp_path / "model"), *tasks, "--log_samples", "--output", str(tmp_path / "ours")]) == 0
    found = [scores(tmp_path / "theirs"), scores(tmp_path / "ours" / "lm_eval")]
    assert len(found[0]) == 17 * 3 and found[0] == pytest.approx(found[1], abs=1e-4)


def scores(folder):
    """The log-likelihood of every answer, as lm-eval's files of samples have them."""
    (file,) = folder.rglob("samples_own_choose_*.jsonl")
    rows = sorted((json.loads(line) for line in file.read_text().splitlines()), key=lambda row: row["doc_id"])
    return [float(answer[0]) for row in rows for answer in row["filtered_resps"]]
