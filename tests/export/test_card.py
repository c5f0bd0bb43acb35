"""The model card: what a reader finds in it, that every number is the run's, and that no path of this machine is."""

import json
import shutil

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


def test_it_says_what_was_trained_on_what_and_how_well(made):
    for expected in (
        "# Tiny 128\n",
        "`tiny-base` with its context extended from 64 to 128 tokens by the method `tape`",
        "| parameters trained | 25 of 1,000 (2.50%) |",
        "model.layers.{0-1}.position.attend.weight",
        "| data | `text:text.txt`, `hub:allenai/c4:en` |",
        "| tokens | 4,096 |",
        "| learning rate | 0.001 (position parameters 10x), cosine |",
        "| skipped positions | PoSE with 2 chunks |",
        "trust_remote_code=True",
        "llama.cpp, vLLM",
        "| untouched | 2.500 | 6.500 | 4.516 |",
        "| tape, trained | 2.250 | 2.250 | 2.250 |",
        "| 128 | 4 | 3 | 0.75 |",
        "Measured: loss by position on the documents named, passkeys found, as above.",
    ):
        assert expected in made[1]


def test_no_folder_of_this_machine_is_in_it(made):
    run_folder, text = made
    for part in (str(run_folder), str(run_folder.parent), "/tmp", "/root", "/home"):
        assert part not in text


def test_a_hub_base_is_named_in_the_header(run, tmp_path):
    made = run()
    source = source_model.find(str(made))
    record = type(source.record)(base="meta-llama/Llama-2-7b-hf", method="tape", names=source.record.names)
    text = card.text(source.__class__(**vars(source) | {"record": record}), tiny_model(), "x", plain=False)
    assert front_matter(text)["base_model"] == "meta-llama/Llama-2-7b-hf" and "license" not in front_matter(text)
    assert "the base model's licence applies" in text


def test_a_base_from_a_package_is_named_as_the_hub_has_it_and_as_it_was(run):
    source = source_model.find(str(run()))
    record = type(source.record)(base="smollm2", method="tape", names=source.record.names)
    text = card.text(source.__class__(**vars(source) | {"record": record}), tiny_model(), "x", plain=False)
    assert front_matter(text)["base_model"] == "HuggingFaceTB/SmolLM2-135M-Instruct" and "4 bits" in text


def test_missing_results_are_said_to_be_missing(run):
    made = run("rope", "norms", YARN, trained=("norm",))
    (made / "results" / "run.json").unlink()
    text = card.text(source_model.find(str(made)), tiny_model(encoding="rope"), "x", plain=True)
    assert "None: the run that trained these weights left no results." in text and "Nothing was measured." in text
    assert "trust_remote_code" not in text and "rope_scaling" in text and "Trained on" not in text


def test_a_method_that_trains_nothing_says_so(run):
    made = run("rope", "yarn", YARN, trained=())
    text = card.text(source_model.find(str(made)), tiny_model(encoding="rope"), "x", plain=True)
    assert "Nothing was trained" in text and "## Trained on" not in text and "| untouched |" in text
    assert "datasets" not in front_matter(text), "the recipe names data, and none was read"
    assert "Scored with" in text and "Trained with" not in text


def test_numbers_of_angles_are_exact(run):
    """Seven digits of a length were rounded to six: 1.04858e+06."""
    rope = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 2.0, "original_max_position_embeddings": 1048576}
    source = source_model.find(str(run()))
    source.config.rope_parameters = rope | {"truncate": True}
    text = card.text(source, tiny_model(), "x", plain=False)
    shown = "(rope_theta 500000, factor 2, original_max_position_embeddings 1048576)"
    assert f"| positional encoding | tape, RoPE scaling `yarn` {shown} |" in text


def test_the_snippet_of_the_card_runs(run, tmp_path, monkeypatch, capsys):
    """As a reader would paste it, in the folder that holds the model."""
    made = run("rope", "norms", YARN, trained=("norm",))
    folder.write(source_model.find(str(made)), tmp_path / "tiny", "tiny")
    snippet = (tmp_path / "tiny" / "README.md").read_text().split("```python\n")[1].split("```")[0]
    monkeypatch.chdir(tmp_path)
    exec(snippet, {})
    assert len(capsys.readouterr().out.split()) > 4
    assert AutoTokenizer.from_pretrained(tmp_path / "tiny").model_max_length == 128
    assert json.loads((tmp_path / "tiny" / "config.json").read_text())["max_position_embeddings"] == 128


def test_mixed_data_are_named_as_any(run, tmp_path):
    run_folder = run()
    path = run_folder / "results" / "run.json"
    stored = json.loads(path.read_text())
    specs = ["text:text.txt", "hub:allenai/c4:en"]
    stored["config"]["train_data"] = [{"source": spec, "weight": 1} for spec in specs]
    path.write_text(json.dumps(stored))
    folder.write(source_model.find(str(run_folder)), tmp_path / "out", "Asked")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "| data | `text:text.txt`, `hub:allenai/c4:en` |" in text
    assert front_matter(text)["datasets"] == ["allenai/c4"]


