"""``tools/compare_methods.py``: what is run, what is refused as no comparison, and what is written after every run."""

import csv
import re

import pytest
import yaml

from tape_ds import results
from tape_ds.recipe import extension
from tape_ds.scoring.span_losses import SpanLosses
from tape_ds.training import comparison, plots
from tools import compare_methods

BASE = {
    "launcher": "extend_llama",
    "model": "smollm2",
    "target_length": 16384,
    "rope_parameters": {"rope_type": "yarn", "factor": 2.0},
    "train_data": ["stdlib"],
    "eval_data": ["stdlib:typing.py"],
    "passkey_lengths": [4096, 12288],
    "window": 1024,
    "pose_chunks": 2,
    "max_steps": 4,
    "per_device_train_batch_size": 1,
    "global_batch_size": 8,
}
LOSS = {"untouched": (2.0, 4.0), "tape": (1.75, 1.5), "tape+lora": (1.5, 1.75), "yarn": (2.125, 1.875)}
METHODS = ("tape", "tape+lora", "yarn")


def losses(name):
    """Four spans: two within the native length, two past it."""
    within, past = LOSS[name]
    return {"a.py": SpanLosses(4096, (0, 4096, 8192, 12288), (within, within, past, past), (4095, 4096, 4096, 4096))}


