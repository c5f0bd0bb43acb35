"""Fields of transformers' TrainingArguments and keys of DeepSpeed's JSON, read from the installed sources.

Importing the libraries takes seconds, and a mistake in a recipe should be found in less. So only the definitions that
are needed are executed: of a class, its annotated fields and values.
"""

import ast
import builtins
import contextlib
import dataclasses
import enum
import functools
import importlib
import importlib.util
import inspect
import re
import types
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import create_model
from pydantic.fields import FieldInfo

from tape_ds.fields import Section

SCHEDULERS = {"WarmupLR": "constant_with_warmup", "WarmupDecayLR": "linear", "WarmupCosineLR": "cosine"}
"""What DeepSpeed's own schedulers do, in the trainer's words."""

_MAPPING = dict | None
_TYPES: dict[str, Any] = {
    # transformers takes these as a file or as JSON in a text, too; only a mapping can be checked here
    **dict.fromkeys(
        ("accelerator_config", "activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"), _MAPPING
    ),
    "lr_scheduler_kwargs": _MAPPING,
    "activation_checkpointing": bool | None,
    "deepspeed": str | dict | None,
    "resume_from_checkpoint": str | bool | None,
    **dict.fromkeys(
        ("log_level", "log_level_replica"),
        Literal["detail", "debug", "info", "warning", "error", "critical", "passive"],
    ),
}
"""Types of TrainingArguments' fields that its annotations do not tell."""
_PLAIN = (bool, int, float, str, dict, list, type(None))
_SAFE_TO_IMPORT = ("dataclasses", "enum", "pathlib", "pydantic", "typing")


class TrainerField(NamedTuple):
    """A field of TrainingArguments."""

    type: Any
    default: Any
    help: str


class DeepSpeedKeys(NamedTuple):
    """What DeepSpeed and transformers' integration of it read of a DeepSpeed JSON."""

    keys: dict[str, Any]
    """Key -> its type, or the block below it."""
    removed: dict[str, dict[str, str]]
    """Name of a block ("": the top) -> key that DeepSpeed no longer has -> its message."""
    filled: list[str]
    """Dotted names of the keys whose "auto" transformers replaces."""
    schedulers: dict[str, set[str]]
    """Scheduler -> its parameters."""


def section(name: str, entries: Mapping[str, tuple[Any, Any]]) -> type[Section]:
    """Return a section of the fields ``entries``: name -> (type, default)."""
    made: type[Section] = create_model(name, __base__=Section, **dict(entries))  # type: ignore[call-overload]
    return made


@functools.cache
def trainer(renamed: tuple[tuple[str, str], ...] = ()) -> dict[str, TrainerField]:
    """Return every field of TrainingArguments but ``local_rank``, which the launcher sets.

    Args:
        renamed: (old, new) names of a field; a version that has the old one alone is read as those that have both, in
            which the old one's default is None.
    """
    arguments = _module("transformers.training_args")["TrainingArguments"]
    # The first sentence that a docstring in transformers' form has for each argument.
    entries = re.findall(r"^    {2,}(\w+) \(.*?\):\n((?:^ {8,}.*\n?)+)", arguments.__doc__ or "", re.MULTILINE)
    described = dict(entries)
    found = {}
    for name, annotation in _annotations(arguments).items():
        field = getattr(arguments, name, dataclasses.field())
        if name == "local_rank" or not (isinstance(field, dataclasses.Field) and field.init):
            continue
        default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        default = None if default is _UNKNOWN else getattr(default, "value", default)
        choices = field.metadata.get("choices")
        kind = _plain_type(annotation)
        if isinstance(choices, Collection):
            kind = Literal[tuple(choices)] | None if default is None else Literal[tuple(choices)]
        help = " ".join((field.metadata.get("help") or described.get(name, "")).split())
        found[name] = TrainerField(_TYPES.get(name, kind), default, help)
    for old, new in renamed:
        if old in found and new not in found:
            found[new] = found[old]._replace(type=_TYPES.get(new, found[old].type))
            found[old] = found[old]._replace(type=found[old].type | None, default=None)
    return found


def trackers() -> list[str]:
    """Return names that ``report_to`` may hold."""
    table = re.search(
        r"^INTEGRATION_TO_CALLBACK = {(.*?)^}", _source("transformers.integrations.integration_utils"), re.M | re.S
    )
    return re.findall(r'^ +"(\w+)":', table[1], re.M) if table else []


