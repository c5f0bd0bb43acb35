"""The files of ds_configs: DeepSpeed takes them, transformers fills them, and our table of keys is DeepSpeed's."""

import argparse
import inspect
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from tape_ds.config import deepspeed_config, deepspeed_keys
from tests.config.loads import extension as load

FILES = sorted(deepspeed_config.FOLDER.glob("*.json"))


@pytest.fixture(autouse=True)
def no_deepspeed_left_behind():
    """transformers keeps the last configuration in a module; later tests must not see it."""
    yield
    from transformers.integrations.deepspeed import unset_hf_deepspeed_config

    unset_hf_deepspeed_config()


def filled(name, hidden_size=4096):
    """The file ``name`` as transformers hands it to DeepSpeed, for one process and a batch of 2 x 4."""
    from transformers.integrations.deepspeed import HfTrainerDeepSpeedConfig

    config = deepspeed_config.read(name, [])
    trainer = argparse.Namespace(
        world_size=1,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=4,
        max_grad_norm=1.0,
        learning_rate=1e-4,
        adam_beta1=0.9,
        adam_beta2=0.999,
        adam_epsilon=1e-8,
        weight_decay=0.0,
        save_on_each_node=False,
        fp16=False,
        fp16_full_eval=False,
        bf16=True,
        bf16_full_eval=False,
        get_warmup_steps=lambda steps: 5,
    )
    wrapped = HfTrainerDeepSpeedConfig(config)
    wrapped.trainer_config_process(trainer)
    model = SimpleNamespace(config=SimpleNamespace(hidden_size=hidden_size))
    wrapped.trainer_config_finalize(trainer, model, num_training_steps=100)
    return wrapped.config


