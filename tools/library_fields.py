"""Write down the fields of transformers' TrainingArguments and the keys of DeepSpeed's JSON, for checks without them,
and docs/fields.md, which lists all fields of recipes.

    python tools/library_fields.py

Importing both libraries costs seconds, and a mistake in a recipe should be found in less. A test compares the file with
the installed versions; write it anew when they change.
"""

import dataclasses
import enum
import importlib
import inspect
import json
import re
import sys
import types
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pydantic

from tape_ds import storage
from tape_ds.arguments import Parser
from tape_ds.installation import ROOT
from tape_ds.recipe import library_fields

_MAPPINGS = {f"{name}_kwargs" for name in ("activation_checkpointing", "gradient_checkpointing", "lr_scheduler")}
_MAPPINGS |= {"accelerator_config"}
"""Fields that transformers also takes as a file or as JSON in a text; here they are mappings, which can be checked."""
_PLAIN: dict[Any, str] = {kind: kind.__name__ for kind in (bool, int, float, str, dict, list)}
_PLAIN |= {Path: "str", type(None): "None", Any: "Any"}


def collect() -> dict[str, Any]:
    """Return what the file holds."""
    from transformers.integrations import integration_utils

    return {
        "transformers": trainer(),
        "trackers": list(integration_utils.INTEGRATION_TO_CALLBACK),
        "deepspeed": deepspeed(),
    }


def trainer() -> dict[str, Any]:
    """Name -> type, default and description of every field of TrainingArguments but ``local_rank``, which the launcher
    owns."""
    from transformers import TrainingArguments

    annotations = get_type_hints(TrainingArguments)
    # The first sentence that a docstring in transformers' form has for each argument.
    entries = re.findall(r"^    {2,}(\w+) \(.*?\):\n((?:^ {8,}.*\n?)+)", TrainingArguments.__doc__ or "", re.MULTILINE)
    described = dict(entries)
    found = {}
    for field in dataclasses.fields(TrainingArguments):
        if not field.init or field.name == "local_rank":
            continue
        factory = field.default_factory
        default = field.default if factory is dataclasses.MISSING else factory()
        choices = field.metadata.get("choices")
        kind = _choices(choices, None in (default,)) if choices else spelled(annotations[field.name])
        if field.name in _MAPPINGS:
            kind = "dict | None"
        plain = json.dumps(default.value if isinstance(default, enum.Enum) else default, default=str)
        help = field.metadata.get("help") or described.get(field.name, "")
        found[field.name] = {"type": kind, "default": json.loads(plain), "help": " ".join(help.split())}
    found["deepspeed"]["type"] = "str | dict | None"
    found["resume_from_checkpoint"]["type"] = "str | bool | None"
    return found


