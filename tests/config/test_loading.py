"""What is read, what overrides what, and that all problems are in one message."""

from pathlib import Path

import pytest
import yaml

from tape_ds.config import command_line
from tape_ds.config.kinds import KINDS
from tape_ds.config.loading import load as load_recipe
from tape_ds.training import dry_run
from tests.config.helpers import GOOD, json_file, problems_of, write
from tests.config.loads import extension as load


def test_the_place_of_a_mistake_is_named():
    text = yaml.safe_dump(GOOD | {"zzz": 1})
    found, _ = problems_of("--recipe", write(text=text), "--aaa", "2")
    assert (
        f"mine.yaml line {text.count(chr(10))}" in found["zzz"].wrong
        and "command line" in found["aaa"].wrong
    )


def test_all_problems_are_in_one_message():
    path = write(
        lerning_rate=1,
        max_steps="ten",
        window=99999,
        deepspeed=json_file(gradient_cliping=1, train_batch_size=3),
        train_data=["sdtlib"],
        report_to="wanbd",
        method="lorra",
    )
    found, message = problems_of("--recipe", path, "--tf32", "maybe", "stray")
    given = {"lerning_rate", "max_steps", "window", "train_data", "report_to", "method", "tf32"}
    assert set(found) >= given | {"deepspeed.gradient_cliping", "deepspeed.train_batch_size"}
    assert "did you mean 'learning_rate'" in found["lerning_rate"].remedy
    assert (
        message.count("remedy:") == len(message.split("\n")[1:]) / 2 and "Traceback" not in message
    )


def test_a_wrong_field_silences_only_what_reads_it():
    """A target that is no number cannot be compared with the window; the batch still can be divided."""
    found, _ = problems_of(
        "--recipe", write(target_length="long", window=99999, global_batch_size=7)
    )
    assert set(found) == {"target_length", "global_batch_size"}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_every_kind_has_a_default_recipe_whose_plan_is_shown(kind, tmp_path):
    """It needs nothing but what is installed, and looking writes nothing."""
    recipe = load_recipe([], kind=kind)
    assert recipe.trainer.output_dir in dry_run.describe(recipe)
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_wins_over_the_file_and_the_file_over_its_base():
    write("base.yaml", learning_rate=1.0, warmup_steps=1, seed=1)
    Path("top.yaml").write_text("base: base.yaml\nwarmup_steps: 2\nseed: 2\n")
    kwargs = load(["--recipe", "top.yaml", "--seed", "3"]).trainer.kwargs
    assert (kwargs["learning_rate"], kwargs["warmup_steps"], kwargs["seed"]) == (1.0, 2, 3)


def test_a_mapping_replaces_that_of_the_base():
    write("base.yaml")
    Path("top.yaml").write_text(
        "base: base.yaml\nrope_parameters: {rope_type: linear, factor: 2.0}\n"
    )
    assert load(["--recipe", "top.yaml"]).model.rope_parameters == {
        "rope_type": "linear",
        "factor": 2.0,
    }


def test_a_base_is_next_to_its_recipe_or_a_shipped_one(tmp_path):
    Path("sub").mkdir()
    write("sub/base.yaml", seed=5)
    Path("sub/top.yaml").write_text("base: base\n")
    assert load(["--recipe", "sub/top.yaml"]).trainer.kwargs["seed"] == 5
    Path("sub/top.yaml").write_text("base: demo\nseed: 6\n")
    assert load(["--recipe", "sub/top.yaml"]).data.pose.chunks == 2


def test_dotted_overrides_change_one_key_and_keep_the_others():
    recipe = load(
        [
            "--recipe",
            write(),
            "--rope_parameters.factor",
            "4",
            "--position_options.feed_forward=false",
        ]
    )
    assert recipe.model.rope_parameters == {"rope_type": "yarn", "factor": 4}
    assert recipe.model.position_options == {"feed_forward": False}


