"""Whether the parts of an extension recipe agree with each other and with the model that is extended."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tape_ds.errors import Problem, did_you_mean
from tape_ds.training.recipe import address_checks
from tape_ds.training.recipe.checks import Checks

if TYPE_CHECKING:
    from tape_ds.training.recipe.extension import ExtensionRecipe

SMOLLM2_LENGTH = 8192
"""Native length of SmolLM2-135M: known here so that it need not be unpacked to be checked."""

METHODS = ("full", "lora", "tape")
LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear maps of a Llama block. The position updates are no LoRA targets: they are trained whole."""

CHECKS = Checks()


def learns(encoding: str, options: Mapping[str, Any]) -> bool:
    """Whether this encoding has parameters of its own to train; no where its name or options are wrong."""
    from tape_ds.model import positions

    return not positions.check_options(encoding, options) and positions.learns(encoding, options)


def check_against_model(recipe: "ExtensionRecipe", model_config: Any) -> list[Problem]:
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


@CHECKS.reads("model")
def _model_is_there(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    yield from address_checks.check_pretrained("model", recipe.model.model, ("config.json",))


@CHECKS.reads("model", "target_length", "rope_parameters")
def _model_has_the_length(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    """Where the native length is cheaply known; the launcher repeats it for the others."""
    if recipe.model.model == address_checks.SMOLLM2:
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


@CHECKS.reads("position_encoding", "position_options", "state_dtype", "attention_backend")
def _encoding(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    from tape_ds.model import attention, positions
    from tape_ds.model.configuration import STATE_DTYPES

    model = recipe.model
    yield from positions.check_options(model.position_encoding, model.position_options)
    if model.state_dtype is not None and model.state_dtype not in STATE_DTYPES:
        yield Problem("state_dtype", model.state_dtype, "unknown dtype", did_you_mean(model.state_dtype, STATE_DTYPES))
    yield from attention.problems(model.attention_backend)


@CHECKS.reads("rope_parameters")
def _scaling(recipe: "ExtensionRecipe") -> Iterator[Problem]:
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


@CHECKS.reads("target_length", "window", "pose_chunks")
def _window(recipe: "ExtensionRecipe") -> Iterator[Problem]:
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


@CHECKS.reads("position_encoding", "pose_chunks")
def _skips(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    from tape_ds.model import positions

    encoding, chunks = recipe.model.position_encoding, recipe.data.pose_chunks
    if chunks >= 2 and encoding in positions.available() and positions.reads_tokens(encoding):
        wrong = f"position_encoding = {encoding!r} counts tokens itself, and would see no skip"
        yield Problem("pose_chunks", chunks, wrong, "give pose_chunks: 1 (and a longer window), or another encoding")


@CHECKS.reads("min_document_tokens", "eval_length", "eval_span", "target_length")
def _sizes(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    """An evaluation longer than the target is allowed: it asks what lies beyond."""
    if recipe.data.min_document_tokens < 1:
        yield Problem("min_document_tokens", recipe.data.min_document_tokens, "too small", "give 1 or more")
    length, span = recipe.evaluation.eval_length, recipe.evaluation.eval_span
    if length < 2:
        yield Problem("eval_length", length, "too small", "give 2 tokens or more (the first is no target)")
    if not 1 <= span <= max(length, 1):
        yield Problem("eval_span", span, f"not between 1 and eval_length = {length}", "give the tokens of one stretch")


@CHECKS.reads("method", "position_encoding", "position_options", "train_position", "train_norms", "train_embeddings")
def _method(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    from tape_ds.model import positions

    method, encoding, options = recipe.method, recipe.model.position_encoding, recipe.model.position_options
    if method.method not in METHODS:
        yield Problem("method", method.method, "unknown method", did_you_mean(method.method, METHODS))
    if method.method not in METHODS or positions.check_options(encoding, options):
        return
    untrainable = f"position_encoding = {encoding!r} has no position updates" + (" with these options" * bool(options))
    if method.method == "full":
        for name in ("train_position", "train_norms", "train_embeddings"):
            if name in recipe.given and not getattr(method, name):
                yield Problem(
                    name, False, "method = 'full' trains every parameter", "remove it, or choose another method"
                )
    elif method.train_position and not learns(encoding, options):
        remedy = "position_encoding: tape (with an update on), or train_position: false"
        yield Problem("train_position", True, untrainable, remedy)
    elif method.method == "tape" and "train_position" not in recipe.given and not learns(encoding, options):
        remedy = "position_encoding: tape (with an update on), or method: lora or full"
        yield Problem("method", "tape", untrainable, remedy)
    if method.method == "tape" and not (method.train_position or method.train_norms or method.train_embeddings):
        remedy = "set train_position, train_norms or train_embeddings"
        yield Problem("method", "tape", "nothing is left to train", remedy)


@CHECKS.reads("method", "lora_r", "lora_alpha", "lora_dropout", "lora_targets")
def _lora(recipe: "ExtensionRecipe") -> Iterator[Problem]:
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
