"""``tools/experiments/pose_coverage.py``: what it counts, writes and refuses."""

import csv
import json
import math

import datasets
import numpy as np
import pytest
from matplotlib.figure import Figure

from tape_ds import results
from tape_ds.config.extension import load
from tape_ds.data.bad_rows import BadRows
from tape_ds.training.runs.extension import training_sequences
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


def test_the_demo_s_sequences(tmp_path, capsys):
    result, table = written(tmp_path / "out", *MADE_UP, "--recipe", "demo")
    figures = result.figures
    assert (figures["rows"], figures["queries"], figures["window"]) == (48, 48 * 1024, 1024)
    assert figures["distances"]["to"] == 16383 and figures["distances_beyond_the_window"]["from"] == 1024
    assert 0.9 < figures["distances"]["seen"] < 1
    assert (table[0]["from"], table[-1]["to"]) == ("1", "16383")
    assert sum(int(row["pairs"]) for row in table) == 48 * 1024 * 1023 // 2, "every pair of every sequence is somewhere"
    assert result.command[:3] == ["pose_coverage.py", *MADE_UP] and result.data == {}
    assert result.config["target_length"] == 16384
    assert "demo: 48 sequences, PoSE, 2 chunks" in capsys.readouterr().out


def test_fields_of_the_recipe_can_be_overridden(tmp_path):
    fields = ["--pose_chunks", "4", "--target_length", "32768", "--rope_parameters.factor", "4", "--seed", "7"]
    result, table = written(tmp_path / "out", *MADE_UP, *fields, "--samples", "20")
    assert result.figures["rows"] == 20 and result.seed == 7
    assert result.config["pose_chunks"] == 4 and table[-1]["to"] == "32767"


def test_packed_sequences_see_their_documents_alone(tmp_path):
    """Documents of 100 tokens in sequences of 1,024: nothing beyond distance 99."""
    packed = ["--pose_chunks", "1", "--document_tokens", "100"]
    figures = written(tmp_path / "one", *packed)[0].figures
    assert figures["distances"]["longest"] == 99
    across = written(tmp_path / "two", *packed, "--attend_across", "true")[0].figures
    assert across["distances"]["longest"] == 1023


def test_real_data_are_those_of_the_run(tmp_path, monkeypatch):
    """With a tokenizer and text: the very sequences that the run reads, counted one by one."""
    from tests.data.conftest import build_tokenizer

    (tmp_path / "text.txt").write_text("for letter in the alphabet: skip a few\n" * 40)
    monkeypatch.setattr("tape_ds.data.tokenizer.load_tokenizer", lambda *_: build_tokenizer())
    spec = f"text:{tmp_path}/text.txt"
    fields = ["--train_data", spec, "--window", "64", "--eval_data", "", "--data_cache", str(tmp_path / "cache")]
    result, _ = written(tmp_path / "out", *fields, "--samples", "9")
    sequences = training_sequences(load(fields, world_size=1), build_tokenizer(), BadRows())
    layouts = [(sequences[i]["position_ids"].numpy(), sequences[i]["document_ids"].numpy()) for i in range(9)]
    assert result.figures["distances"] == pose_coverage.summarise(pose_coverage.count_pairs(layouts, 16384))
    assert list(result.data) == [spec]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (["--samples", "0"], "--samples"),
        (["--document_tokens", "0"], "document_tokens"),
        (["--document_tokens", "99", "--pose_chunks", "1", "--packing", "single"], "document_tokens"),
        (["--method", "ntk", "--rope_parameters", "{}"], "method"),
        (["--pose_chunk", "3"], "pose_chunk"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_written(tmp_path, capsys, arguments, field):
    assert pose_coverage.main([*MADE_UP, *arguments, "--output", str(tmp_path / "out")]) == 2
    assert f" {field} " in capsys.readouterr().err.replace(":", " ").replace("=", " ")
    assert not (tmp_path / "out").exists()


def test_a_file_is_no_folder_for_results_and_that_is_said_before_work(tmp_path, capsys):
    """Sequences were counted first, and then nothing could be written."""
    (tmp_path / "taken").write_text("mine")
    assert pose_coverage.main([*MADE_UP, "--output", str(tmp_path / "taken" / "out")]) == 2
    assert " --output = " in capsys.readouterr().err


def test_the_table_is_of_plain_numbers(tmp_path):
    """No numpy in what is stored."""
    written(tmp_path / "out", *MADE_UP, "--samples", "2")
    assert "np." not in (tmp_path / "out" / "coverage.csv").read_text()
    assert json.loads((tmp_path / "out" / "coverage.json").read_text())["figures"]["rows"] == 2


@pytest.fixture
def drawn(monkeypatch):
    """Keeps the figures that were saved, so that a test can ask what is on them."""
    figures = []
    save = Figure.savefig

    def keep(self, *arguments, **options):
        figures.append(self)
        return save(self, *arguments, **options)

    monkeypatch.setattr(Figure, "savefig", keep)
    return figures


def test_coverage_marks_what_was_never_seen(tmp_path, drawn):
    """Distances 1 to 7, of which 4 to 7 have no pair at all and 2 or 3 has none."""
    bins = pose_coverage.bins_of(np.array([10, 9, 4, 0, 0, 0, 0, 0]), per_octave=1)
    path = tmp_path / "c.png"
    pose_coverage.draw(bins, path, label="demo: 1 sequence", window=4, target=8)
    assert path.read_bytes().startswith(PNG)
    axes = drawn[0].axes[0]
    assert [text.get_text() for text in drawn[0].axes[0].get_legend().get_texts()] == [
        *("sequences of 8 tokens", "demo: 1 sequence", "least to most"),
        *("distances never seen: 71.4% of all", "tokens of a sequence, 4"),
    ]
    whole, own, window = axes.lines
    assert list(whole.get_ydata()) == pytest.approx([7 / 8, 5.5 / 8, 2.5 / 8])
    assert list(own.get_ydata())[:2] == [0.9, 0.2] and math.isnan(own.get_ydata()[2])
    assert list(window.get_xdata()) == [4, 4]
    shaded = [patch for patch in axes.patches if tuple(patch.get_facecolor()[:3]) == (0.8, 0, 0)]
    assert [(patch.get_x(), patch.get_x() + patch.get_width()) for patch in shaded] == [(2, 4), (4, 8)]
    assert axes.get_xscale() == axes.get_yscale() == "log" and axes.get_xlim() == (1, 8)
