"""``tools/experiments/pose_coverage.py``: the sequences it counts, and their picture."""

import csv

import datasets
import pytest

from tape_ds import results
from tape_ds.data.bad_rows import BadRows
from tape_ds.training.runs.extension_data import training_sequences
from tests.config.loads import extension as load
from tests.data.conftest import build_tokenizer
from tools.experiments import pose_coverage

PNG = b"\x89PNG\r\n\x1a\n"
MADE_UP = ["--document_tokens", "4096"]


@pytest.fixture(autouse=True)
def _quiet(tmp_path, monkeypatch):
    datasets.disable_progress_bars()
    monkeypatch.chdir(tmp_path)


def written(output, *arguments):
    """Runs the command and gives its result's figures and its table."""
    assert pose_coverage.main([*arguments, "--output", str(output)]) == 0
    result = results.load(output / "coverage.json")
    table = list(csv.DictReader((output / "coverage.csv").read_text().splitlines()))
    assert (output / "coverage.png").read_bytes().startswith(PNG)
    return result, table


def test_the_demo_s_sequences(tmp_path):
    result, table = written(tmp_path / "out", *MADE_UP, "--recipe", "demo")
    figures = result.figures
    assert (figures["rows"], figures["queries"], figures["window"]) == (48, 48 * 1024, 1024)
    assert (
        figures["distances"]["to"] == 16383
        and figures["distances_beyond_the_window"]["from"] == 1024
    )
    assert 0.9 < figures["distances"]["seen"] < 1
    assert (table[0]["from"], table[-1]["to"]) == ("1", "16383")
    assert sum(int(row["pairs"]) for row in table) == 48 * 1024 * 1023 // 2, (
        "every pair of every sequence is somewhere"
    )


def test_packed_sequences_have_distances_within_documents(tmp_path):
    """Documents of 100 tokens in sequences of 1,024: nothing beyond distance 99."""
    packed = ["--pose_chunks", "1", "--document_tokens", "100"]
    figures = written(tmp_path / "one", *packed)[0].figures
    assert figures["distances"]["longest"] == 99
    across = written(tmp_path / "two", *packed, "--attend_across", "true")[0].figures
    assert across["distances"]["longest"] == 1023


def test_real_data_are_those_of_the_run(tmp_path, monkeypatch):
    (tmp_path / "text.txt").write_text("for letter in the alphabet: skip a few\n" * 40)
    monkeypatch.setattr("tape_ds.data.tokenizer.load_tokenizer", lambda *_: build_tokenizer())
    spec = f"text:{tmp_path}/text.txt"
    fields = [
        "--train_data",
        spec,
        "--window",
        "64",
        "--eval_data",
        "",
        "--data_cache",
        str(tmp_path / "cache"),
    ]
    result, _ = written(tmp_path / "out", *fields, "--samples", "9")
    sequences = training_sequences(load(fields, world_size=1), build_tokenizer(), BadRows())
    layouts = [
        (sequences[i]["position_ids"].numpy(), sequences[i]["document_ids"].numpy())
        for i in range(9)
    ]
    assert result.figures["distances"] == pose_coverage.summarise(
        pose_coverage.count_pairs(layouts, 16384)
    )
    assert list(result.data) == [spec]