def deepspeed() -> dict[str, Any]:
    """Return the keys of DeepSpeed's JSON, those that it took out, those that transformers fills in, and its
    schedulers."""
    from deepspeed.comm.config import CommsLoggerConfig
    from deepspeed.compile.config import CompileConfig
    from deepspeed.monitor.config import CometConfig, CSVConfig, TensorBoardConfig, WandbConfig
    from deepspeed.runtime import config, lr_schedules
    from deepspeed.runtime.precision_config import DeepSpeedBF16Config, DeepSpeedFP16Config
    from deepspeed.runtime.tensor_parallel.config import TPTrainingConfig
    from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
    from deepspeed.utils.config import DeepSpeedThroughputTimerConfig
    from transformers.integrations import deepspeed as integration

    blocks: dict[str, type[pydantic.BaseModel]] = {
        "zero_optimization": DeepSpeedZeroConfig,
        "bf16": DeepSpeedBF16Config,
        "fp16": DeepSpeedFP16Config,
        "comms_logger": CommsLoggerConfig,
        "tensorboard": TensorBoardConfig,
        "wandb": WandbConfig,
        "csv_monitor": CSVConfig,
        "comet": CometConfig,
        "compile": CompileConfig,
        "tensor_parallel": TPTrainingConfig,
    }
    # What it reads without a model: at the top, and block by block.
    read = re.findall(
        r"(?:get_scalar_param\(\s*|self\._)param_dict(?:,|\.get\()\s*([A-Z_]+)\b", inspect.getsource(config)
    )
    common, writing = "runtime.constants", "runtime.model_checkpointing.constants"
    checkpoint = {
        **constants(common, "CHECKPOINT_TAG_VALIDATION|LOAD_UNIVERSAL|USE_NODE_LOCAL"),
        **constants(writing, "CHECKPOINT_SERIALIZATION"),
        "parallel_write": constants(common, "CHECKPOINT_PARALLEL_WRITE_"),
        "writer": constants(writing, "CHECKPOINT_(WRITER_|IO_|DATA_PARALLEL)"),
    }
    data_types = constants(common, "GRAD_ACCUM_DTYPE|PARAM_DTYPE|BUFFER_DTYPE|KEEP_IN_FP32_MODULES")
    by_key = constants(common, f"({'|'.join(read)})$") | {
        "torch_autocast": constants(common, "TORCH_AUTOCAST_"),
        "activation_checkpointing": constants("runtime.activation_checkpointing.config", "ACT_CHKPT_"),
        "aio": constants("runtime.swap_tensor.constants", "AIO_"),
        "flops_profiler": constants("profiling.constants", "FLOPS_PROFILER_"),
        "data_types": data_types | {"keep_in_fp32_modules": "str | list"},
        "checkpoint": checkpoint,
    }
    return {
        "keys": by_key
        | {name: block(model) for name, model in blocks.items()}
        | {"timers": {"throughput": block(DeepSpeedThroughputTimerConfig)}},
        "filled": re.findall(r'fill_(?:match|only)\(\s*"([\w.]+)"', inspect.getsource(integration)),
        "schedulers": {
            name: sorted(set(inspect.signature(getattr(lr_schedules, name)).parameters) - {"optimizer"})
            for name in library_fields.SCHEDULERS
        },
        "removed": {
            "": config._REMOVED_TOP_LEVEL_CONFIG_KEYS,
            "zero_optimization": config._REMOVED_ZERO_CONFIG_KEYS,
        },
    }


def constants(module: str, names: str) -> dict[str, Any]:
    """Key -> the type of its default, Any without one, of the constants of a module of DeepSpeed whose names match."""
    there = vars(importlib.import_module(f"deepspeed.{module}"))
    keys = {name: key for name, key in there.items() if re.match(names, name) and not name.endswith("_DEFAULT")}
    defaults = {key: there.get(f"{name}_DEFAULT") for name, key in keys.items() if re.fullmatch("[a-z0-9_]+", str(key))}
    return {key: "Any" if default is None else _PLAIN[type(default)] for key, default in defaults.items()}


def block(model: type[pydantic.BaseModel]) -> dict[str, Any]:
    """Every key of a block -> its type with its bounds, or the block below it."""
    found: dict[str, Any] = {}
    for name, field in model.model_fields.items():
        members = get_args(field.annotation) or (field.annotation,)
        inner = [kind for kind in members if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel)]
        entry: Any = block(inner[0]) if inner else spelled(field.annotation)
        bounds = [
            f"{kind}={getattr(each, kind)}"
            for each in field.metadata
            for kind in ("gt", "ge", "lt", "le")
            if getattr(each, kind, None) is not None
        ]
        if bounds and not inner:
            entry = f"Annotated[{entry}, Field({', '.join(bounds)})]"
        found |= dict.fromkeys({name, field.alias or name}, entry)
    return dict(sorted(found.items()))


def spelled(annotation: Any) -> str:
    """Return a type as Python writes it; of an enum its values, and Any for what no file can hold."""
    if annotation in _PLAIN:
        return _PLAIN[annotation]
    origin, members = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        if any(_is_enum(member) for member in members):  # "Enum | str": the enum is what is meant
            members = tuple(member for member in members if member is not str)
        return " | ".join(dict.fromkeys(spelled(member) for member in members))
    if origin is Literal:
        return _choices(members, False)
    if _is_enum(annotation):
        return _choices([member.value for member in annotation], False)
    if origin in (list, dict):
        return f"{origin.__name__}[{', '.join(map(spelled, members))}]"
    return "Any"


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, enum.Enum)


def _choices(choices: Collection[Any], optional: bool) -> str:
    return f"Literal[{', '.join(map(repr, choices))}]" + " | None" * optional


def main() -> int:
    """Write both files."""
    Parser(description=__doc__).parse_args()
    storage.write_text(library_fields.FILE, json.dumps(collect(), indent=1) + "\n")
    from tape_ds.recipe import help
    from tape_ds.recipe.kinds import KINDS

    page = ROOT / "docs" / "fields.md"
    storage.write_text(page, help.page([*KINDS.values()]))
    print(f"written: {library_fields.FILE}, {page}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
