"""The plan that ``--dry_run`` prints."""

import shlex
from pathlib import Path

import pytest

from tape_ds import run_folder
from tape_ds.cli import plan as tools_plan
from tape_ds.config import files
from tape_ds.engines import forms
from tape_ds.errors import UserError
from tape_ds.export import config_json
from tape_ds.planning import hardware, recipe_job
from tape_ds.resilience import run_lock
from tape_ds.targets.find import known_target
from tape_ds.training import dry_run
from tests.config import loads
from tests.config.loads import extension as load


def test_scaling_alone_needs_no_batch_that_divides():
    lines = dry_run.describe(load(["--method", "yarn", "--max_steps", "-1"], world_size=3))
    assert (
        "yarn, training nothing" in lines
        and "no DeepSpeed" in lines
        and "tokens a step" not in lines
    )


def test_the_plan_says_which_engines_will_serve_it():
    """YaRN is written in the form that most of them read; another scaling, or a factor of its own, loses some."""
    words = ["--recipe", "demo", "--method", "lora", "--position_options", "{}", "--dry_run"]
    served = [
        next(
            each
            for each in dry_run.describe(load([*words, *more], world_size=1)).splitlines()
            if "served " in each
        )
        for more in ([], ["--rope_parameters.attention_factor", "1.0"], ["--method", "tape+lora"])
    ]
    assert (
        served[0].partition("; ")[0].endswith("right by vLLM, SGLang, mlx-lm, OpenVINO, llama.cpp")
    )
    assert "; right with a flag by LMDeploy; " in served[0]
    assert (
        "SILENTLY WRONG in onnxruntime-genai" in served[0] and "refused by CTranslate2" in served[0]
    )
    assert served[1] != served[0] and "transformers with the folder's own code" in served[2]


def test_shipped_recipes_use_the_form_of_yarn_that_most_engines_read():
    seen = []
    for name in files.recipes_of("extend_llama"):
        target = known_target(load(["--recipe", name, "--dry_run"], world_size=1))
        if target is not None:
            form = forms.form_of(config_json.planned(target.config))
            seen.append(form.scaling)
            assert form.scaling != "yarn_exact_ramp" and set(form.traits) <= {
                form.scaling,
                "yarn_betas_unnamed",
            }, name
    assert "yarn" in seen and "linear" in seen


def line(recipe):
    """The plan's line about memory."""
    return next(
        each for each in dry_run.describe(recipe).splitlines() if each.startswith("memory ")
    )


def test_the_command_of_a_plan_for_gpus_asks_for_the_same_run(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hardware, "gpu_at_hand", lambda: None)
    Path("my.yaml").write_text("base: demo\n")
    words = [
        "--recipe",
        "my.yaml",
        "--method",
        "lora",
        "--rope_parameters.factor",
        "null",
        "--dry_run",
    ]
    words += ["--train_data", '["stdlib"]']
    recipe = load(words, world_size=2)
    asked = line(recipe).partition("tape-ds plan ")[2]
    assert asked.endswith(" --gpus 2 --gpu h100-80")
    own, fields = tools_plan.parse(shlex.split(asked))
    again = tools_plan.load(own.recipe, fields, own.gpus)
    assert again.as_dict() == recipe.as_dict() and own.recipe == "my.yaml"


@pytest.mark.parametrize(("gpu", "fits"), [("h200", True), ("v100-32", False)])
def test_the_plan_compares_memory_with_the_gpu_at_hand(gpu, fits, monkeypatch):
    monkeypatch.setattr(hardware, "gpu_at_hand", lambda: hardware.find(gpu))
    words = ["--deepspeed", "zero1", "--activation_checkpointing", "false"]
    shown = line(load(["--recipe", "llama2_7b_8k", *words], world_size=8))
    assert f"({gpu})" in shown and ("DOES NOT FIT" not in shown) is fits


def test_the_plan_says_that_the_folder_is_taken(tmp_path):
    """By an earlier run, or by a file of a person, which no option removes."""
    output = tmp_path / "run"
    words = ["--recipe", "demo", "--output_dir", str(output), "--dry_run"]
    assert "it holds" not in dry_run.describe(load(words, world_size=1))
    (output / "results").mkdir(parents=True)
    (output / "results" / "run.json").write_text("{}")
    for more in ([], ["--start_anew"]):
        assert "no run is known to have written: results/run.json" in dry_run.describe(
            load([*words, *more], world_size=1)
        )
    run_folder.begin(output, 0, {})
    assert "it holds an earlier run's results/ (1 file)" in dry_run.describe(
        load(words, world_size=1)
    )
    assert "it holds" not in dry_run.describe(load([*words, "--start_anew"], world_size=1))
    lock = run_lock.RunLock(output, 0)
    lock.acquire()
    try:
        for more in ([], ["--start_anew"], ["--resume_from_checkpoint", "auto"]):
            shown = dry_run.describe(load([*words, *more], world_size=1))
            assert "another run is using this folder" in shown and "it holds" not in shown
    finally:
        lock.release()


def test_what_a_library_and_what_the_model_refuses_is_one_message():
    words = [
        "--recipe",
        "chat_tiny",
        "--torch_compile",
        "--torch_compile_mode",
        "x",
        "--position_learning_rate",
        "10x",
    ]
    with pytest.raises(UserError) as refused:
        dry_run.describe(loads.chat([*words, "--dry_run"]))
    assert len(refused.value.problems) == 2


def test_memory_that_a_library_cannot_count_is_a_mistake(monkeypatch):
    """The dry run had the library's error in its line about memory, and exit code 0; the run itself was a traceback."""

    def overflow(*_):
        raise RuntimeError("Storage size calculation overflowed\nwith sizes=[9223372036854775807]")

    monkeypatch.setattr(recipe_job, "memory_line", overflow)
    with pytest.raises(
        UserError, match="RuntimeError: Storage size calculation overflowed with"
    ) as refused:
        dry_run.describe(load(["--recipe", "demo"]))
    assert [problem.field for problem in refused.value.problems] == ["window"]
