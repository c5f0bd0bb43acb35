"""What is read, what overrides what, and that everything wrong is said at once, with its remedy."""

from pathlib import Path

import pytest
import yaml

from tape_ds.config.extension import load
from tests.config.helpers import GOOD, check_malformed, json_file, problems_of, write

# --- what is wrong: (what to change, expected field, part of the value shown, part of the remedy)

MALFORMED = {
    "unknown key": ({"lerning_rate": 1e-4}, "lerning_rate", "0.0001", "did you mean 'learning_rate'"),
    "unknown key of ours": ({"pose_chunk": 2}, "pose_chunk", "2", "did you mean 'pose_chunks'"),
    "warmup_ratio": ({"warmup_ratio": 0.1}, "warmup_ratio", "0.1", "warmup_steps"),
    "evaluation_strategy": ({"evaluation_strategy": "steps"}, "evaluation_strategy", "steps", "did you mean"),
    "tokenizer": ({"tokenizer": "x"}, "tokenizer", "x", "one of: "),
    "not a number": ({"learning_rate": "fast"}, "learning_rate", "fast", "give a number"),
    "not whole": ({"max_steps": 2.5}, "max_steps", "2.5", "whole number"),
    "number for bool": ({"bf16": 1}, "bf16", "1", "true or false"),
    "text for list": ({"eval_data": {"a": 1}}, "eval_data", "{'a': 1}", "give a list"),
    "text for mapping": ({"rope_parameters": "yarn"}, "rope_parameters", "yarn", "mapping"),
    "number for text": ({"run_name": 7}, "run_name", "7", "give a text"),
    "not of 64 bits": ({"max_steps": 2**63}, "max_steps", "9223372036854775808", "64 bits"),
    "beyond every float": ({"weight_decay": 10**400}, "weight_decay", "1000", "give a number"),
    "not finite": ({"weight_decay": float("nan")}, "weight_decay", "nan", "give a number"),
    "negative rate": ({"learning_rate": -1.0}, "learning_rate", "-1.0", "above 0"),
    "seed": ({"seed": 2**32}, "seed", "4294967296", "4294967295"),
    "huge batch": ({"per_device_train_batch_size": 10**15}, "global_batch_size", "8", "per_device_train_batch_size: 8"),
    "save_total_limit": ({"save_total_limit": 0}, "save_total_limit", "0", "1 or more"),
    "scheduler choice": ({"lr_scheduler_type": "cosin"}, "lr_scheduler_type", "cosin", "cosine"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_recipe_names_field_value_and_remedy(name):
    check_malformed(*MALFORMED[name])


FILES = {
    "empty": ("", "empty", "field: value"),
    "a list": ("- a\n- b\n", "a list", "field: value"),
    "broken": ("model: smollm2\nwindow: [1, 2\nmax_steps: 3\n", "line 3", "correct"),
    "a tab": ("model: smollm2\nrope_parameters:\n\trope_type: yarn\n", "line 3", "spaces"),
    "an object": ("model: !!python/object/apply:os.system [echo]\n", "line 1", "correct"),
    "two documents": ("model: a\n---\nmodel: b\n", "line 2", "correct"),
    "a strange character": ("model: a\x07\n", "not readable as YAML", "remove"),
    "a truth that is none": ("bf16: !!bool x\n", "tag forbids", "quotes"),
    "a number that is none": ("seed: !!int x\n", "tag forbids", "quotes"),
    "a date that is none": ("seed: 2001-99-99\n", "form or tag forbids", "quotes"),
    "brackets without end": ("lora_targets: " + "[" * 3000 + "]" * 3000 + "\n", "recursion", "flat"),
    "a list of itself": ("lora_targets: &a [*a]\n", "recursive", "correct"),
    "a billion laughs": (
        "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\n"
        "d: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\nlora_targets: [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\n",
        "more than 20 aliases",
        "correct",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_an_unreadable_recipe_says_where(name):
    text, wrong, remedy = FILES[name]
    found, message = problems_of("--recipe", write(text=text))
    assert set(found) == {"recipe"} and "mine.yaml" in message
    assert wrong in found["recipe"].wrong and remedy in found["recipe"].remedy


def test_a_key_written_twice():
    text = yaml.safe_dump(GOOD) + "window: 512\n"
    found, message = problems_of("--recipe", write(text=text))
    assert f"line {text.count(chr(10))}" in found["window"].wrong and "mine.yaml" in message


def test_a_key_written_twice_inside_a_mapping():
    text = yaml.safe_dump({key: value for key, value in GOOD.items() if key != "rope_parameters"})
    found, _ = problems_of("--recipe", write(text=text + "rope_parameters: {rope_type: yarn, factor: 2, factor: 4}\n"))
    assert set(found) == {"factor"}


def test_an_unknown_recipe_is_answered_with_the_near_one():
    found, _ = problems_of("--recipe", "dmeo")
    assert "did you mean 'demo'" in found["recipe"].remedy


def test_a_missing_file():
    found, message = problems_of("--recipe", "gone/mine.yaml")
    assert set(found) == {"recipe"} and "gone/mine.yaml" in message


def test_a_circle_of_bases():
    write("one.yaml", base="two.yaml")
    write("two.yaml", base="one.yaml")
    found, _ = problems_of("--recipe", "one.yaml")
    assert "one.yaml -> two.yaml -> one.yaml" in found["base"].wrong


def test_a_missing_base():
    found, _ = problems_of("--recipe", write(base="gone"))
    assert found["base"].value == "gone"


def test_required_fields_are_named_together():
    found, _ = problems_of("--recipe", write(without=("model", "target_length", "train_data")))
    assert set(found) == {"model", "target_length", "train_data"}


# --- the command line

COMMAND_LINE = {
    "unknown flag": (["--lerning_rate", "1e-4"], "lerning_rate", "1e-4", "did you mean 'learning_rate'"),
    "unknown mapping": (["--rope.factor", "2"], "rope.factor", "2", "did you mean 'rope_parameters'"),
    "key of no mapping": (["--window.size", "2"], "window.size", "2", "--window VALUE"),
    "no value": (["--learning_rate"], "learning_rate", "None", "--learning_rate VALUE"),
    "wrong type": (["--max_steps=many"], "max_steps", "many", "whole number"),
    "not a bool": (["--bf16", "yes"], "bf16", "yes", "true or false"),
    "not JSON": (["--rope_parameters", "{factor"], "rope_parameters", "{factor", "JSON"),
    "unknown switch": (["--no_cuda"], "no_cuda", "None", "one of: "),
    "stray": (["fast"], "command line", "fast", "--field value"),
    "a recipe without its flag": (["demo"], "command line", "demo", "--recipe demo"),
    "key inside a named file": (["--deepspeed.bf16.enabled", "false"], "deepspeed.bf16.enabled", "false", "file"),
    "brackets without end": (["--train_data", "[" * 5000], "train_data", "[[[", "JSON"),
    "braces without end": (["--rope_parameters", '{"a":' * 5000], "rope_parameters", "{", "JSON"),
    "a number without end": (["--max_steps", "9" * 5000], "max_steps", "999", "whole number"),
    "no texts in a list of several": (["--label_names", "[null]", "a"], "label_names", "null", "each item a text"),
    "switch": (["--dry_run", "maybe"], "dry_run", "maybe", "true or false"),
}


@pytest.mark.parametrize("name", COMMAND_LINE)
def test_a_malformed_command_line_names_field_value_and_remedy(name):
    argv, field, value, remedy = COMMAND_LINE[name]
    stray = field == "command line"
    found, message = problems_of(*argv, "--recipe", write()) if stray else problems_of("--recipe", write(), *argv)
    assert set(found) == {field}, message
    assert value in message and remedy in found[field].remedy, message


def test_the_place_of_a_mistake_is_said():
    text = yaml.safe_dump(GOOD | {"zzz": 1})
    found, _ = problems_of("--recipe", write(text=text), "--aaa", "2")
    assert f"mine.yaml line {text.count(chr(10))}" in found["zzz"].wrong and "command line" in found["aaa"].wrong


def test_everything_is_said_at_once():
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
    assert set(found) >= {
        "lerning_rate",
        "max_steps",
        "window",
        "deepspeed.gradient_cliping",
        "deepspeed.train_batch_size",
        "train_data",
        "report_to",
        "method",
        "tf32",
    }
    assert message.count("remedy:") == len(message.split("\n")[1:]) / 2 and "Traceback" not in message


def test_a_wrong_field_silences_only_what_reads_it():
    """A target that is no number cannot be compared with the window; the batch still can be divided."""
    found, _ = problems_of("--recipe", write(target_length="long", window=99999, global_batch_size=7))
    assert set(found) == {"target_length", "global_batch_size"}


# --- what is right


def test_the_command_line_wins_over_the_file_and_the_file_over_its_base():
    write("base.yaml", learning_rate=1.0, warmup_steps=1, seed=1)
    Path("top.yaml").write_text("base: base.yaml\nwarmup_steps: 2\nseed: 2\n")
    kwargs = load(["--recipe", "top.yaml", "--seed", "3"]).trainer.kwargs
    assert (kwargs["learning_rate"], kwargs["warmup_steps"], kwargs["seed"]) == (1.0, 2, 3)


def test_a_mapping_replaces_that_of_the_base():
    write("base.yaml")
    Path("top.yaml").write_text("base: base.yaml\nrope_parameters: {rope_type: linear, factor: 2.0}\n")
    assert load(["--recipe", "top.yaml"]).model.rope_parameters == {"rope_type": "linear", "factor": 2.0}


def test_a_base_lies_beside_its_recipe_or_among_the_shipped_ones(tmp_path):
    Path("sub").mkdir()
    write("sub/base.yaml", seed=5)
    Path("sub/top.yaml").write_text("base: base\n")
    assert load(["--recipe", "sub/top.yaml"]).trainer.kwargs["seed"] == 5
    Path("sub/top.yaml").write_text("base: demo\nseed: 6\n")
    assert load(["--recipe", "sub/top.yaml"]).data.pose.chunks == 2


def test_dotted_overrides_change_one_key_and_keep_the_others():
    recipe = load(["--recipe", write(), "--rope_parameters.factor", "4", "--position_options.feed_forward=false"])
    assert recipe.model.rope_parameters == {"rope_type": "yarn", "factor": 4}
    assert recipe.model.position_options == {"feed_forward": False}


def test_dotted_overrides_reach_into_a_json_given_in_the_recipe():
    path = write(deepspeed={"zero_optimization": {"stage": 2, "overlap_comm": True}})
    recipe = load(["--recipe", path, "--deepspeed.zero_optimization.stage", "1"])
    assert recipe.deepspeed["zero_optimization"] == {"stage": 1, "overlap_comm": True}


def test_numbers_may_be_spelled_as_text():
    """YAML 1.1 takes 1e-4 without a dot for a text."""
    text = yaml.safe_dump({key: value for key, value in GOOD.items() if key != "learning_rate"})
    assert load(["--recipe", write(text=text + "learning_rate: 1e-4\n")]).trainer.kwargs["learning_rate"] == 1e-4
    kwargs = load(
        ["--recipe", write(), "--learning-rate=2e-4", "--max_steps", "1e1", "--weight_decay", "0"]
    ).trainer.kwargs
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
    assert load(["--recipe", write(), *argv]).data.eval_data == ["stdlib:typing.py", "stdlib:inspect.py"]


def test_the_last_word_counts_on_the_command_line():
    """A script with flags of its own can pass "$@" on; a list is replaced as a whole, like a number."""
    argv = ["--max_steps", "4", "--eval_data", "stdlib:typing.py", "--max_steps=6", "--eval_data", "stdlib:inspect.py"]
    recipe = load(["--recipe", write(), *argv])
    assert (recipe.trainer.kwargs["max_steps"], recipe.data.eval_data) == (6, ["stdlib:inspect.py"])


def test_flags_without_a_value_negative_numbers_and_null():
    argv = [
        "--recipe",
        write(),
        "--torch_compile",
        "--max_steps",
        "-1",
        "--num_train_epochs",
        "2",
        "--deepspeed",
        "null",
    ]
    recipe = load([*argv, "--local_rank=1", "--dry_run", "--print_config", "--save_strategy", "no"])
    assert recipe.trainer.kwargs["torch_compile"] is True and recipe.trainer.kwargs["max_steps"] == -1
    assert recipe.deepspeed is None and recipe.dry_run and recipe.print_config
    assert recipe.trainer.kwargs["save_strategy"] == "no"


def test_null_means_not_given_but_for_deepspeed():
    text = yaml.safe_dump(GOOD | {"report_to": None, "output_dir": None, "window": None, "pose_chunks": 1})
    recipe = load(["--recipe", write(text=text)])
    assert recipe.trainer.kwargs["report_to"] == "none" and recipe.trainer.kwargs["output_dir"] == "runs/mine"
    assert recipe.data.window == 16384


def test_numbers_inside_a_mapping_may_be_spelled_as_text_too():
    text = yaml.safe_dump({key: value for key, value in GOOD.items() if key != "rope_parameters"})
    text += "rope_parameters: {rope_type: yarn, factor: 2, rope_theta: 1e6}\n"
    assert load(["--recipe", write(text=text)]).model.rope_parameters["rope_theta"] == 1e6


def test_a_bare_no_of_yaml_is_the_word():
    text = yaml.safe_dump(GOOD) + "save_strategy: no\n"
    assert load(["--recipe", write(text=text)]).trainer.kwargs["save_strategy"] == "no"