def test_dotted_overrides_reach_into_a_json_given_in_the_recipe():
    path = write(deepspeed={"zero_optimization": {"stage": 2, "overlap_comm": True}})
    recipe = load(["--recipe", path, "--deepspeed.zero_optimization.stage", "1"])
    assert recipe.deepspeed["zero_optimization"] == {"stage": 1, "overlap_comm": True}


def test_numbers_may_be_spelled_as_text():
    """YAML 1.1 takes 1e-4 without a dot for a text."""
    text = yaml.safe_dump(
        {name: GOOD[name] for name in GOOD.keys() - {"learning_rate", "rope_parameters"}}
    )
    text += "learning_rate: 1e-4\nrope_parameters: {rope_type: yarn, factor: 2, rope_theta: 1e6}\n"
    recipe = load(["--recipe", write(text=text)])
    assert (
        recipe.trainer.kwargs["learning_rate"] == 1e-4
        and recipe.model.rope_parameters["rope_theta"] == 1e6
    )
    words = ["--learning-rate=2e-4", "--max_steps", "1e1", "--weight_decay", "0"]
    kwargs = load(["--recipe", write(), *words]).trainer.kwargs
    assert (kwargs["learning_rate"], kwargs["max_steps"], kwargs["weight_decay"]) == (2e-4, 10, 0)


@pytest.mark.parametrize(
    "argv",
    [
        ["--eval_data", "stdlib:typing.py", "stdlib:inspect.py"],
        ["--eval_data=stdlib:typing.py,stdlib:inspect.py"],
        ["--eval_data", '["stdlib:typing.py", "stdlib:inspect.py"]'],
    ],
)
def test_lists_on_the_command_line(argv):
    assert load(["--recipe", write(), *argv]).data.eval_data == [
        "stdlib:typing.py",
        "stdlib:inspect.py",
    ]


@pytest.mark.parametrize(
    "text, specs",
    [
        (
            "generated:retrieval#families=lookup,chain",
            ["generated:retrieval#families=lookup,chain"],
        ),
        ("text:a,b.txt", ["text:a,b.txt"]),
        ("text:a,b.txt,stdlib", ["text:a,b.txt", "stdlib"]),
        (
            "jsonl:a#x,y, stdlib:typing.py,arrow:b,c",
            ["jsonl:a#x,y", "stdlib:typing.py", "arrow:b,c"],
        ),
        ("text:a,stdlibs", ["text:a,stdlibs"]),
        (
            "stdlib,generated:retrieval#families=list,chain",
            ["stdlib", "generated:retrieval#families=list,chain"],
        ),
        ("stdlib,stdlib", ["stdlib", "stdlib"]),
    ],
)
def test_a_comma_of_a_data_spec_separates_nothing(text, specs):
    assert command_line.meant(text, list[str]) == specs
    assert command_line.meant(text, list[str] | str) == specs


def test_the_last_word_counts_on_the_command_line():
    """A script with its own flags can pass "$@" on; a list is replaced as a whole, like a number."""
    argv = [
        "--max_steps",
        "4",
        "--eval_data",
        "stdlib:typing.py",
        "--max_steps=6",
        "--eval_data",
        "stdlib:inspect.py",
    ]
    recipe = load(["--recipe", write(), *argv])
    assert (recipe.trainer.kwargs["max_steps"], recipe.data.eval_data) == (6, ["stdlib:inspect.py"])


def test_flags_without_a_value_negative_numbers_and_null():
    words = "--torch_compile --max_steps -1 --num_train_epochs 2 --deepspeed null --local_rank=1 --dry_run"
    recipe = load(["--recipe", write(), *words.split(), "--print_config", "--save_strategy", "no"])
    assert (
        recipe.trainer.kwargs["torch_compile"] is True and recipe.trainer.kwargs["max_steps"] == -1
    )
    assert recipe.deepspeed is None and recipe.dry_run and recipe.print_config
    assert recipe.trainer.kwargs["save_strategy"] == "no"