def autos(config):
    nested = [autos(value) for value in config.values() if isinstance(value, dict)]
    return [key for key, value in config.items() if value == "auto"] + [
        key for keys in nested for key in keys
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_deepspeed_takes_the_filled_file(path):
    from deepspeed.runtime.config import DeepSpeedConfig

    config = filled(path.stem)
    assert autos(config) == []
    parsed = DeepSpeedConfig(config)
    assert parsed.zero_optimization_stage == int(path.stem[4])
    assert (parsed.train_batch_size, parsed.gradient_accumulation_steps) == (8, 4)
    assert parsed.gradient_clipping == 1.0
    assert parsed.bfloat16_config.enabled and not parsed.float16_config.enabled
    assert parsed.optimizer_name is None and parsed.scheduler_name is None
    assert parsed.zero_allow_untested_optimizer  # the trainer's AdamW is not one of DeepSpeed's
    assert parsed.zero_config.reduce_bucket_size <= 200_000_000


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_file_has_no_problem_of_its_own(path):
    problems = []
    config = deepspeed_config.read(path.stem, problems)
    assert problems == []
    assert list(deepspeed_config.check_itself(config, "linear", "adamw_torch")) == []
    assert json.loads(path.read_text()) == config, (
        "shared values are written out, not left to completion"
    )


@pytest.mark.parametrize("stage", [0, 1])
def test_gradients_are_summed_in_fp32_by_zero_alone(stage):
    """Without it DeepSpeed ends with NotImplementedError when the engine is made, after tokenising."""
    config = {"zero_optimization": {"stage": stage}, "data_types": {"grad_accum_dtype": "fp32"}}
    found = [each.field for each in deepspeed_config.check_itself(config, "linear", "adamw_torch")]
    assert found == ["deepspeed.data_types.grad_accum_dtype"] * (stage == 0)


def test_stage_3_buckets_follow_the_hidden_size():
    zero = filled("zero3")["zero_optimization"]
    assert zero["reduce_bucket_size"] == 4096 * 4096
    assert zero["stage3_param_persistence_threshold"] == 10 * 4096


def test_what_is_left_out_is_completed():
    config = deepspeed_config.read(
        {"zero_optimization": {"stage": 2}, "bf16": {"check_grad_overflow": True}}, []
    )
    assert config["gradient_clipping"] == config["train_batch_size"] == "auto"
    assert config["bf16"] == {"check_grad_overflow": True, "enabled": "auto"}
    assert config["fp16"] == {"enabled": "auto"}


def test_the_completed_file_and_not_the_name_reaches_the_trainer(tmp_path):
    recipe = load(
        ["--max_steps", "3", "--output_dir", str(tmp_path), "--deepspeed", "zero2"], world_size=1
    )
    assert recipe.deepspeed["zero_optimization"]["stage"] == 2
    assert "deepspeed" not in recipe.trainer.kwargs


def test_every_key_that_is_taken_is_read_by_the_installed_deepspeed():
    import deepspeed

    source = "".join(path.read_text() for path in Path(deepspeed.__file__).parent.rglob("*.py"))
    own = [key for keys in deepspeed_keys.KEYS.values() for key in keys]
    for name in (*deepspeed_keys.Top.model_fields, *own):
        assert f'"{name}"' in source or f"'{name}'" in source, name
    assert (
        not deepspeed_keys.Top.model_fields.keys()
        & deepspeed.runtime.config._REMOVED_TOP_LEVEL_CONFIG_KEYS.keys()
    )


def test_parameters_of_schedulers_are_those_of_the_installed_deepspeed():
    from deepspeed.runtime import lr_schedules

    known = set()
    for kind in deepspeed_config._SCHEDULERS:
        known |= {*inspect.signature(getattr(lr_schedules, kind).__init__).parameters}
    taken = {*deepspeed_keys.KEYS["scheduler.params"]}
    assert taken == known - {"self", "optimizer", "last_batch_iteration"}


@pytest.mark.parametrize(
    "path", ["zero_optimization.sub_group_size", "steps_per_print", "bf16.enabled"]
)
def test_a_value_of_another_type_is_refused_and_a_whole_number_with_a_point_is_taken(path):
    """Dozens of public files write sub_group_size: 1e9, which DeepSpeed takes."""
    *blocks, key = path.split(".")
    for value, wrong in ((1e9, path == "bf16.enabled"), (1.5, True), ("often", True)):
        given = {key: value}
        for block in reversed(blocks):
            given = {block: given}
        problems = []
        deepspeed_config.read(given, problems)
        assert [each.field for each in problems] == [f"deepspeed.{path}"] * wrong
        assert all(each.value == value and "wrong type" in each.wrong for each in problems)


def read(zero, caplog, **top):
    """The block zero_optimization as it is read, what is wrong with it, and the lines that are said."""
    problems = []
    caplog.clear()
    config = deepspeed_config.read({"zero_optimization": zero, **top}, problems)
    return (
        config.get("zero_optimization"),
        problems,
        [record.getMessage() for record in caplog.records],
    )


@pytest.mark.parametrize(
    ("older", "value", "present"),
    [
        ("cpu_offload", True, {"offload_optimizer": {"device": "cpu"}}),
        ("cpu_offload", False, {}),
        ("cpu_offload_param", True, {"offload_param": {"device": "cpu"}}),
        (
            "stage3_gather_fp16_weights_on_model_save",
            True,
            {"stage3_gather_16bit_weights_on_model_save": True},
        ),
        ("prefetch_bucket_size", 5, {"stage3_prefetch_bucket_size": 5}),
    ],
)
def test_older_names_are_read_as_the_present_ones(older, value, present, caplog):
    """DeepSpeed reads them, and no check and no memory line saw ``cpu_offload``: a run loaded everything and ended."""
    zero, problems, said = read({"stage": 3, older: value}, caplog)
    assert problems == [] and zero == {"stage": 3} | present
    assert len(said) == 1 and older in said[0] and str(*(present or {None: None})) in said[0]


def test_numbers_written_as_text_are_read_as_deepspeed_reads_them(caplog):
    """transformers compares the stage with a number: "3" was ZeRO-3 for DeepSpeed alone."""
    zero, problems, said = read(
        {"stage": "3", "overlap_comm": "false", "reduce_bucket_size": "auto"}, caplog
    )
    assert problems == [] and zero == {
        "stage": 3,
        "overlap_comm": False,
        "reduce_bucket_size": "auto",
    }
    assert said == [
        "deepspeed.zero_optimization.stage = '3': read as 3",
        "deepspeed.zero_optimization.overlap_comm = 'false': read as False",
    ]
    _, problems, _ = read({"stage": "three"}, caplog)
    assert [(each.field, each.value) for each in problems] == [
        ("deepspeed.zero_optimization.stage", "three")
    ]


def test_a_block_that_is_null_is_left_out(caplog):
    """It ended in an AttributeError."""
    nulls = dict.fromkeys(("fp16", "bf16", "optimizer", "scheduler", "gradient_clipping"))
    without, problems, _ = read({"stage": 2, "offload_optimizer": None}, caplog, **nulls)
    assert problems == [] and without["stage"] == 2
    assert deepspeed_config.read(
        {"zero_optimization": None, **nulls}, problems
    ) == deepspeed_config.read({}, problems)
    assert problems == []


def test_the_table_of_older_names_is_the_installed_deepspeed_s():
    """A name that DeepSpeed will forget has a test above."""
    found = set()

    def look(model):
        for name, field in model.model_fields.items():
            if (field.json_schema_extra or {}).get("deprecated"):
                found.add(name)
            if (inner := deepspeed_keys._block_of(model, name)) is not None:
                look(inner)

    for name in deepspeed_keys._MODELS:
        look(deepspeed_keys._model(name))
    assert found == {
        "cpu_offload",
        "cpu_offload_param",
        "cpu_offload_use_pin_memory",
        "stage3_gather_fp16_weights_on_model_save",
    }


def test_what_is_offloaded_by_an_older_name_is_checked_and_counted(tmp_path, caplog):
    (tmp_path / "ds.json").write_text('{"zero_optimization": {"stage": 2, "cpu_offload": true}}')
    recipe = load(["--max_steps", "3", "--deepspeed", str(tmp_path / "ds.json")], 1)
    assert recipe.layout().offload_optimizer == "cpu"
    zero, problems, _ = read({"stage": 2, "cpu_offload_param": True}, caplog)
    (wrong,) = deepspeed_config.check_sharding({"zero_optimization": zero}, 1, use_cpu=True)
    assert problems == [] and (wrong.field, wrong.remedy) == (
        "deepspeed.zero_optimization.offload_param.device",
        "use stage 3",
    )


@pytest.mark.parametrize(
    ("zero", "wrong"),
    [
        (
            {"cpu_offload_use_pin_memory": True},
            "an older name, which DeepSpeed ignores; its place is in offload_param",
        ),
        (
            {"cpu_offload": True, "offload_optimizer": {"device": "cpu"}},
            "Cannot provide deprecated parameter",
        ),
        ({"_comment": "of mine"}, "a comment, which JSON has no place for"),
    ],
)
def test_what_has_no_meaning_is_refused(zero, wrong, caplog):
    _, (problem,), said = read({"stage": 2} | zero, caplog)
    assert wrong in problem.wrong and said == []


@pytest.mark.parametrize("name", ["_comment", "//", "comment"])
def test_a_comment_is_called_one(name, caplog):
    """Its remedy was: did you mean 'comet'?"""
    _, (problem,), _ = read({"stage": 2}, caplog, **{name: "of mine"})
    assert (problem.field, problem.remedy) == (f"deepspeed.{name}", "remove it")
    assert "a comment" in problem.wrong


@pytest.mark.parametrize(
    ("text", "wrong", "remedy"),
    [
        (
            '{\n  // of mine\n  "steps_per_print": 5\n}',
            "not readable as JSON",
            "take the comments out (//, # or /*), the first of them at line 2",
        ),
        (
            '{\n  "steps_per_print": 5 # of mine\n}',
            "not readable as JSON",
            "take the comments out (//, # or /*), the first of them at line 2",
        ),
        ('{\n  "steps_per_print": 5,\n}', "not readable as JSON", "take out the comma"),
    ],
)
def test_a_file_that_is_no_json_says_where_and_how(tmp_path, text, wrong, remedy):
    problems = []
    (tmp_path / "ds.json").write_text(text)
    assert deepspeed_config.read(str(tmp_path / "ds.json"), problems) is None
    (problem,) = problems
    assert wrong in problem.wrong and remedy in problem.remedy


def test_a_byte_order_mark_is_no_mistake(tmp_path):
    """Editors of Windows write one."""
    (tmp_path / "ds.json").write_bytes(b"\xef\xbb\xbf" + b'{"steps_per_print": 5}')
    problems = []
    assert (
        deepspeed_config.read(str(tmp_path / "ds.json"), problems)["steps_per_print"] == 5
        and problems == []
    )


@pytest.mark.parametrize(
    "params", [{}, {"params": {}}, {"params": None}, {"params": {"betas": [0.9, 0.999]}}], ids=str
)
def test_an_optimizer_has_the_trainers_values_that_it_leaves_out(params):
    """transformers fills in what is "auto", and nothing that is missing: DeepSpeed's Adam took its own betas, and its
    schedulers a rate of 0.001."""
    problems = []
    given = {"optimizer": {"type": "AdamW", **params}, "scheduler": {"type": "WarmupLR"}}
    found = deepspeed_config.read(given, problems)
    assert problems == []
    auto = dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")
    assert found["optimizer"]["params"] == auto | (params.get("params") or {})
    assert found["scheduler"]["params"] == {"warmup_max_lr": "auto", "warmup_num_steps": "auto"}
    assert {f"optimizer.params.{name}" for name in auto} <= set(deepspeed_config.filled())
    rest = (
        "scheduler.params.warmup_max_lr",
        "scheduler.params.warmup_num_steps",
        "scheduler.params.total_num_steps",
    )
    assert set(rest) <= set(deepspeed_config.filled())


def test_parameters_that_are_no_block_are_refused():
    for block in ("optimizer", "scheduler"):
        problems = []
        deepspeed_config.read({block: {"type": "AdamW", "params": "x"}}, problems)
        assert [(each.field, each.wrong) for each in problems] == [
            (f"deepspeed.{block}.params", "not a block")
        ]


def test_a_scheduler_of_no_name_is_refused():
    """A block in the place of its type was a traceback."""
    (problem,) = deepspeed_config.check_itself({"scheduler": {"type": {}}}, "linear", "adamw_torch")
    assert problem.field == "deepspeed.scheduler.type"
