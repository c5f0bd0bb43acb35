"""The model card: what a reader finds in it, that every number is the run's, and that no path of this machine is."""

import json

import pytest
import yaml
from transformers import AutoTokenizer

from tape_ds import results
from tape_ds.checkpoint import source_model
from tape_ds.export import card, folder
from tests.export.conftest import YARN
from tests.models.helpers import tiny_model


@pytest.fixture(scope="module")
def made(run, tmp_path_factory):
    """(the run's folder, its card)."""
    run_folder, out = run(), tmp_path_factory.mktemp("cards") / "out"
    folder.write(source_model.find(str(run_folder)), out, "Tiny 128", "apache-2.0")
    return run_folder, (out / "README.md").read_text()


def front_matter(text):
    return yaml.safe_load(text.split("---\n")[1])


def test_the_header_is_what_the_hub_reads(made):
    header = front_matter(made[1])
    assert header == {
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "license": "apache-2.0",
        "datasets": ["allenai/c4"],
        "tags": ["long-context", "tape", "custom_code"],
    }


def test_its_numbers_are_the_run_s(made):
    """Losses of two documents are averaged by their targets."""
    for expected in (
        "its context extended from 64 to 128 tokens by the method `tape`",
        "| parameters trained | 25 of 1,000 (2.50%) |",
        "| tokens | 4,096 |",
        "| untouched | 2.500 | 6.500 | 4.516 |",
        "| 128 | 4 | 3 | 0.75 |",
    ):
        assert expected in made[1]


def test_a_fine_tuned_model_is_described_as_one(run, tmp_path):
    """Its context is not extended: its length is that of the texts it learnt from."""
    run_folder = run("rope", "full", {"rope_type": "default", "rope_theta": 1e4}, trained=("",))
    path = run_folder / "results" / "run.json"
    stored = json.loads(path.read_text())
    for name in ("train_data", "window", "pose_chunks"):
        del stored["config"][name]
    stored["config"] |= {"dataset": "qasper", "max_tokens": 128}
    path.write_text(json.dumps(stored))
    text = card.text(source_model.find(str(run_folder)), tiny_model(), "x", plain=True)
    assert (
        "`tiny-base` fine-tuned on the answers of the data set `qasper`, for up to 128 tokens"
        in text
    )
    assert "| data | `scrolls:qasper` |" in text and "context extended" not in text


def test_no_folder_of_this_machine_is_in_it(made):
    run_folder, text = made
    for part in (str(run_folder), str(run_folder.parent), "/tmp", "/root", "/home"):
        assert part not in text


def test_missing_results_are_named(run):
    made = run("rope", "norms", YARN, trained=("norm",))
    (made / "results" / "run.json").unlink()
    text = card.text(source_model.find(str(made)), tiny_model(encoding="rope"), "x", plain=True)
    assert (
        "Nothing was measured." in text
        and "trust_remote_code" not in text
        and "Trained on" not in text
    )


def test_a_method_that_trains_nothing_has_no_training_data(run):
    text = card.text(
        source_model.find(str(run("rope", "yarn", YARN, trained=()))), tiny_model(), "x", plain=True
    )
    assert (
        "Nothing was trained" in text
        and "## Trained on" not in text
        and "datasets" not in front_matter(text)
    )


def test_the_snippet_of_the_card_runs(run, tmp_path, monkeypatch, capsys):
    """As a reader would paste it, in the folder that holds the model."""
    made = run("rope", "norms", YARN, trained=("norm",))
    folder.write(source_model.find(str(made)), tmp_path / "tiny", "tiny")
    snippet = (tmp_path / "tiny" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(snippet, {})
    assert len(capsys.readouterr().out.split()) > 4
    assert AutoTokenizer.from_pretrained(tmp_path / "tiny").model_max_length == 128
    assert (
        json.loads((tmp_path / "tiny" / "config.json").read_text())["max_position_embeddings"]
        == 128
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("jsonl:~/own/a.jsonl#text", "jsonl:a.jsonl#text"),
        ("typing.py (text:/home/jo smith/*.py)", "typing.py (text:*.py)"),
        ("hub:allenai/c4:en", "hub:allenai/c4:en"),
        ("--output_dir=/scratch/me/out", "--output_dir=out"),
        ('["text:/a/b c.txt", "arrow:../c/d"]', '["text:b c.txt", "arrow:d"]'),
        ("text:/a/b.txt,arrow:/c/d", "text:b.txt,arrow:d"),
        ("runs/demo", "runs/demo"),
    ],
)
def test_paths_are_cut_to_their_last_part(text, expected):
    assert card.shown(text) == expected


def test_every_kind_of_figure_is_a_table():
    """Lists of rows, as of passkeys and answers, and mappings, as of perplexity; replies of a model are left out."""
    figures = {
        "passkey": [{"length": 4096, "replies": [{"key": 54321}], "correct": 1}],
        "answer_loss": [{"when": "after", "nll": 1.25, "targets": 40}],
        "perplexity": {"512": {"length": 512, "nll": 5.5}},
    }
    found = card.result_tables(results.Result(command=[], started="2026-01-01").finish(figures))
    text = "\n".join(found.values())
    assert "| 4,096 | 1 |" in text and "| after | 1.25 | 40 |" in text and "| 512 | 5.5 |" in text
    assert len(found) == 3 and "54321" not in text


def test_a_mean_of_checkpoints_is_said(run):
    made = run("rope", "norms", YARN, trained=("norm",))
    path = made / "trained" / "trained.json"
    files = {f"checkpoint-{step}/trained.safetensors": "1 MiB, 0123" for step in (400, 500)}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"averaged": files}))
    text = card.text(source_model.find(str(made)), tiny_model(encoding="rope"), "x", plain=True)
    assert "| weights | the mean of checkpoint-400, checkpoint-500 |" in text