@functools.cache
def deepspeed() -> DeepSpeedKeys:
    """Return the keys of DeepSpeed's JSON."""
    blocks = {
        "zero_optimization": ("runtime.zero.config", "DeepSpeedZeroConfig"),
        "bf16": ("runtime.precision_config", "DeepSpeedBF16Config"),
        "fp16": ("runtime.precision_config", "DeepSpeedFP16Config"),
        "comms_logger": ("comm.config", "CommsLoggerConfig"),
        "tensorboard": ("monitor.config", "TensorBoardConfig"),
        "wandb": ("monitor.config", "WandbConfig"),
        "csv_monitor": ("monitor.config", "CSVConfig"),
        "comet": ("monitor.config", "CometConfig"),
        "compile": ("compile.config", "CompileConfig"),
        "tensor_parallel": ("runtime.tensor_parallel.config", "TPTrainingConfig"),
    }
    timers = {"throughput": _block(_module("deepspeed.utils.config")["DeepSpeedThroughputTimerConfig"])}
    # What it reads without a model: at the top, and block by block.
    read = re.findall(
        r"(?:get_scalar_param\(\s*|self\._)param_dict(?:,|\.get\()\s*([A-Z_]+)\b", _source("deepspeed.runtime.config")
    )
    common, writing = "runtime.constants", "runtime.model_checkpointing.constants"
    checkpoint = {
        **_constants(common, "CHECKPOINT_TAG_VALIDATION|LOAD_UNIVERSAL|USE_NODE_LOCAL"),
        **_constants(writing, "CHECKPOINT_SERIALIZATION"),
        "parallel_write": _constants(common, "CHECKPOINT_PARALLEL_WRITE_"),
        "writer": _constants(writing, "CHECKPOINT_(WRITER_|IO_|DATA_PARALLEL)"),
    }
    data_types = _constants(common, "GRAD_ACCUM_DTYPE|PARAM_DTYPE|BUFFER_DTYPE|KEEP_IN_FP32_MODULES")
    by_key = _constants(common, f"({'|'.join(read)})$") | {
        "torch_autocast": _constants(common, "TORCH_AUTOCAST_"),
        "activation_checkpointing": _constants("runtime.activation_checkpointing.config", "ACT_CHKPT_"),
        "aio": _constants("runtime.swap_tensor.constants", "AIO_"),
        "flops_profiler": _constants("profiling.constants", "FLOPS_PROFILER_"),
        "data_types": data_types | {"keep_in_fp32_modules": str | list},
        "checkpoint": checkpoint,
    }
    by_model = {name: _block(_module(f"deepspeed.{module}")[model]) for name, (module, model) in blocks.items()}
    config = _module("deepspeed.runtime.config")
    return DeepSpeedKeys(
        keys=by_key | by_model | {"timers": timers},
        removed={
            "": config.get("_REMOVED_TOP_LEVEL_CONFIG_KEYS", {}),
            "zero_optimization": config.get("_REMOVED_ZERO_CONFIG_KEYS", {}),
        },
        filled=re.findall(r'fill_(?:match|only)\(\s*"([\w.]+)"', _source("transformers.integrations.deepspeed")),
        schedulers={name: _parameters("deepspeed.runtime.lr_schedules", name) - {"optimizer"} for name in SCHEDULERS},
    )


def _constants(module: str, names: str) -> dict[str, Any]:
    """Key -> the type of its default, Any without one, of DeepSpeed's constants whose names match."""
    there = _module(f"deepspeed.{module}")
    keys = {name: there[name] for name in there.defined if re.match(names, name) and not name.endswith("_DEFAULT")}
    defaults = {key: there.get(f"{name}_DEFAULT") for name, key in keys.items() if re.fullmatch("[a-z0-9_]+", str(key))}
    return {key: type(default) if type(default) in _PLAIN[:-1] else Any for key, default in defaults.items()}


def _block(model: type) -> dict[str, Any]:
    """Every key of a block -> its type with its bounds, or the block below it."""
    found: dict[str, Any] = {}
    for name, annotation in _annotations(model).items():
        field = getattr(model, name, None)
        members = get_args(annotation) or (annotation,)
        inner = next((kind for kind in members if isinstance(kind, type) and issubclass(kind, _Model)), None)
        entry = _plain_type(annotation) if inner is None else _block(inner)
        if inner is None and isinstance(field, FieldInfo) and field.metadata:
            entry = Annotated[(entry, *field.metadata)]
        alias = field.alias if isinstance(field, FieldInfo) else None
        found |= dict.fromkeys((name, alias or name), entry)
    return found


def _plain_type(annotation: Any) -> Any:
    """Return the type that a file's value must have: of an enum its values, and Any for what no file can hold."""
    if annotation in _PLAIN:
        return annotation
    if annotation is None or annotation is Path:
        return None if annotation is None else str
    origin, members = get_origin(annotation), get_args(annotation)
    if origin in (Union, types.UnionType):
        if any(_is_enum(member) for member in members):  # "Enum | str": the enum is what is meant
            members = tuple(member for member in members if member is not str)
        return Union[tuple(map(_plain_type, members))]  # noqa: UP007  # made of a tuple
    if origin is Literal:
        return annotation
    if _is_enum(annotation):
        return Literal[tuple(member.value for member in annotation)]
    if origin in (list, dict):
        return origin[tuple(map(_plain_type, members))]
    return Any


