"""Which keys of a DeepSpeed JSON have a part in this training, and what DeepSpeed's own models say of their values.

DeepSpeed silently ignores a key at the top that it does not know, so that a run with ``gradient_cliping`` would train
without clipping; most of its blocks ignore such keys as well. The others are pydantic models, which also read older
names: these are replaced by the present ones, the only ones that checks, plan and transformers look for.
"""

import importlib
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

from pydantic import BaseModel, TypeAdapter, ValidationError

from tape_ds.errors import Problem, did_you_mean
from tape_ds.fields import Section

Block = dict[str, Any]
_Precision = Literal["fp32", "fp16", "bf16"]


class Top(Section):
    """Keys at the top of the JSON."""

    train_batch_size: int | None = None
    train_micro_batch_size_per_gpu: int | None = None
    gradient_accumulation_steps: int | None = None
    sequence_parallel_size: int | None = None
    steps_per_print: int | None = None

    gradient_clipping: float | None = None
    gradient_predivide_factor: float | None = None
    gradient_allreduce_op: Literal["mean", "sum"] | None = None
    managed_gradient_accumulation: bool | None = None
    prescale_gradients: bool | None = None
    disable_allgather: bool | None = None
    communication_data_type: _Precision | None = None
    seq_parallel_communication_data_type: _Precision | None = None

    dataloader_drop_last: bool | None = None
    disable_python_gc: bool | None = None
    wall_clock_breakdown: bool | None = None
    memory_breakdown: bool | None = None
    dump_state: bool | None = None
    log_level: str | None = None
    zero_allow_untested_optimizer: bool | None = None
    zero_force_ds_cpu_optimizer: bool | None = None

    optimizer: Block | None = None
    scheduler: Block | None = None
    tensor_parallel: Block | None = None
    zero_optimization: Block | None = None
    bf16: Block | None = None
    fp16: Block | None = None
    torch_autocast: Block | None = None
    data_types: Block | None = None
    activation_checkpointing: Block | None = None
    checkpoint: Block | None = None
    aio: Block | None = None
    compile: Block | None = None
    flops_profiler: Block | None = None
    comms_logger: Block | None = None
    tensorboard: Block | None = None
    wandb: Block | None = None
    comet: Block | None = None
    csv_monitor: Block | None = None


KEYS: dict[str, tuple[str, ...]] = {
    "optimizer": ("type", "params", "legacy_fusion"),
    "optimizer.params": (
        *("lr", "betas", "eps", "weight_decay", "bias_correction", "amsgrad", "foreach"),
        *("torch_adam", "adam_w_mode", "fp32_optimizer_states"),
    ),
    "scheduler": ("type", "params"),
    "scheduler.params": (
        *("warmup_num_steps", "warmup_type", "warmup_min_lr", "warmup_max_lr", "warmup_min_ratio"),
        *("total_num_steps", "cos_min_ratio"),
    ),
    "torch_autocast": ("enabled", "dtype", "lower_precision_safe_modules"),
    "data_types": ("grad_accum_dtype", "param_dtype", "buffer_dtype", "keep_in_fp32_modules"),
    "checkpoint": (
        *("tag_validation", "load_universal", "use_node_local_storage", "checkpoint_serialization"),
        *("parallel_write", "writer"),
    ),
    "aio": (
        "block_size",
        "queue_depth",
        "intra_op_parallelism",
        "single_submit",
        "overlap_events",
        "use_gds",
    ),
    "flops_profiler": (
        *(
            "enabled",
            "recompute_fwd_factor",
            "profile_step",
            "module_depth",
            "top_modules",
            "detailed",
        ),
        "output_file",
    ),
}
"""Keys of blocks in which DeepSpeed ignores any other."""
_MODELS = {
    "zero_optimization": ("runtime.zero.config", "DeepSpeedZeroConfig"),
    "bf16": ("runtime.precision_config", "DeepSpeedBF16Config"),
    "fp16": ("runtime.precision_config", "DeepSpeedFP16Config"),
    "comms_logger": ("comm.config", "CommsLoggerConfig"),
    "tensorboard": ("monitor.config", "TensorBoardConfig"),
    "wandb": ("monitor.config", "WandbConfig"),
    "csv_monitor": ("monitor.config", "CSVConfig"),
    "comet": ("monitor.config", "CometConfig"),
    "compile": ("compile.config", "CompileConfig"),
}
"""Blocks that DeepSpeed checks with a pydantic model."""
_COMMENTS = ("_", "//", "#", "$")
"""How keys begin that people write for people."""


