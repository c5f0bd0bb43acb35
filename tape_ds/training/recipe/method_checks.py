"""Whether a method, its settings and the start that it is given agree."""

import importlib.util
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from tape_ds.errors import Problem, did_you_mean
from tape_ds.training.methods import METHODS, Method, trained
from tape_ds.training.recipe import deepspeed_config
from tape_ds.training.recipe.checks import Checks
from tape_ds.training.recipe.optimization import learns

if TYPE_CHECKING:
    from tape_ds.training.recipe.extension import ExtensionRecipe, MethodSection

LORA_TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
"""The linear maps of a Llama block. The position updates are no LoRA targets: they are trained whole."""
GPTJ_TARGETS = ("q_proj", "k_proj", "v_proj", "out_proj", "fc_in", "fc_out")
"""The linear maps of a GPT-J block."""
GROUPS = ("train_position", "train_norms", "train_embeddings")
ADAPTERS = ("lora_r", "lora_alpha", "lora_dropout", "lora_targets", "load_in_4bit")

CHECKS = Checks()


def idle(recipe: "ExtensionRecipe") -> set[str]:
    """Fields of the method section that mean nothing to the recipe's method."""
    method = recipe.chosen
    fields: set[str] = set() if method.trains == "adapters" else set(ADAPTERS)
    if not method.grouped:
        fields.add("group_tokens")
    if "rope_theta" not in method.angles:
        fields.add("theta_linear")
    if method.trains in ("everything", "nothing"):
        fields |= set(GROUPS)
    return fields