def _is_enum(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, enum.Enum)


def _annotations(kind: type) -> dict[str, Any]:
    """Return a class's public annotated names with their types, inherited ones first."""
    merged: dict[str, Any] = {}
    for each in reversed(kind.__mro__):
        merged |= inspect.get_annotations(each)
    return {name: annotation for name, annotation in merged.items() if not name.startswith("_")}


class _Model:
    """Stands for DeepSpeed's base of pydantic models: to read their fields, no validator needs to be built."""


class _Unknown:
    """A value that only an import would give; whatever is made of it is unknown as well."""

    def __call__(self, *_: Any, **__: Any) -> "_Unknown":
        return self

    __getitem__ = __or__ = __ror__ = __call__
    __iter__ = None

    def __getattr__(self, name: str) -> "_Unknown":
        if name.startswith("__"):
            raise AttributeError(name)
        return self


_UNKNOWN = _Unknown()


class _Module(dict[str, Any]):
    """Names that a module defines, each executed when it is first asked for."""

    def __init__(self, name: str):
        # the libraries' own bases, as far as fields need them
        super().__init__(ExplicitEnum=enum.StrEnum, DeepSpeedConfigModel=_Model)
        self.package, _, _ = name.rpartition(".")
        self.defined: dict[str, ast.stmt] = {}
        for statement in ast.parse(_source(name)).body:
            for defined in _names_of(statement):
                self.defined[defined] = statement

    def __missing__(self, name: str) -> Any:
        statement = self.defined.get(name)
        if isinstance(statement, ast.ImportFrom):
            self[name] = self._imported(statement, name)
        elif isinstance(statement, ast.ClassDef | ast.Assign | ast.AnnAssign):
            self._execute(statement, name)
        else:
            self[name] = _UNKNOWN
        return self[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return the value of a name that may not be defined."""
        return self[name] if name in self.defined else default

    def _imported(self, statement: ast.ImportFrom, name: str) -> Any:
        original = next(alias.name for alias in statement.names if (alias.asname or alias.name) == name)
        module = importlib.util.resolve_name("." * statement.level + (statement.module or ""), self.package)
        if module.partition(".")[0] in _SAFE_TO_IMPORT:
            return getattr(importlib.import_module(module), original)
        # classes and constants; functions would be asked what is installed here
        if module.partition(".")[0] == self.package.partition(".")[0] and original[0].isupper():
            return _module(module)[original]
        return _UNKNOWN

    def _execute(self, statement: ast.stmt, name: str) -> None:
        for node in ast.walk(statement):
            if isinstance(node, ast.ClassDef | ast.If):
                left_out = ast.FunctionDef | ast.Import | ast.ImportFrom
                node.body = [each for each in node.body if not isinstance(each, left_out)] or [ast.Pass()]
        if isinstance(statement, ast.ClassDef):
            statement.decorator_list = []
        used = [node for node in ast.walk(statement) if isinstance(node, ast.Name)]
        own = {node.id for node in used if isinstance(node.ctx, ast.Store)}
        names: dict[str, Any] = {"__name__": self.package}
        names |= {node.id: self[node.id] for node in used if node.id not in own and node.id not in vars(builtins)}
        with contextlib.suppress(Exception):  # of something unknown nothing can be made
            exec(compile(ast.Module([statement], []), self.package, "exec", dont_inherit=True), names)
        self[name] = names.get(name, _UNKNOWN)


def _names_of(statement: ast.stmt) -> list[str]:
    """Return the names that a statement defines."""
    if isinstance(statement, ast.ClassDef | ast.FunctionDef):
        return [statement.name]
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in statement.names]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [target.id for target in targets if isinstance(target, ast.Name)]


_module = functools.cache(_Module)


def _parameters(module: str, name: str) -> set[str]:
    """Return the parameters of a class, without ``self``."""
    made = _module(module).defined[name]
    assert isinstance(made, ast.ClassDef)
    begin = next(node for node in made.body if isinstance(node, ast.FunctionDef) and node.name == "__init__")
    return {each.arg for each in begin.args.args[1:]}


@functools.cache
def _source(module: str) -> str:
    """Return the text of a module of an installed library."""
    library, *parts = module.split(".")
    found = importlib.util.find_spec(library)
    assert found is not None and found.origin is not None, f"{library} is not installed"
    path = Path(found.origin).parent.joinpath(*parts)
    return (path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8")