def check(config: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield unknown keys and wrong values at every level of a JSON without its "auto"."""
    broken = set()
    for each in Top.check(config):
        broken.add(each.field)
        wrong = each.wrong
        remedy = each.remedy
        if each.field.startswith(_COMMENTS) or each.field == "comment":
            wrong = "a comment, which JSON has no place for"
            remedy = "remove it"
        elif wrong == "unknown field":
            wrong = "unknown key, or one without a part in this training"
            remedy = f"{remedy} Or remove it"
        elif Top.model_fields[each.field].annotation == Block | None:
            wrong = "not a block"
            remedy = 'write { "key": value, ... }'
        yield Problem(f"deepspeed.{each.field}", each.value, wrong, remedy)

    for name, known in KEYS.items():
        block = lookup(config, name)
        if "." in name and not isinstance(block, Mapping | None):
            yield Problem(f"deepspeed.{name}", block, "not a block", 'write { "key": value, ... }')
        if isinstance(block, Mapping):
            for key, value in block.items():
                if key not in known:
                    yield Problem(
                        f"deepspeed.{name}.{key}", value, "unknown key", did_you_mean(key, known)
                    )
    for name in _MODELS.keys() & config.keys() - broken:
        yield from _check_block(name, config[name])


def lookup(config: Mapping[str, Any], name: str) -> Any:
    """Return the value under a dotted name, or None."""
    place: Any = config
    for part in name.split("."):
        if not isinstance(place, Mapping) or part not in place:
            return None
        place = place[part]
    return place


def with_present_names(config: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a checked JSON with DeepSpeed's present names in place of older ones and of fields' own names, and a line
    for each."""
    lines: list[str] = []
    found = dict(config)
    for name in _MODELS.keys() & config.keys():
        found[name] = _renamed(_model(name), config[name], f"deepspeed.{name}", lines)
    return found, lines


def _check_block(name: str, block: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what DeepSpeed's own model of a block refuses, and older names that it reads and forgets."""
    model = _model(name)
    # DeepSpeed's about older names: `with_present_names` has a line for each
    logging.disable(logging.WARNING)
    try:
        for key, value in block.items():
            # would be a TypeError
            if not isinstance(value, Mapping | None) and _block_of(model, key) is not None:
                yield Problem(
                    f"deepspeed.{name}.{key}", value, "not a block", 'write { "key": value, ... }'
                )
                return
        model(**block)
    except ValidationError as error:
        for each in error.errors(include_url=False):
            *path, key = map(str, each["loc"] or ("",))
            field = ".".join(("deepspeed", name, *path, key)).rstrip(".")
            wrong = "wrong type or value"
            remedy = each["msg"]
            if each["type"] == "extra_forbidden" and key.startswith(_COMMENTS):
                wrong = "a comment, which JSON has no place for"
                remedy = "remove it"
            elif each["type"] == "extra_forbidden":
                wrong = "unknown key"
                remedy = f"{did_you_mean(key, _names_in(model, path))} Or remove it"
            yield Problem(field, each["input"], wrong, remedy)
    except (AssertionError, TypeError, ValueError) as error:
        yield Problem(
            f"deepspeed.{name}",
            dict(block),
            f"DeepSpeed refuses it: {error}",
            "change what it names",
        )
    else:
        yield from _forgotten(model, block, f"deepspeed.{name}")
    finally:
        logging.disable(logging.NOTSET)


def _model(name: str) -> type[BaseModel]:
    """Return DeepSpeed's model of a block; importing it takes seconds."""
    module, kind = _MODELS[name]
    # DeepSpeed prints which accelerator it found
    logging.disable(logging.WARNING)
    try:
        model: type[BaseModel] = getattr(importlib.import_module(f"deepspeed.{module}"), kind)
    finally:
        logging.disable(logging.NOTSET)
    return model


def _block_of(model: type[BaseModel], key: str) -> type[BaseModel] | None:
    """Return the model of the block under a key of another one; None where the key has a plain value."""
    for own, field in model.model_fields.items():
        if key in (own, field.alias):
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    return kind
    return None


def _names_in(model: type[BaseModel], path: Sequence[str]) -> list[str]:
    """Return the keys of the block under a path of keys, fields' own names included."""
    inner: Any = model
    for part in path:
        inner = _block_of(inner, part)
    names = []
    for own_name, field in inner.model_fields.items():
        names.append(own_name)
        if field.alias:
            names.append(field.alias)
    return names


def _older(model: type[BaseModel], key: str) -> dict[str, Any] | None:
    """Return what DeepSpeed notes of an older name; None for a present one."""
    field = model.model_fields.get(key)
    if field is None:
        return None
    note = field.json_schema_extra
    if isinstance(note, dict) and note.get("deprecated"):
        return note
    return None


def _forgotten(model: type[BaseModel], block: Mapping[str, Any], path: str) -> Iterator[Problem]:
    """Yield older names that DeepSpeed reads without an effect."""
    for key, value in block.items():
        inner = _block_of(model, key)
        note = _older(model, key)
        if inner is not None and isinstance(value, Mapping):
            yield from _forgotten(inner, value, f"{path}.{key}")
        elif note is not None and not (note.get("new_param") and note.get("set_new_param", True)):
            wrong = "an older name, which DeepSpeed ignores"
            if note.get("new_param"):
                wrong += f"; its place is in {note['new_param']}"
            yield Problem(f"{path}.{key}", value, wrong, "remove it")


def _renamed(
    model: type[BaseModel], block: Mapping[str, Any], path: str, lines: list[str]
) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in block.items():
        note = _older(model, key)
        inner = _block_of(model, key)
        if note is not None:
            kind: Any = model.model_fields[key].annotation
            read: Any = TypeAdapter(kind).validate_python(value)
            read = note.get("new_param_fn", lambda same: same)(read)
            if isinstance(read, BaseModel):
                read = read.model_dump(mode="json", exclude_unset=True)
            *around, last = note["new_param"].split(".")
            place = found
            for part in around:
                place = place.setdefault(part, dict(block.get(part, {})))
            present = last if around else _in_json(model, last)
            if read is not None:  # cpu_offload: false
                place[present] = read
            name = ".".join((*around, present))
            lines.append(f"{path}.{key} = {value!r}: an older name, read as {name} = {read!r}")
            continue
        name = _in_json(model, key)
        if name != key:
            lines.append(f"{path}.{key}: read as {name}")
        if inner is not None and isinstance(value, Mapping):
            found[name] = _renamed(inner, value, f"{path}.{key}", lines)
            continue
        found[name] = _as_read(model, key, value)
        if found[name] != value:
            lines.append(f"{path}.{key} = {value!r}: read as {found[name]!r}")
    return found


def _as_read(model: type[BaseModel], key: str, value: Any) -> Any:
    """Return a number or a truth value that is written as text as DeepSpeed's model reads it: transformers compares
    ``"stage": "3"`` with a number, and would load weights as without ZeRO-3."""
    field = model.model_fields.get(key)
    if field is None or not isinstance(value, str) or value == "auto":
        return value
    kind: Any = field.annotation
    read = TypeAdapter(kind).validate_python(value)
    if isinstance(read, bool | float):
        return read
    if isinstance(read, int):
        return int(read)
    return value


def _in_json(model: type[BaseModel], key: str) -> str:
    """Return the name that a field has in published files, and that transformers reads."""
    field = model.model_fields.get(key)
    if field is None:
        return key
    return field.alias or key
