"""Recipes: what is read, what overrides what, and that everything wrong is said at once, with its remedy."""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from tape_ds.errors import UserError
from tape_ds.training.recipe import arguments, files, trainer_fields
from tape_ds.training.recipe.arguments import check_against_model, load

RECIPES = ("demo", "llama2_7b_8k", "llama2_7b_8k_as_shipped", "llama3_8b_32k", "smollm2_16k")

GOOD = {
    "model": "smollm2",
    "target_length": 16384,
    "rope_parameters": {"rope_type": "yarn", "factor": 2.0},
    "train_data": ["stdlib"],
    "window": 1024,
    "pose_chunks": 2,
    "max_steps": 4,
    "learning_rate": 3e-4,
    "per_device_train_batch_size": 2,
    "global_batch_size": 8,
    "bf16": True,
    "deepspeed": "zero3",
}


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    """Recipes write nothing, but their checks look at output_dir and at relative paths."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    return tmp_path


def write(name="mine.yaml", without=(), text=None, **fields):
    """A recipe file in the current folder: :data:`GOOD` with ``fields``, or exactly ``text``."""
    content = {key: value for key, value in (GOOD | fields).items() if key not in without}
    Path(name).write_text(yaml.safe_dump(content) if text is None else text)
    return name


def problems_of(*argv, world_size=1):
    """Problems of a recipe that must not load, as {field: problem}, and the message."""
    with pytest.raises(UserError) as caught:
        load(list(argv), world_size=world_size)
    return {problem.field: problem for problem in caught.value.problems}, str(caught.value)


def json_file(**changes):
    """A DeepSpeed JSON of our own: a good one with ``changes``."""
    Path("ds.json").write_text(json.dumps({"zero_optimization": {"stage": 2}} | changes))
    return "ds.json"


# --- what is wrong: (what to change, expected field, part of the value shown, part of the remedy)

MALFORMED = {
    "saving by epochs": ({"save_strategy": "epoch"}, "save_strategy", "epoch", "save_steps"),
    # names
    "unknown key": ({"lerning_rate": 1e-4}, "lerning_rate", "0.0001", "did you mean 'learning_rate'"),
    "unknown key of ours": ({"pose_chunk": 2}, "pose_chunk", "2", "did you mean 'pose_chunks'"),
    "warmup_ratio": ({"warmup_ratio": 0.1}, "warmup_ratio", "0.1", "warmup_steps"),
    "evaluation_strategy": ({"evaluation_strategy": "steps"}, "evaluation_strategy", "steps", "eval_data"),
    "overwrite_output_dir": ({"overwrite_output_dir": True}, "overwrite_output_dir", "True", "resume_from_checkpoint"),
    "logging_dir": ({"logging_dir": "logs"}, "logging_dir", "logs", "TENSORBOARD_LOGGING_DIR"),
    "save_safetensors": ({"save_safetensors": False}, "save_safetensors", "False", "only format"),
    "tokenizer": ({"tokenizer": "x"}, "tokenizer", "x", "model"),
    "group_by_length": ({"group_by_length": True}, "group_by_length", "True", "one length"),
    # types and ranges
    "not a number": ({"learning_rate": "fast"}, "learning_rate", "fast", "give a number"),
    "not whole": ({"max_steps": 2.5}, "max_steps", "2.5", "whole number"),
    "number for bool": ({"bf16": 1}, "bf16", "1", "true or false"),
    "text for list": ({"eval_data": {"a": 1}}, "eval_data", "{'a': 1}", "give a list"),
    "text for mapping": ({"rope_parameters": "yarn"}, "rope_parameters", "yarn", "mapping"),
    "number for text": ({"run_name": 7}, "run_name", "7", "give a text"),
    "not finite": ({"weight_decay": float("nan")}, "weight_decay", "nan", "give a number"),
    "negative rate": ({"learning_rate": -1.0}, "learning_rate", "-1.0", "above 0"),
    "seed": ({"seed": 2**32}, "seed", "4294967296", "4294967295"),
    "huge batch": ({"per_device_train_batch_size": 10**15}, "global_batch_size", "8", "per_device_train_batch_size: 8"),
    "save_total_limit": ({"save_total_limit": 0}, "save_total_limit", "0", "1 or more"),
    "scheduler choice": ({"lr_scheduler_type": "cosin"}, "lr_scheduler_type", "cosin", "cosine"),
    # model and positions
    "no such folder": ({"model": "./nowhere"}, "model", "./nowhere", "hub id"),
    "close to smollm2": ({"model": "smolm2"}, "model", "smolm2", "did you mean 'smollm2'"),
    "no such gguf": ({"model": "a.gguf"}, "model", "a.gguf", "GGUF"),
    "shorter than native": ({"target_length": 4096}, "target_length", "4096", "8192 or more"),
    "factor too small": ({"target_length": 32768}, "rope_parameters.factor", "2.0", "4 or more"),
    "unknown rope type": ({"rope_parameters": {"rope_type": "yran"}}, "rope_parameters.rope_type", "yran", "yarn"),
    "factor of no type": ({"rope_parameters": {"factor": 2}}, "rope_parameters", "factor", "rope_type"),
    "unknown encoding": ({"position_encoding": "adape"}, "position_encoding", "adape", "tape"),
    "unknown option": ({"position_options": {"rnak": 4}}, "position_options.rnak", "4", "rank"),
    "unknown state dtype": ({"state_dtype": "fp32"}, "state_dtype", "fp32", "float32"),
    "unknown backend": ({"attention_backend": "flash9"}, "attention_backend", "flash9", "sdpa"),
    # data
    "window beyond target": ({"window": 99999}, "window", "99999", "16384 or less"),
    "pointless pose": ({"window": 16384}, "window", "16384", "pose_chunks: 1"),
    "window below chunks": ({"window": 3, "pose_chunks": 4}, "window", "3", "a token or more"),
    "no chunks": ({"pose_chunks": 0}, "pose_chunks", "0", "1 packs rows"),
    "unknown address": ({"train_data": ["sdtlib"]}, "train_data", "sdtlib", "stdlib"),
    "no such text": ({"train_data": ["text:none/*.txt"]}, "train_data", "text:none/*.txt", "check the path"),
    "no data": ({"train_data": []}, "train_data", "[]", "stdlib"),
    "same document": (
        {"train_data": ["stdlib:ast.py"], "eval_data": ["stdlib:ast.py"]},
        "eval_data",
        "stdlib:ast.py",
        "other documents",
    ),
    "span beyond length": ({"eval_length": 512, "eval_span": 1024}, "eval_span", "1024", "one stretch"),
    # method
    "unknown method": ({"method": "lorra"}, "method", "lorra", "did you mean 'lora'"),
    "tape without tape": ({"position_encoding": "rope"}, "method", "tape", "position_encoding: tape"),
    "nothing trained": ({"train_position": False, "train_norms": False}, "method", "tape", "train_norms"),
    "full but not": ({"method": "full", "train_norms": False}, "train_norms", "False", "remove it"),
    "no rank": ({"method": "lora", "lora_r": 0}, "lora_r", "0", "1 or more"),
    "unknown target": ({"method": "lora", "lora_targets": ["q_prj"]}, "lora_targets", "q_prj", "q_proj"),
    "position as target": ({"method": "lora", "lora_targets": ["gate"]}, "lora_targets", "gate", "gate_proj"),
    "adapters of tape": ({"lora_r": 8}, "lora_r", "8", "method: lora"),
    # steps and batch
    "no duration": ({"max_steps": 0}, "max_steps", "0", "num_train_epochs"),
    "two durations": ({"num_train_epochs": 1}, "num_train_epochs", "1", "remove one"),
    "warm-up too long": ({"warmup_steps": 9}, "warmup_steps", "9", "fewer"),
    "batch not divisible": ({"global_batch_size": 7}, "global_batch_size", "7", "per_device_train_batch_size: 1"),
    "other accumulation": ({"gradient_accumulation_steps": 3}, "gradient_accumulation_steps", "3", "follows"),
    "two precisions": ({"fp16": True}, "fp16", "True", "keep one"),
    # fields of ours
    "nan filter": ({"logging_nan_inf_filter": True}, "logging_nan_inf_filter", "True", "remove it"),
    "columns": ({"remove_unused_columns": True}, "remove_unused_columns", "True", "remove it"),
    "sampling": ({"train_sampling_strategy": "random"}, "train_sampling_strategy", "random", "seed"),
    "fsdp": ({"fsdp": "full_shard"}, "fsdp", "full_shard", "deepspeed"),
    "token": ({"hub_token": "hf_x"}, "hub_token", "hf_x", "HF_TOKEN"),
    "reentrant": (
        {"activation_checkpointing": True, "activation_checkpointing_kwargs": {"use_reentrant": True}},
        "activation_checkpointing_kwargs.use_reentrant",
        "True",
        "give false",
    ),
    # places
    "unknown tracker": ({"report_to": "wanbd"}, "report_to", "wanbd", "did you mean 'wandb'"),
    "tracker missing": ({"report_to": ["comet_ml"]}, "report_to", "comet_ml", "pip install comet-ml"),
    "no checkpoint": ({"resume_from_checkpoint": "gone"}, "resume_from_checkpoint", "gone", "checkpoint-N"),
    "output is a file": ({"output_dir": "mine.yaml"}, "output_dir", "mine.yaml", "another folder"),
    "no such json": ({"deepspeed": "zero4"}, "deepspeed", "zero4", "did you mean 'zero3'"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_a_malformed_recipe_names_field_value_and_remedy(name):
    change, field, value, remedy = MALFORMED[name]
    found, message = problems_of("--recipe", write(**change))
    assert set(found) == {field}, message
    assert value in message and remedy in found[field].remedy, message
    assert message.startswith("1 problem found; nothing was started")


DEEPSPEED = {
    "unknown at the top": ({"gradient_cliping": 1.0}, "gradient_cliping", "1.0", "gradient_clipping"),
    "unknown in zero": (
        {"zero_optimization": {"stage": 2, "overlap_com": True}},
        "zero_optimization.overlap_com",
        "True",
        "overlap_comm",
    ),
    "unknown two levels down": (
        {"zero_optimization": {"stage": 3, "offload_param": {"devise": "cpu"}}},
        "zero_optimization.offload_param.devise",
        "cpu",
        "device",
    ),
    "unknown where DeepSpeed reads key by key": (
        {"flops_profiler": {"enable": True}},
        "flops_profiler.enable",
        "True",
        "enabled",
    ),
    "wrong type": ({"zero_optimization": {"stage": "three"}}, "zero_optimization.stage", "three", "reference"),
    "wrong type of a scalar": ({"steps_per_print": "often"}, "steps_per_print", "often", "whole number"),
    "not a block": ({"bf16": True}, "bf16", "True", "key"),
    "removed": ({"elasticity": {"enabled": True}}, "elasticity", "enabled", "remove it"),
    "removed in zero": (
        {"zero_optimization": {"stage": 3, "mics_shard_size": 8}},
        "zero_optimization.mics_shard_size",
        "8",
        "remove it",
    ),
    "auto that nothing fills": ({"steps_per_print": "auto"}, "steps_per_print", "auto", "remove the key"),
    "no part in this": ({"hybrid_engine": {"enabled": True}}, "hybrid_engine", "enabled", "remove it"),
    "does nothing": (
        {"activation_checkpointing": {"cpu_checkpointing": True}},
        "activation_checkpointing",
        "cpu_checkpointing",
        "activation_checkpointing: true",
    ),
    "other micro-batch": ({"train_micro_batch_size_per_gpu": 4}, "train_micro_batch_size_per_gpu", "4", '"auto"'),
    "other accumulation": ({"gradient_accumulation_steps": 1}, "gradient_accumulation_steps", "1", '"auto"'),
    "other batch": ({"train_batch_size": 64}, "train_batch_size", "64", '"auto"'),
    "other clipping": ({"gradient_clipping": 0.5}, "gradient_clipping", "0.5", "max_grad_norm"),
    "other precision": ({"bf16": {"enabled": False}}, "bf16.enabled", "False", "bf16"),
    "other rate": (
        {"optimizer": {"type": "AdamW", "params": {"lr": 0.1, "betas": "auto"}}},
        "optimizer.params.lr",
        "0.1",
        "learning_rate",
    ),
    "other optimizer": ({"optimizer": {"type": "Lamb"}}, "optimizer.type", "Lamb", "remove the optimizer"),
    "unknown parameter": (
        {"optimizer": {"type": "AdamW", "params": {"leaning_rate": 1}}},
        "optimizer.params.leaning_rate",
        "1",
        "one of",
    ),
    "other scheduler": ({"scheduler": {"type": "OneCycle"}}, "scheduler.type", "OneCycle", "remove the scheduler"),
    "offload without its stage": (
        {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
        "zero_optimization.offload_param.device",
        "cpu",
        "stage 3",
    ),
    "refused by a validator": ({"zero_optimization": {"leaf_module": 3}}, "zero_optimization", "3", "reference"),
    "unknown data type": ({"communication_data_type": "fp12"}, "communication_data_type", "fp12", "bf16"),
    "nvme without a path": (
        {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}},
        "zero_optimization.offload_param.nvme_path",
        "None",
        "NVMe",
    ),
}


@pytest.mark.parametrize("name", DEEPSPEED)
def test_a_malformed_deepspeed_json_names_field_value_and_remedy(name):
    change, field, value, remedy = DEEPSPEED[name]
    found, message = problems_of("--recipe", write(deepspeed=json_file(**change)))
    assert set(found) == {f"deepspeed.{field}"}, message
    assert value in message and remedy in found[f"deepspeed.{field}"].remedy, message


FILES = {
    "empty": ("", "empty", "field: value"),
    "a list": ("- a\n- b\n", "a list", "field: value"),
    "broken": ("model: smollm2\nwindow: [1, 2\nmax_steps: 3\n", "line 3", "mend"),
    "a tab": ("model: smollm2\nrope_parameters:\n\trope_type: yarn\n", "line 3", "spaces"),
    "an object": ("model: !!python/object/apply:os.system [echo]\n", "line 1", "mend"),
    "two documents": ("model: a\n---\nmodel: b\n", "line 2", "mend"),
    "a strange character": ("model: a\x07\n", "not readable as YAML", "remove"),
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


def test_a_key_written_twice_in_the_json():
    Path("ds.json").write_text('{"zero_optimization": {"stage": 1, "stage": 2}}')
    found, _ = problems_of("--recipe", write(deepspeed="ds.json"))
    assert "twice" in found["deepspeed.stage"].wrong


@pytest.mark.parametrize("text, wrong", [("{,}", "line 1"), ("[1]", "not a JSON object"), ('{"a": 1,\n}', "line 2")])
def test_an_unreadable_json_says_where(text, wrong):
    Path("ds.json").write_text(text)
    found, _ = problems_of("--recipe", write(deepspeed="ds.json"))
    assert wrong in found["deepspeed"].wrong


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


def test_an_output_folder_without_rights(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda *arguments: False)  # root may write anywhere
    found, _ = problems_of("--recipe", write(output_dir="deep/er"))
    assert "not writable" in found["output_dir"].wrong


# --- the command line

COMMAND_LINE = {
    "unknown flag": (["--lerning_rate", "1e-4"], "lerning_rate", "1e-4", "did you mean 'learning_rate'"),
    "unknown mapping": (["--rope.factor", "2"], "rope.factor", "2", "one of"),
    "key of no mapping": (["--window.size", "2"], "window.size", "2", "--window VALUE"),
    "no value": (["--learning_rate"], "learning_rate", "None", "--learning_rate VALUE"),
    "wrong type": (["--max_steps=many"], "max_steps", "many", "whole number"),
    "not a bool": (["--bf16", "yes"], "bf16", "yes", "true or false"),
    "not JSON": (["--rope_parameters", "{factor"], "rope_parameters", "{factor", "JSON"),
    "removed": (["--no_cuda"], "no_cuda", "None", "use_cpu"),
    "stray": (["fast"], "command line", "fast", "--field value"),
    "a recipe without its flag": (["demo"], "command line", "demo", "--recipe demo"),
    "key inside a named file": (["--deepspeed.bf16.enabled", "false"], "deepspeed.bf16.enabled", "false", "file"),
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


@pytest.mark.parametrize("name", RECIPES)
def test_the_shipped_recipes_load(name):
    recipe = load(["--recipe", name], world_size=2)
    assert recipe.name == name and recipe.deepspeed is not None
    assert recipe.training_kwargs["output_dir"] == f"runs/{name}"


def test_every_shipped_recipe_is_listed_here():
    assert sorted(path.stem for path in files.RECIPES.glob("*.yaml")) == list(RECIPES)


def test_the_paper_s_recipe():
    recipe = load(["--recipe", "llama2_7b_8k"], world_size=8)
    kwargs = recipe.training_kwargs
    assert (recipe.global_batch_size, recipe.accumulation(), kwargs["max_steps"]) == (64, 8, 1000)
    assert (kwargs["learning_rate"], kwargs["warmup_steps"]) == (2e-5, 50)
    assert kwargs["lr_scheduler_type"] == "constant_with_warmup"
    assert recipe.model.rope_parameters == {"rope_type": "linear", "factor": 2.0}
    assert (recipe.method.train_position, recipe.method.train_norms, recipe.method.train_embeddings) == (True,) * 3
    assert kwargs["activation_checkpointing_kwargs"] == {"use_reentrant": False}
    shipped = load(["--recipe", "llama2_7b_8k_as_shipped"], world_size=8).method
    assert (shipped.train_position, shipped.train_norms, shipped.train_embeddings) == (False, True, True)


def test_demo_is_the_default_and_nothing_is_written(tmp_path):
    recipe = load([])
    assert recipe.name == "demo" and recipe.model.model == "smollm2"
    assert list(tmp_path.iterdir()) == []


def test_the_command_line_wins_over_the_file_and_the_file_over_its_base():
    write("base.yaml", learning_rate=1.0, warmup_steps=1, seed=1)
    Path("top.yaml").write_text("base: base.yaml\nwarmup_steps: 2\nseed: 2\n")
    kwargs = load(["--recipe", "top.yaml", "--seed", "3"]).training_kwargs
    assert (kwargs["learning_rate"], kwargs["warmup_steps"], kwargs["seed"]) == (1.0, 2, 3)


def test_a_mapping_replaces_that_of_the_base():
    write("base.yaml")
    Path("top.yaml").write_text("base: base.yaml\nrope_parameters: {rope_type: linear, factor: 2.0}\n")
    assert load(["--recipe", "top.yaml"]).model.rope_parameters == {"rope_type": "linear", "factor": 2.0}


def test_a_base_lies_beside_its_recipe_or_among_the_shipped_ones(tmp_path):
    Path("sub").mkdir()
    write("sub/base.yaml", seed=5)
    Path("sub/top.yaml").write_text("base: base\n")
    assert load(["--recipe", "sub/top.yaml"]).training_kwargs["seed"] == 5
    Path("sub/top.yaml").write_text("base: demo\nseed: 6\n")
    assert load(["--recipe", "sub/top.yaml"]).data.pose_chunks == 2


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
    assert load(["--recipe", write(text=text + "learning_rate: 1e-4\n")]).training_kwargs["learning_rate"] == 1e-4
    kwargs = load(
        ["--recipe", write(), "--learning-rate=2e-4", "--max_steps", "1e1", "--weight_decay", "0"]
    ).training_kwargs
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
    assert (recipe.training_kwargs["max_steps"], recipe.data.eval_data) == (6, ["stdlib:inspect.py"])


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
    assert recipe.training_kwargs["torch_compile"] is True and recipe.training_kwargs["max_steps"] == -1
    assert recipe.deepspeed is None and recipe.dry_run and recipe.print_config
    assert recipe.training_kwargs["save_strategy"] == "no"


def test_null_means_not_given_but_for_deepspeed():
    text = yaml.safe_dump(GOOD | {"report_to": None, "output_dir": None, "window": None, "pose_chunks": 1})
    recipe = load(["--recipe", write(text=text)])
    assert recipe.training_kwargs["report_to"] == "none" and recipe.training_kwargs["output_dir"] == "runs/mine"
    assert recipe.data.window == 16384


def test_numbers_inside_a_mapping_may_be_spelled_as_text_too():
    text = yaml.safe_dump({key: value for key, value in GOOD.items() if key != "rope_parameters"})
    text += "rope_parameters: {rope_type: yarn, factor: 2, rope_theta: 1e6}\n"
    assert load(["--recipe", write(text=text)]).model.rope_parameters["rope_theta"] == 1e6


def test_a_bare_no_of_yaml_is_the_word():
    text = yaml.safe_dump(GOOD) + "save_strategy: no\n"
    assert load(["--recipe", write(text=text)]).training_kwargs["save_strategy"] == "no"


def test_defaults_that_follow_from_other_fields():
    recipe = load(["--recipe", write(without=("window", "pose_chunks"))])
    assert recipe.data.window == recipe.evaluation.eval_length == 16384
    assert (recipe.data.min_document_tokens, recipe.evaluation.eval_span) == (1, 2048)
    assert recipe.method.train_position and not recipe.method.train_embeddings
    full = load(["--recipe", write(method="full", position_encoding="rope")]).method
    assert full.train_position and full.train_norms and full.train_embeddings
    lora = load(["--recipe", write(method="lora", position_encoding="rope")]).method
    assert not lora.train_position and lora.lora_targets == ["q_proj", "k_proj", "v_proj", "o_proj"]


def test_the_global_batch_decides_and_accumulation_follows(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    recipe = load(["--recipe", write()])
    assert (recipe.accumulation(), recipe.accumulation(1), recipe.accumulation(4)) == (2, 4, 1)
    with pytest.raises(UserError, match="global_batch_size"):
        recipe.accumulation(3)
    assert load(["--recipe", write(without=("global_batch_size",))]).global_batch_size == 4


def test_an_accumulation_that_agrees_is_allowed():
    assert load(["--recipe", write(gradient_accumulation_steps=4)]).accumulation() == 4


def test_values_that_the_json_shares_with_the_trainer_may_agree():
    optimizer = {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.999], "eps": "auto", "torch_adam": True}}
    path = json_file(train_batch_size=8, gradient_clipping=1.0, bf16={"enabled": True}, optimizer=optimizer)
    assert load(["--recipe", write(deepspeed=path)]).deepspeed["optimizer"] == optimizer


def test_the_old_name_of_checkpointing_is_understood():
    kwargs = load(["--recipe", write(gradient_checkpointing=True)]).training_kwargs
    assert kwargs["activation_checkpointing"] is True and "gradient_checkpointing" not in kwargs
    found, _ = problems_of("--recipe", write(gradient_checkpointing=True, activation_checkpointing=False))
    assert "gradient_checkpointing" in found


@pytest.mark.parametrize("name", [*RECIPES, "lora"])
def test_a_recipe_written_out_loads_to_itself(name):
    argv = ["--recipe", "demo", "--method", "lora"] if name == "lora" else ["--recipe", name]
    recipe = load(argv, world_size=2)
    Path("again.yaml").write_text(recipe.to_yaml())
    assert load(["--recipe", "again.yaml"], world_size=2).as_dict() == recipe.as_dict()


def test_training_arguments_are_transformers_own(tmp_path):
    recipe = load(["--recipe", write(output_dir=str(tmp_path / "out"), deepspeed=None)])
    built = recipe.training_arguments()
    assert (built.gradient_accumulation_steps, built.per_device_train_batch_size, built.max_steps) == (4, 2, 4)
    assert built.logging_nan_inf_filter is False and built.remove_unused_columns is False
    assert built.report_to == [] and built.seed == 42 and built.save_strategy == "steps"
    assert not (tmp_path / "out").exists()


def test_what_transformers_refuses_is_a_user_error():
    recipe = load(["--recipe", write(debug="nonsense", deepspeed=None)])
    with pytest.raises(UserError, match="nonsense"):
        recipe.training_arguments()


def test_resuming_takes_true_or_a_path(tmp_path):
    assert load(["--recipe", write(), "--resume_from_checkpoint"]).resume_from_checkpoint is True
    assert load(["--recipe", write()]).resume_from_checkpoint is False
    (tmp_path / "checkpoint-3").mkdir()
    assert load(["--recipe", write(resume_from_checkpoint="checkpoint-3")]).resume_from_checkpoint == "checkpoint-3"


# --- against the model


def test_the_length_is_checked_in_a_local_folder_and_again_by_the_launcher():
    Path("model").mkdir()
    Path("model/config.json").write_text('{"max_position_embeddings": 32768}')
    found, _ = problems_of("--recipe", write(model="model"))
    assert "32768" in found["target_length"].wrong
    recipe = load(["--recipe", write(model="owner/name")])
    assert check_against_model(recipe, SimpleNamespace(max_position_embeddings=8192)) == []
    short = check_against_model(recipe, SimpleNamespace(max_position_embeddings=4096))
    assert [problem.field for problem in short] == ["rope_parameters.factor"]
    assert check_against_model(recipe, SimpleNamespace())[0].field == "model"


def test_a_start_beyond_the_model_is_refused():
    rope = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 9000}
    found, _ = problems_of("--recipe", write(rope_parameters=rope))
    assert set(found) == {"rope_parameters.original_max_position_embeddings"}


def test_a_folder_without_a_configuration():
    Path("model").mkdir()
    found, _ = problems_of("--recipe", write(model="model"))
    assert "config.json" in found["model"].wrong


# --- our tables against the installed transformers


def test_removed_and_owned_names_are_what_they_claim():
    today = set(arguments.field_hints())
    assert not set(trainer_fields.REMOVED) & today
    assert set(trainer_fields.OWNED) | set(trainer_fields.RANGES) | set(trainer_fields.DEFAULTS) <= today


def test_no_field_of_ours_hides_one_of_the_trainer():
    ours = {name for section in arguments._SECTIONS.values() for name in section.__dataclass_fields__}
    assert not (ours | {"global_batch_size", "base", "recipe"}) & set(trainer_fields.hints())


def test_every_field_of_the_trainer_takes_its_own_default():
    from tape_ds.training.recipe import values

    for name, hint in trainer_fields.hints().items():
        default = trainer_fields.library_default(name)
        plain = getattr(default, "value", default)
        assert values.convert(plain, hint) == default, name