def test_the_first_word_is_the_recipe():
    """Also behind the rank that DeepSpeed's launcher puts before it."""
    path = write()
    named = load(["--recipe", path, "--max_steps", "4"])
    for argv in ([path, "--max_steps", "4"], ["--local_rank=0", path, "--max_steps", "4"]):
        assert load(argv).as_dict() == named.as_dict()
    assert problems_of(path, "--recipe", path)[0]["recipe"].wrong == "several recipes"
    found = problems_of("--max_steps=4", path)[0]
    assert found["command line"].wrong == "belongs to no --field"


@pytest.mark.parametrize(
    ("words", "value"),
    [
        ("--no_bf16", False),
        ("--no-bf16", False),
        ("--bf16 --no_bf16", False),
        ("--no_bf16 --bf16", True),
        ("--no_bf16 --bf16 --no_bf16", False),
        ("--bf16 --no_bf16 --bf16", True),
    ],
)
def test_a_flag_is_denied_by_no_and_the_last_word_counts(words, value):
    assert load([write(), *words.split()]).trainer.kwargs["bf16"] is value


def test_no_denies_flags_alone():
    found = problems_of(write(), "--no_window", "--no_eval_before", "5")[0]
    assert found["no_window"].wrong.startswith("unknown field")
    assert found["no_eval_before"].wrong.startswith("unknown field")


def test_null_means_not_given_but_for_deepspeed():
    text = yaml.safe_dump(
        GOOD | {"report_to": None, "output_dir": None, "window": None, "pose_chunks": 1}
    )
    recipe = load(["--recipe", write(text=text)])
    assert (
        recipe.trainer.kwargs["report_to"] == "none"
        and recipe.trainer.kwargs["output_dir"] == "runs/mine"
    )
    assert recipe.data.window == 16384


@pytest.mark.parametrize(
    ("base", "field", "default"),
    [
        (
            {"method": "lora", "lora_targets": ["up_proj"]},
            "lora_targets",
            ["q_proj", "k_proj", "v_proj", "o_proj"],
        ),
        ({"position_encoding": "rope", "method": "lora"}, "position_encoding", "rope"),
        ({"eval_data": ["stdlib:typing.py"]}, "eval_data", []),
        ({"max_documents": 5}, "max_documents", None),
        ({"report_to": "tensorboard"}, "report_to", "none"),
    ],
)
def test_null_on_the_command_line_is_null(base, field, default):
    """``--lora_targets null`` was read as a linear map of that name; only a file could take a base's value back."""
    recipe = load(["--recipe", write(**base), f"--{field}", "null"])
    assert (recipe.as_dict() | recipe.trainer.kwargs)[field] == default


def test_null_for_a_field_that_must_be_given_is_missing():
    found, _ = problems_of("--recipe", write(), "--model", "null", "--max_steps", "null")
    assert {name: problem.wrong for name, problem in found.items()} == {
        "model": "missing",
        "max_steps": "no length of training",
    }


def test_a_text_that_looks_like_another_value_stands_in_quotes():
    words = [
        "--sample_prompts",
        '"null"',
        "null",
        '"5"',
        'say "no"',
        '"word"',
        "--sample_steps",
        "3",
    ]
    (problem,) = problems_of("--recipe", write(), *words)[0].values()
    assert problem.value == ["null", None, "5", 'say "no"', '"word"']
    recipe = load(["--recipe", write(), "--run_name", '"null"'])
    assert recipe.trainer.kwargs["run_name"] == "null"


def test_lists_and_mappings_are_taken_as_remedies_write_them():
    words = [
        "--rope_parameters",
        "{rope_type: yarn, factor: 2.0}",
        "--eval_data",
        "[stdlib:typing.py, stdlib:inspect.py]",
    ]
    recipe = load(["--recipe", write(), *words])
    assert recipe.model.rope_parameters == {"rope_type": "yarn", "factor": 2.0}
    assert recipe.data.eval_data == ["stdlib:typing.py", "stdlib:inspect.py"]


def test_a_bare_no_of_yaml_is_the_word():
    text = yaml.safe_dump(GOOD) + "save_strategy: no\n"
    assert load(["--recipe", write(text=text)]).trainer.kwargs["save_strategy"] == "no"