@CHECKS.reads("method")
def _known(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    name = recipe.method.method
    if name not in METHODS:
        yield Problem("method", name, "unknown method", did_you_mean(name, METHODS))


@CHECKS.reads("method", *ADAPTERS, "group_tokens", "theta_linear", *GROUPS)
def _idle_fields(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    """A setting that the method does not read is a mistake, unless it says what is so anyway."""
    name = recipe.method.method
    if name not in METHODS:
        return
    trains = METHODS[name].trains
    so_anyway = {"load_in_4bit": False, "theta_linear": False, "group_tokens": None}
    so_anyway |= dict.fromkeys(GROUPS, trains == "everything")
    for field in sorted(recipe.given & idle(recipe)):
        value = getattr(recipe.method, field)
        if field in so_anyway and value is so_anyway[field]:
            continue
        if field in ADAPTERS:
            remedy = "remove it, or choose a method with adapters: " + _those(lambda m: m.trains == "adapters")
            yield Problem(field, value, f"method = {name!r} has no adapters", remedy)
        elif field == "group_tokens":
            remedy = "remove it (where a base has it: group_tokens: null), or method: " + _those(lambda m: m.grouped)
            yield Problem(field, value, f"method = {name!r} does not group attention", remedy)
        elif field == "theta_linear":
            remedy = "remove it (or give false), or method: " + _those(lambda m: "rope_theta" in m.angles)
            yield Problem(field, value, f"method = {name!r} leaves rope_theta as it is", remedy)
        else:
            wrong = f"method = {name!r} trains {trains if trains == 'nothing' else 'every parameter'}"
            remedy = f"remove it (where a base has it: {field}: {str(not value).lower()}), or choose another method"
            yield Problem(field, value, wrong, remedy)


def _those(wanted: Callable[[Method], bool]) -> str:
    return ", ".join(name for name, method in METHODS.items() if wanted(method))


@CHECKS.reads("method", "position_encoding", "position_options", *GROUPS)
def _trains_something(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    """Position updates are trained by the methods that are about them, and by no others."""
    from tape_ds.model import positions

    settings, encoding, options = recipe.method, recipe.model.position_encoding, recipe.model.position_options
    if settings.method not in METHODS or positions.check_options(encoding, options):
        return
    method, name = METHODS[settings.method], settings.method
    if method.trains in ("everything", "nothing"):
        return
    can = learns(encoding, options)
    has_none = f"position_encoding = {encoding!r} has no position updates" + (" with these options" * bool(options))
    ours = _those(lambda m: m.learns_positions)
    if settings.train_position and not method.learns_positions:
        yield Problem("train_position", True, f"method = {name!r} trains no position updates", f"method: {ours}")
    elif settings.train_position and not can:
        remedy = "position_encoding: tape (with an update on), or train_position: false"
        yield Problem("train_position", True, has_none, remedy)
    elif method.learns_positions and "train_position" not in recipe.given and not can:
        others = ", ".join(each for each in trained() if not METHODS[each].learns_positions)
        remedy = f"position_encoding: tape (with an update on), or another method: {others}"
        yield Problem("method", name, has_none, remedy)
    if method.trains == "groups" and not any(getattr(settings, switch) for switch in GROUPS):
        remedy = f"set {', '.join(GROUPS[:-1])} or {GROUPS[-1]}"
        yield Problem("method", name, "nothing is left to train", remedy)


@CHECKS.reads("method", "rope_parameters", "theta_linear")
def _angles(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    """A method that is a scaling of angles cannot start from another one."""
    name, given = recipe.method.method, recipe.model.rope_parameters.get("rope_type")
    if name not in METHODS or given is None:
        return
    own = METHODS[name].angles.get("rope_type")
    own = "linear" if own is not None and recipe.method.theta_linear else own
    if own is not None and given != own:
        remedy = "remove rope_parameters (where a base has them: rope_parameters: {}), or choose another method"
        yield Problem("rope_parameters.rope_type", given, f"method = {name!r} is {own!r} angles", remedy)


@CHECKS.reads("method", "resume_from_checkpoint")
def _nothing_to_resume(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    name, given = recipe.method.method, recipe.resume_from_checkpoint
    if given and given != "auto" and name in METHODS and not recipe.trains:  # auto: if there is something to go on with
        wrong = f"method = {name!r} takes no steps: there is nothing to go on with"
        yield Problem("resume_from_checkpoint", given, wrong, "remove it")


@CHECKS.reads("method", "group_tokens", "window", "position_encoding")
def _groups(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    from tape_ds.model import positions

    group, window, encoding = recipe.method.group_tokens, recipe.data.window, recipe.model.position_encoding
    if recipe.method.method not in METHODS or not METHODS[recipe.method.method].grouped:
        return
    if group < 2 or group % 2:
        yield Problem("group_tokens", group, "groups are shifted by half of one", "give an even number, 2 or more")
    elif group >= window:
        wrong = f"not shorter than the window of {window} tokens: nothing would be cut"
        yield Problem("group_tokens", group, wrong, "give less, usually a quarter of the window")
    if encoding in positions.available() and positions.biases_scores(encoding):
        wrong = f"method = {recipe.method.method!r} cannot cut an encoding that biases scores"
        yield Problem("position_encoding", encoding, wrong, "position_encoding: rope, or method: lora")


@CHECKS.reads("method", *ADAPTERS)
def _adapters(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    settings = recipe.method
    if settings.method not in METHODS or METHODS[settings.method].trains != "adapters":
        return
    if settings.lora_r < 1:
        yield Problem("lora_r", settings.lora_r, "an adapter needs a rank", "give 1 or more, usually 8 to 64")
    if settings.lora_alpha <= 0:
        yield Problem("lora_alpha", settings.lora_alpha, "would switch the adapter off", "give a number above 0")
    if not 0 <= settings.lora_dropout < 1:
        yield Problem("lora_dropout", settings.lora_dropout, "out of range", "give a number from 0 to below 1")
    known = tuple(dict.fromkeys((*LORA_TARGETS, *GPTJ_TARGETS)))
    if not settings.lora_targets:
        yield Problem("lora_targets", settings.lora_targets, "no targets", "one or more of: " + ", ".join(known))
    for target in settings.lora_targets:
        if target not in known:
            yield Problem("lora_targets", target, "no linear map of a block", did_you_mean(target, known))


@CHECKS.reads("method", "load_in_4bit", "deepspeed")
def _four_bits(recipe: "ExtensionRecipe") -> Iterator[Problem]:
    """QLoRA, Dettmers et al. 2023, arXiv:2305.14314."""
    if not recipe.method.load_in_4bit or recipe.chosen.trains != "adapters":
        return
    reasons = []
    if importlib.util.find_spec("bitsandbytes") is None:
        reasons.append("bitsandbytes is not installed (pip install bitsandbytes)")
    if recipe.deepspeed and deepspeed_config.stage(recipe.deepspeed) == 3:
        reasons.append("ZeRO-3 cannot shard packed 4-bit weights (use deepspeed: zero1 or zero2)")
    if reasons:
        yield Problem("load_in_4bit", True, "; ".join(reasons), "mend that, or load_in_4bit: false")


def targets_of(method: Method, model_type: str, settings: "MethodSection") -> Iterator[Problem]:
    """Adapter targets that this kind of model does not have."""
    family = model_type.removeprefix("tape_")
    known = GPTJ_TARGETS if family == "gptj" else LORA_TARGETS
    for target in settings.lora_targets if method.trains == "adapters" else []:
        if target not in known:
            yield Problem("lora_targets", target, f"no linear map of a {family} block", did_you_mean(target, known))