def test_a_fine_tuned_model_is_said_to_be_one(run, tmp_path):
    """Not "its context extended": its length is that of the texts it learnt from."""
    run_folder = run(
        encoding="rope", method="full", rope_parameters={"rope_type": "default", "rope_theta": 1e4}, trained=("",)
    )
    path = run_folder / "results" / "run.json"
    stored = json.loads(path.read_text())
    for name in ("train_data", "window", "pose_chunks"):
        del stored["config"][name]
    stored["config"] |= {"dataset": "qasper", "max_tokens": 128}
    path.write_text(json.dumps(stored))
    folder.write(source_model.find(str(run_folder)), tmp_path / "out", "Asked")
    text = (tmp_path / "out" / "README.md").read_text()
    assert "`tiny-base` fine-tuned on the answers of the data set `qasper`, for up to 128 tokens" in text
    assert "| data | `scrolls:qasper` |" in text and "| batch | 8 sequences of up to 128 tokens |" in text
    assert "context extended" not in text
    record = run_folder / "trained" / "trained.json"
    first = tmp_path / "c4_155m_tape" / "trained"
    shutil.copytree(json.loads(record.read_text())["base"], first)
    record.write_text(json.dumps(json.loads(record.read_text()) | {"base": str(first)}))
    source = source_model.find(str(run_folder))
    text = card.text(source, tiny_model(), "x", plain=True)
    assert "`c4_155m_tape` fine-tuned on" in text, "not `trained`, as every run's folder is called"
    assert "base_model" not in text and str(tmp_path) not in text


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("text:/data/own/*.txt", "text:*.txt"),
        ("jsonl:~/own/a.jsonl#text", "jsonl:a.jsonl#text"),
        ("text:~somebody/own/a.txt", "text:a.txt"),
        ("/home/jo smith/models/tiny base", "tiny base"),
        ("typing.py (text:/home/jo smith/*.py)", "typing.py (text:*.py)"),
        ("hub:allenai/c4:en", "hub:allenai/c4:en"),
        ("--output_dir=/scratch/me/out", "--output_dir=out"),
        ('["text:/a/b c.txt", "arrow:../c/d"]', '["text:b c.txt", "arrow:d"]'),
        ("text:/a/b.txt,arrow:/c/d", "text:b.txt,arrow:d"),
        ("runs/demo", "runs/demo"),
        ("smollm2", "smollm2"),
    ],
)
def test_paths_are_cut_to_their_last_part(text, expected):
    assert card.shown(text) == expected


def stored(**figures):
    return results.Result(command=[], started="2026-01-01").finish(figures)


def tables(result):
    return "\n".join(card.result_tables(result).values())


def test_documents_are_merged_by_their_targets():
    """(2.0 * 63 + 4.0 * 21) / 84 = 2.5."""

    def losses(nll, count):
        return {"span": 64, "starts": [0], "nll": [nll], "counts": [count], "mean": nll}

    text = tables(stored(loss_by_position={"x": {"a": losses(2.0, 63), "b": losses(4.0, 21)}}))
    assert "| x | 2.500 | 2.500 |" in text and "`a`, `b`" in text


def test_documents_are_named_without_the_folders_of_the_machine():
    """A second document of a name is called by its data spec, which may hold a path."""
    losses = {"span": 64, "starts": [0], "nll": [2.0], "counts": [63], "mean": 2.0}
    names = {"a.py": losses, "a.py (text:/home/jo/own/a.py)": losses}
    text = tables(stored(loss_by_position={"x": names}))
    assert "on `a.py`, `a.py (text:a.py)`, held out" in text and "jo" not in text


def test_a_mapping_of_rows_is_a_table():
    """What a pretraining run stores of perplexity."""
    text = tables(stored(perplexity={"256": {"length": 256, "nll": 5.25}, "512": {"length": 512, "nll": 5.5}}))
    assert "| length | nll |" in text and "| 512 | 5.5 |" in text
    assert list(card.result_tables(stored(perplexity={"256": {"length": 256}}))) == ["perplexity by length"]


def test_answers_before_and_after():
    """What a fine-tuning run stores."""
    rows = [{"when": when, "nll": nll, "targets": 40} for when, nll in (("before", 5.5), ("after", 1.25))]
    text = tables(stored(answer_loss=rows))
    assert "Loss on held-out answers" in text and "| after | 1.25 | 40 |" in text


def test_nested_entries_are_left_out():
    rows = [{"variant": name, "length": 4096, "replies": [{"key": 54321}], "correct": 1} for name in ("start", "made")]
    text = tables(stored(passkey=rows))
    assert "| variant | length | correct |" in text and "54321" not in text
    assert "| start | 4,096 | 1 |\n| made | 4,096 | 1 |" in text


def test_without_scores_there_is_no_table():
    assert card.result_tables(stored(loss_by_position={}, passkey=[])) == {}