def launch(launcher, own, count, log):
    """Stands for the launcher: writes the result of the run that its arguments describe; ``lora`` fails."""
    assert launcher.name == "extend_llama.py"
    recipe = extension.load(own, count)
    name = recipe.method.method
    log.write_text(" ".join(own))
    if name == "lora":
        return 1
    scored = ["untouched", name] if recipe.evaluation.eval_before else [name]
    figures = {
        "native_length": 8192,
        "parameters": {"all": 1000, "trained": 10 * len(name) * recipe.trains},
        "tokens": recipe.trains * 4 * 8 * 1024,
        "tokens_per_second": 125.0 if recipe.trains else None,
        "peak_memory_bytes": 3 * 2**29 if recipe.trains else None,
        "loss_by_position": {each: {n: part.to_dict() for n, part in losses(each).items()} for each in scored},
        "passkey": [
            {
                "variant": each,
                "length": length,
                "trials": recipe.evaluation.passkey_trials,
                "correct": int(length < 8192 and each != "untouched"),
            }
            for each in scored
            for length in recipe.evaluation.passkey_lengths
        ],
    }
    started = results.collect(seed=recipe.trainer_value("seed"), config=recipe.as_dict(), processes=count)
    results.save(started.finish(figures), f"{recipe.trainer_value('output_dir')}/results/run.json")
    return 0


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Recipes for three methods and runs that take no time; the folder of the runs."""
    monkeypatch.setattr(comparison.runs, "launch", launch)
    for method in (*METHODS, "lora"):
        recipe = BASE | {"method": method}
        (tmp_path / f"mine_{method.replace('+', '_')}.yaml").write_text(yaml.safe_dump(recipe))
    return tmp_path / "runs"


def compare(runs, *methods, behind=()):
    arguments = ["--recipe", str(runs.parent / "mine"), "--methods", *methods, "--output", str(runs)]
    return compare_methods.main([*arguments, "--processes", "2", *(["--", *behind] if behind else [])])


def test_an_entry_is_a_method_and_fields_of_its_recipe(runs):
    arm = compare_methods.read_arm('tape+lora{"window": 2048, "lora_r": 4}', str(runs.parent / "mine"))
    assert (arm.label, arm.folder) == ("tape+lora window=2048 lora_r=4", "tape+lora_window=2048_lora_r=4")
    loaded = extension.load(arm.arguments(["--max_steps", "9", "--window", "512"]), 2)
    assert (loaded.method.method, loaded.window, loaded.method.lora_r) == ("tape+lora", 2048, 4)
    assert loaded.trainer_value("max_steps") == 9


@pytest.mark.parametrize(
    "entries, behind, words",
    [
        (["lorra"], [], ["did you mean 'lora'"]),
        (["ntk"], [], ["there is no recipe", "mine_ntk", "none that begin with"]),
        (["tape{window: 1}", "tape"], [], ["no JSON"]),
        (["tape", "tape"], [], ["named twice"]),
        (["tape"], ["--output_dir", "x", "--method=lora"], ["output_dir", "method", "decided by this command"]),
        (['tape{"method": "lora"}'], [], ["method", "decided by this command"]),
        (['tape{"windwo": 2048}'], [], ["did you mean 'window'"]),
        (["tape", 'tape+lora{"window": 2048}'], [], ["unequal tokens", "tape: 32,768", "window=2048: 65,536"]),
        (["tape", 'tape+lora{"max_steps": 5}'], [], ["unequal tokens"]),
        (
            ["tape", "tape+lora"],
            ["--max_steps", "-1", "--num_train_epochs", "2"],
            ["tape, tape+lora would", "give max_steps"],
        ),
        (["tape", 'yarn{"passkey_trials": 3}'], [], ["passkey_trials", "differs between arms", "tape: 2"]),
        (["tape", 'tape+lora{"seed": 3}'], [], ["seed", "decided by this command"]),
    ],
)
def test_what_is_no_comparison_is_named_before_anything_runs(entries, behind, words, runs, capsys):
    assert compare(runs, *entries, behind=behind) == 2
    message = capsys.readouterr().err
    assert [word for word in words if word not in message] == []
    assert not runs.exists()


def test_the_same_tokens_may_be_cut_otherwise(runs):
    """Twice the window and half the batch are equal tokens; what trains nothing has none to compare."""
    wide = 'tape+lora{"window": 2048, "global_batch_size": 4}'
    assert compare(runs, "tape", wide, 'yarn{"max_steps": 7}') == 0


def test_recipes_of_a_prefix_are_listed(monkeypatch, runs, capsys):
    monkeypatch.setattr(compare_methods.files, "recipes_of", lambda launcher: ["demo", "sm_16k_lora", "sm_16k_tape"])
    assert compare_methods.main(["--recipe", "sm_16k", "--methods", "theta"]) == 2
    message = capsys.readouterr().err
    assert "there are: sm_16k_lora, sm_16k_tape" in message and "demo" not in message


def test_the_table_is_written_in_every_form(runs, capsys):
    assert compare(runs, "tape", "tape+lora", "yarn") == 0
    whole = results.load(runs / "compare_methods.json")
    rows = {row["method"]: row for row in whole.figures["methods"]}
    assert list(rows) == ["untouched", "tape", "tape+lora", "yarn"]
    assert rows["tape"]["loss"]["past"] == 1.5 and rows["tape"]["loss"]["within"] == 1.75
    assert (rows["tape"]["seed"], rows["untouched"]["seed"]) == (42, None)
    assert rows["tape"]["settings"]["method"] == "tape" and whole.config["window"] == 1024
    assert "method" not in whole.config and "eval_before" not in whole.config
    text = (runs / "compare_methods.md").read_text()
    assert text in capsys.readouterr().out
    text = re.sub(r"\d+ \|\n", "s |\n", text)  # how long each took
    assert "| untouched | 0 | 0 | 2.000 | 4.000 | 0/2 | 0/2 | N/A | N/A | N/A |" in text
    assert "| tape | 40 | 32,768 | 1.750 | **1.500** | 1/2 | 0/2 | 125 | 1.50 GiB | s |" in text
    assert "| tape+lora | 90 | 32,768 | **1.500** | 1.750 | 1/2 | 0/2 | 125 | 1.50 GiB | s |" in text
    assert "| yarn | 0 | 0 | 2.125 | 1.875 | 1/2 | 0/2 | N/A | N/A | s |" in text
    assert "passkey 4,096 | passkey 12,288" in text and "tools/compare_methods.py" in text
    with open(runs / "compare_methods.csv") as file:
        table = {row["method"]: row for row in csv.DictReader(file)}
    assert table["yarn"]["loss_from_12288"] == "1.875" and table["yarn"]["tokens_per_second"] == ""
    assert (table["tape"]["passkey_4096_correct"], table["tape"]["passkey_12288_trials"]) == ("1", "2")
    assert (runs / "compare_methods.png").read_bytes()[:4] == b"\x89PNG"


def test_the_untouched_model_is_scored_once_and_the_table_grows_with_every_run(runs, monkeypatch):
    """So that results can be kept method by method: after the first there is a table of one."""
    sizes = []
    draw = plots.loss_by_position
    monkeypatch.setattr(
        plots, "loss_by_position", lambda curves, *rest: sizes.append(list(curves)) or draw(curves, *rest)
    )
    compare(runs, "yarn", "tape")
    assert sizes == [["untouched", "yarn"], ["untouched", "yarn", "tape"]]
    before = [results.load(runs / name / "results" / "run.json").config["eval_before"] for name in ("yarn", "tape")]
    assert before == [True, False]


def test_what_is_complete_is_not_repeated_in_whatever_order(runs, capsys):
    """``tape`` came without scores of the untouched model the first time, and would have been the one to have them."""
    compare(runs, "yarn", "tape")
    capsys.readouterr()
    compare(runs, "tape", "yarn", "tape+lora")
    shown = capsys.readouterr().out
    assert "tape: complete, not repeated" in shown and "yarn: complete, not repeated" in shown
    assert "tape+lora: training" in shown and "| untouched |" in shown
    compare(runs, "tape", behind=["--learning_rate", "0.5"])
    assert "tape: training" in capsys.readouterr().out


def test_seeds_and_arms_of_a_file(runs, capsys):
    """The untouched model has no seed, so it is in no claim, and is scored once."""
    file = runs.parent / "arms.yaml"
    file.write_text("TAPE: {method: tape}\nwith adapters: {method: tape+lora, lora_r: 4}\n")
    own = ["--recipe", str(runs.parent / "mine"), "--arms", str(file), "--output", str(runs), "--processes", "2"]
    assert compare_methods.main([*own, "--seeds", "1", "2"]) == 0
    figures = results.load(runs / "compare_methods.json").figures
    assert [row["method"] for row in figures["methods"]] == ["untouched", *["TAPE", "with adapters"] * 2]
    assert figures["comparison"]["primary"] == "loss_past_native"
    assert [claim["arm"] for claim in figures["comparison"]["claims"]] == ["with adapters"]
    text = (runs / "compare_methods.md").read_text()
    assert "| untouched | 1 | 0 | 0 | 2.000 | 4.000 |" in text
    assert "| with adapters | 2 | 90 | 32,768 | **1.500 ± 0.000** | 1.750 ± 0.000 | 2/4 | 0/4 | 125 |" in text
    assert results.load(runs / "TAPE_seed_2" / "results" / "run.json").config["eval_before"] is False
    file.write_text("a: {method: lorra}\nb: {lora_r: 4}\n")
    assert compare_methods.main(own) == 2
    message = capsys.readouterr().err
    assert "did you mean 'lora'" in message and "b has none" in message


def test_somebody_may_ask_for_the_scores_before(runs):
    compare(runs, 'tape{"eval_before": false}', "yarn", behind=["--eval_before", "true"])
    scored = {
        folder.name: "untouched" in results.load(folder / "results" / "run.json").figures["loss_by_position"]
        for folder in runs.iterdir()
        if folder.is_dir()
    }
    assert scored == {"tape_eval_before=False": False, "yarn": True}


def test_a_run_that_fails_is_named_and_the_others_are_compared(runs, capsys):
    assert compare(runs, "lora", "tape") == 1
    captured = capsys.readouterr()
    assert "FAILED: lora" in captured.err and str(runs / "lora" / "log.txt") in captured.err
    assert "| tape |" in captured.out and "| lora |" not in captured.out and "| untouched |" in captured.out


def test_a_run_cut_short_is_resumed_by_the_same_recipe_only(runs, capsys):
    """A checkpoint of another recipe in the folder would have been gone on from, to its own figures' ruin."""
    compare(runs, "tape")
    (runs / "tape" / "results" / "run.json").unlink()
    (runs / "tape" / "checkpoint-3").mkdir()
    compare(runs, "tape")
    assert "--resume auto" in (runs / "tape" / "log.txt").read_text() and (runs / "tape" / "checkpoint-3").is_dir()
    compare(runs, "tape", behind=["--learning_rate", "0.5"])
    assert (runs / "tape.1" / "checkpoint-3").is_dir() and not (runs / "tape" / "checkpoint-3").exists()
    assert f"now in {runs / 'tape.1'}" in capsys.readouterr().out


@pytest.mark.parametrize("prefix", ["smollm2_16k", "smollm2_32k"])
def test_the_shipped_recipes_are_a_comparison(prefix, tmp_path):
    """Same tokens, text and questions for every method that there is; only then is the table one."""
    options = compare_methods.parse(["--recipe", prefix, "--output", str(tmp_path), "--processes", "2"])
    assert options.methods == ["tape", "tape+lora", "lora", "longlora", "theta", "yarn", "norms"]
    planned = compare_methods.check(options, [])
    assert [run.label for run in planned] == options.methods
    assert [run.label for run in planned if not run.recipe.trains] == ["yarn"]
    assert all(run.recipe.evaluation.passkey_lengths for run in planned)
