"""``tools/compare_encodings.py``: what is run, what is not run again, and what is written of it."""

import csv

import pytest

from tape_ds import results
from tape_ds.model import positions
from tape_ds.recipe import pretraining
from tape_ds.training import comparison
from tape_ds.training.comparison import encodings
from tools import compare_encodings


def launch(launcher, own, count, log):
    """Stands for the launcher: writes the result of the run that its arguments describe, or fails for ``nope``."""
    assert launcher.name == "pretrain_c4.py"
    recipe = pretraining.load(own, count)
    name = recipe.model.position_encoding
    log.write_text(" ".join(own))
    if name == "nope":
        return 1
    score = {str(length): {"perplexity": length / 256 + len(name)} for length in recipe.evaluation.eval_lengths}
    figures = {"parameters": {"all": 1000}, "train_loss": [{"step": 1, "loss": 2.5}], "perplexity": score}
    started = results.collect(seed=recipe.trainer_value("seed"), config=recipe.as_dict(), processes=count)
    results.save(started.finish(figures), f"{recipe.trainer_value('output_dir')}/results/run.json")
    return 0


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Runs that take no time; the folder they are in."""
    monkeypatch.setattr(comparison.runs, "launch", launch)
    return tmp_path / "runs"


def compare(runs, *names, behind=()):
    arguments = ["--encodings", *names, "--output", str(runs), "--processes", "2"]
    return compare_encodings.main([*arguments, *(["--", *behind] if behind else [])])


def test_an_entry_is_a_name_and_options():
    arm = encodings.read_arm('tape{"form": "vector", "rank": 8}', "tiny")
    assert arm.fields["position_encoding"] == "tape"
    assert arm.label == "tape form=vector rank=8"
    assert arm.folder == "tape_form=vector_rank=8"


def test_every_encoding_is_compared_by_default():
    options = compare_encodings.parse([])
    assert options.encodings == positions.available()
    planned = compare_encodings.check(options, [])
    assert [run.label for run in planned] == positions.available()


@pytest.mark.parametrize(
    "names, behind, words",
    [
        (["rpoe", 'tape{"rank": 0}'], [], ["did you mean 'rope'", "position_options.rank"]),
        (["tape{rank: 1}"], [], ["no JSON"]),
        (["rope", "rope"], [], ["named twice"]),
        (["rope"], ["--output_dir", "x", "--recipe=y"], ["output_dir", "recipe", "decided by this command"]),
        (["rope"], ["--learnin_rate", "1"], ["did you mean 'learning_rate'"]),
        (["bipe_rope"], ["--window", "1"], ["window"]),
    ],
)
def test_mistakes_are_named_before_anything_runs(names, behind, words, runs, capsys):
    assert compare(runs, *names, behind=behind) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words)
    assert not runs.exists()


def test_the_table_is_written_in_every_form(runs):
    assert compare(runs, "rope", "alibi", 'tape{"form": "vector"}') == 0
    summary = results.load(runs / "compare_encodings.json")
    assert [row["encoding"] for row in summary.figures["encodings"]] == ["rope", "alibi", "tape form=vector"]
    assert summary.figures["window"] == 256
    with open(runs / "compare_encodings.csv") as file:
        table = list(csv.DictReader(file))
    assert [row["perplexity_512"] for row in table] == ["6.0", "7.0", "6.0"]
    text = (runs / "compare_encodings.md").read_text()
    assert "| rope | 1,000 | 2.500 | **5.00** | **6.00** | **8.00** | **12.00** |" in text
    assert "| alibi | 1,000 | 2.500 | 6.00 | 7.00 | 9.00 | 13.00 |" in text
    assert (runs / "compare_encodings.png").read_bytes()[:4] == b"\x89PNG"


def test_what_is_complete_is_not_repeated_and_what_changed_is(runs, capsys):
    compare(runs, "rope", "alibi")
    capsys.readouterr()
    compare(runs, "rope", "alibi", "t5")
    shown = capsys.readouterr().out
    assert "rope: complete, not repeated" in shown and "t5: training" in shown
    compare(runs, "rope", behind=["--max_steps", "7"])
    assert "rope: training" in capsys.readouterr().out
    assert results.load(runs / "rope" / "results" / "run.json").config["max_steps"] == 7


def test_a_run_that_was_cut_short_goes_on_where_it_can(runs):
    """The launcher finds the newest whole checkpoint of the folder, if there is one."""
    compare(runs, "rope")
    (runs / "rope" / "results" / "run.json").unlink()
    (runs / "rope" / "checkpoint-3").mkdir()
    compare(runs, "rope")
    assert "--resume auto" in (runs / "rope" / "log.txt").read_text() and (runs / "rope" / "checkpoint-3").is_dir()


def test_seeds_are_added_to_a_comparison_of_one(runs, capsys):
    compare(runs, "rope", "alibi")
    assert "A single run for each: no interval." in (runs / "compare_encodings.md").read_text()
    capsys.readouterr()
    own = ["--encodings", "rope", "alibi", "--output", str(runs), "--processes", "2", "--primary", "perplexity_512"]
    assert compare_encodings.main([*own, "--seeds", "42", "7", "--jobs", "2"]) == 0
    shown = capsys.readouterr().out
    assert "rope, seed 42: complete, not repeated" in shown and "rope, seed 7: training" in shown
    figures = results.load(runs / "compare_encodings.json").figures
    assert [(row["encoding"], row["seed"]) for row in figures["encodings"]] == [
        *(("rope", 42), ("alibi", 42), ("rope", 7), ("alibi", 7)),
    ]
    assert figures["comparison"]["claims"][0]["differences"] == {"7": 1.0, "42": 1.0}
    text = (runs / "compare_encodings.md").read_text()
    assert "| rope | 2 | 1,000 | 2.500 ± 0.000 | **5.00 ± 0.00** |" in text and "Seeds 7, 42." in text
    assert "- alibi: worse than rope by 1.00 (95 %: 1.00 to 1.00, n = 2), but" in text


def test_a_figure_that_there_is_not_decides_nothing(runs, capsys):
    assert compare_encodings.main(["--encodings", "rope", "--output", str(runs), "--primary", "perplexity_300"]) == 2
    assert (
        "one of: perplexity_2048, perplexity_1024, perplexity_512, perplexity_256, train_loss"
        in capsys.readouterr().err
    )
    assert not runs.exists()


def test_a_run_that_fails_is_named_and_the_others_are_compared(runs, capsys):
    assert compare(runs, "nope", "rope") == 1
    captured = capsys.readouterr()
    assert "FAILED: nope" in captured.err
    assert "| rope |" in captured.out and "| nope |" not in captured.out


def test_runs_differ_in_nothing_but_the_encoding():
    """Same seed, data, sizes and steps: only then is it a comparison."""
    recipes = {run.arm: run.recipe.as_dict() for run in compare_encodings.check(compare_encodings.parse([]), [])}
    own = {"position_encoding", "position_options", "rope_parameters", "output_dir"}
    shared = [{k: v for k, v in recipe.items() if k not in own} for recipe in recipes.values()]
    assert all(each == shared[0] for each in shared)


@pytest.mark.slow
def test_two_encodings_for_real(tmp_path):
    """Through DeepSpeed's launcher, two processes each."""
    sizes = ["--hidden_size", "32", "--intermediate_size", "64", "--num_hidden_layers", "2", "--window", "64"]
    steps = ["--max_steps", "4", "--save_steps", "2", "--eval_tokens", "4096"]
    arguments = ["--encodings", "alibi", "tape", "--output", str(tmp_path), "--processes", "2"]
    assert compare_encodings.main([*arguments, "--", *sizes, *steps]) == 0
    rows = results.load(tmp_path / "compare_encodings.json").figures["encodings"]
    assert all(1 < value < 4096 for row in rows for value in row["perplexity"].values())
    assert [len(row["perplexity"]) for row in rows] == [4, 4]
