"""The files of ds_configs: DeepSpeed takes them, transformers fills them, and our table of keys is DeepSpeed's."""

import argparse
import inspect
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest

from tape_ds.config import deepspeed_config
from tape_ds.config.extension import load
from tape_ds.distributed.layout import Engine, Layout
from tape_ds.models.configuration import TapeConfig
from tape_ds.planning import activations, hardware, memory, shape
from tape_ds.planning.job import Job
from tape_ds.planning.shape import TrainedShape

FILES = sorted(deepspeed_config.FOLDER.glob("*.json"))
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj")


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
    """Every value in a nested mapping that is still "auto"."""
    nested = [autos(value) for value in config.values() if isinstance(value, dict)]
    return [key for key, value in config.items() if value == "auto"] + [key for keys in nested for key in keys]


def test_the_files_are_there():
    assert [path.stem for path in FILES] == ["zero1", "zero2", "zero2_offload", "zero3", "zero3_offload"]


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
    assert json.loads(path.read_text()) == config, "shared values are written out, not left to completion"


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


def test_offload_really_offloads():
    from deepspeed.runtime.config import DeepSpeedConfig

    zero = DeepSpeedConfig(filled("zero3_offload")).zero_config
    assert zero.offload_optimizer.device == "cpu" and zero.offload_param.device == "cpu"


def test_what_is_left_out_is_completed():
    config = deepspeed_config.read({"zero_optimization": {"stage": 2}, "bf16": {"check_grad_overflow": True}}, [])
    assert config["gradient_clipping"] == config["train_batch_size"] == "auto"
    assert config["bf16"] == {"check_grad_overflow": True, "enabled": "auto"}
    assert config["fp16"] == {"enabled": "auto"}


def test_the_completed_file_and_not_the_name_reaches_the_trainer(tmp_path):
    recipe = load(["--max_steps", "3", "--output_dir", str(tmp_path), "--deepspeed", "zero2"], world_size=1)
    assert recipe.deepspeed["zero_optimization"]["stage"] == 2
    assert "deepspeed" not in recipe.trainer.kwargs


def test_every_key_that_is_taken_is_read_by_the_installed_deepspeed():
    import deepspeed

    source = "".join(path.read_text() for path in Path(deepspeed.__file__).parent.rglob("*.py"))
    own = [key for keys in deepspeed_config._KEYS.values() for key in keys.split()]
    for name in (*deepspeed_config._Top.model_fields, *own):
        assert f'"{name}"' in source or f"'{name}'" in source, name
    assert (
        not deepspeed_config._Top.model_fields.keys() & deepspeed.runtime.config._REMOVED_TOP_LEVEL_CONFIG_KEYS.keys()
    )


def test_parameters_of_schedulers_are_those_of_the_installed_deepspeed():
    from deepspeed.runtime import lr_schedules

    known = set()
    for kind in deepspeed_config._SCHEDULERS:
        known |= {*inspect.signature(getattr(lr_schedules, kind).__init__).parameters}
    taken = {*deepspeed_config._KEYS["scheduler.params"].split()}
    assert taken == known - {"self", "optimizer", "last_batch_iteration"}


def test_transformers_fills_what_the_trainer_and_the_model_know():
    some = {"train_batch_size", "optimizer.params.lr", "zero_optimization.reduce_bucket_size"}
    assert some < {*deepspeed_config.filled()}


def shapes(name):
    """(configuration, tokens in a micro-batch, checkpointing, embeddings trained) of the README's models."""
    if name == "SmolLM2-135M":
        config = TapeConfig(
            hidden_size=576,
            intermediate_size=1536,
            num_hidden_layers=30,
            num_attention_heads=9,
            num_key_value_heads=3,
            vocab_size=49152,
            tie_word_embeddings=True,
        )
        return config, 2048, False, False
    config = TapeConfig(
        hidden_size=4096,
        intermediate_size=11008,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=32,
        vocab_size=32000,
        position_options={"rank": 128},
    )
    return config, 8192, True, True


def planned(config, tokens, method, embeddings, **layout):
    """The planner's job for a row of the README, on GPUs."""
    trained = {
        "full": TrainedShape.everything(),
        "TAPE": TrainedShape(norms=True, embeddings=embeddings, positions=True),
        "LoRA": TrainedShape(norms=True, embeddings=embeddings, adapters=tuple((name, 8) for name in TARGETS)),
    }[method]
    if method == "LoRA":
        config.position_encoding, config.position_options = "rope", None
    own = {"length": tokens, "global_batch": layout["world"], "gpu": hardware.find("a100-80")}
    return Job(model=shape.sizes(config), trained=trained, layout=Layout(**layout, engine=Engine(persistence=0)), **own)


def table():
    """Rows of the README's two memory tables, one behind the other."""
    text = (deepspeed_config.FOLDER / "README.md").read_text()
    rows = [line.strip("| \n").split(" | ") for line in text.splitlines() if re.match(r"\| (SmolLM2|Llama)", line)]
    found = {}
    for name, *cells in rows:
        found.setdefault(name, []).extend(float(cell.replace(",", "")) for cell in cells)
    return [(*name.split(", "), cells) for name, cells in found.items()]


def cells_of(model, method):
    """What the planner says of a row."""
    config, tokens, checkpointing, embeddings = shapes(model)
    policy = 1 if checkpointing else None
    expected = []
    for gpus, zero in ((1, 1), (8, 1), (8, 2), (8, 3)):
        job = planned(config, tokens, method, embeddings, world=gpus, zero=zero, checkpoint_layers=policy)
        moments = memory.estimate(job, reserve=False).moments
        found = next(each for each in moments if each.moment == "end of the backward")
        expected.append(round((found.weights + found.gradients + found.optimizer) / 1e9, 2))
    one = activations.count(planned(config, tokens, method, embeddings, world=8, zero=1, checkpoint_layers=policy))
    kept = one.checkpoints + one.states + one.inside + one.recomputed + one.working
    millions = [round(count / 1e6, 2) for count in (job.parameters, job.trained_parameters)]
    return [*expected, *millions, round(kept / 1e9, 2), round(one.logits / 1e9, 2)]


@pytest.mark.parametrize("model, method, cells", table(), ids=lambda part: part if isinstance(part, str) else "")
def test_the_memory_table_of_the_readme(model, method, cells):
    assert cells == cells_of(model, method)


def test_the_memory_table_has_its_six_rows():
    assert len(table()) == 6


@pytest.mark.parametrize("path", ["zero_optimization.sub_group_size", "steps_per_print", "bf16.enabled"])
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


def test_a_stage_too_may_have_a_point():
    problems = []
    assert deepspeed_config.stage(deepspeed_config.read({"zero_optimization": {"stage": 3.0}}, problems)) == 3
