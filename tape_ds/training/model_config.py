"""The configuration of the model that a recipe trains: for a run, or planned without loading the model.

A plan has no tokenizer and perhaps no model: a base that is not on this machine has its published sizes.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from tape_ds import attention, encodings, paths
from tape_ds.config.extension import ExtensionRecipe, check_against_model, of_method
from tape_ds.config.finetuning import FinetuningRecipe
from tape_ds.config.generated import GeneratedRecipe
from tape_ds.config.method import LLAMAS_MAPS, check_targets, targets
from tape_ds.config.pretraining import NO_TOKENIZER, PretrainingRecipe
from tape_ds.config.recipe import Recipe
from tape_ds.config.scale import check_model
from tape_ds.config.sections import check_trained, learns
from tape_ds.data import tokenizer as tokenizers
from tape_ds.distributed.layout import SEQUENCE
from tape_ds.encodings import trained_rope
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models import decoder_configuration
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.files import config_file, hub, json_file
from tape_ds.models.files.config_file import BAICHUAN, TAPE
from tape_ds.models.loading import extendable, model_folder, wrapper
from tape_ds.models.loading.base_model import BaseModel
from tape_ds.planning import shape
from tape_ds.planning.shape import Config

PLAIN = "rope"
"""The encoding of a plain Llama."""


def extended(recipe: ExtensionRecipe, base: BaseModel, tokenizer: Any = NO_TOKENIZER) -> Config:
    """Return the configuration of a recipe's extended model."""
    model = recipe.model
    target = recipe.model.target_length
    given = position_options(recipe, base.config)
    try:
        return extendable.configure(
            base.config,
            position_encoding=model.position_encoding,
            position_options=encodings.options_for(model.position_encoding, given, tokenizer)
            or None,
            state_dtype=model.state_dtype,
            attention_backend=model.attention_backend,
            max_position_embeddings=target,
            rope_parameters=trained_rope.extended(base.rope, recipe.rope_parameters, target),
        )
    except UserError as error:
        raise UserError(of_method(recipe, problem) for problem in error.problems) from error


def position_options(recipe: ExtensionRecipe, native: PreTrainedConfig) -> dict[str, Any]:
    """Return the recipe's options, with the method's; without any, those of a base that has this very encoding."""
    model = recipe.model
    if (
        not model.position_options
        and getattr(native, "position_encoding", None) == model.position_encoding
    ):
        return encodings.kept_options(native)
    chosen = recipe.position_options
    length = native.max_position_embeddings
    if recipe.method.chosen.drops_rope and chosen.get("score_scale") is not None:
        chosen = {"trained_length": length} | chosen
    if chosen.get("log_scale", "none") != "none" and chosen.get("log_scale_from") is None:
        chosen = chosen | {"log_scale_from": length}
    return chosen


def require_fit(recipe: Recipe, base: BaseModel) -> None:
    """Raise UserError for what the base model of a recipe cannot do; for a run, its dry run and a plan alike."""
    native = base.config
    encoding = getattr(native, "position_encoding", PLAIN)
    options = getattr(native, "position_options", None) or {}
    if isinstance(recipe, ExtensionRecipe):
        encoding = recipe.model.position_encoding
        options = position_options(recipe, native)
    found = list(check_model(recipe.scale, native))
    family = "llama" if native.model_type == TAPE else native.model_type.removeprefix("tape_")

    # transformers' own class has fewer features
    if base.is_foreign:
        if isinstance(recipe, ExtensionRecipe):
            method = recipe.method
            found += _only_rope(recipe, native)
            if method.train_router and not base.shape.has_router:
                found.append(
                    Problem("train_router", True, f"a {family} has no router", "remove it")
                )
            if method.chosen.grouped:
                wrong = f"a {family} does not attend in groups"
                found.append(Problem("method", method.method, wrong, "method: lora"))
            if method.distill and decoder_configuration.changes_logits(native):
                wrong = f"a {family} changes what its head gives, and the divergence is of heads"
                found.append(Problem("distill", True, wrong, "leave it out"))
        if recipe.model.liger == "on":
            found.append(
                Problem("liger", "on", f"Liger's kernels do not support a {family}", "liger: auto")
            )
        if recipe.memory.mlp_tiles > 1:
            wrong = f"the feed-forward of a {family} cannot be tiled"
            found.append(Problem("mlp_tiles", recipe.memory.mlp_tiles, wrong, "leave it out"))
        if recipe.trainer_value(
            "activation_checkpointing"
        ) and not decoder_configuration.recomputes(native):
            wrong = f"the layers of a {family} cannot be recomputed"
            found.append(Problem("activation_checkpointing", True, wrong, "give false"))
        if (size := recipe.scale.sequence_parallel_size) > 1:
            wrong = f"the sequences of a {family} cannot be shared between processes"
            found.append(Problem(SEQUENCE, size, wrong, "leave it out, and use zero3"))
        needs = sorted(decoder_configuration.needs(native))
        found += attention.check_backend(recipe.model.attention_backend, needs)

    if isinstance(recipe, ExtensionRecipe):
        if "lora_targets" in recipe.given:
            found += check_targets(recipe.method, family, linear_maps(base))
        found += check_against_model(recipe, native)
    if isinstance(recipe, ExtensionRecipe | FinetuningRecipe):
        learned = recipe.trains_positions and learns(encoding, options)
        found += check_trained(recipe.optimization, learned)
    raise_if_any(found)


def _only_rope(recipe: ExtensionRecipe, native: PreTrainedConfig) -> Iterator[Problem]:
    """Yield what a class of transformers has not: another encoding than RoPE, and the position state."""
    model = recipe.model
    method = recipe.method
    if model.position_encoding != PLAIN:
        remedy = decoder_configuration.PLAIN
        if "position_encoding" in recipe.given:
            own = f"position_encoding: {PLAIN}"
            remedy = own if method.chosen.encoding == PLAIN else f"method: lora and {own}"
        yield Problem(
            "position_encoding",
            model.position_encoding,
            decoder_configuration.only_rope(native),
            remedy,
        )
    if model.position_options:
        wrong = f"a {native.model_type} has none"
        yield Problem("position_options", model.position_options, wrong, "position_options: {}")
    if model.state_dtype:
        wrong = f"a {native.model_type} has no position state"
        yield Problem(
            "state_dtype",
            model.state_dtype,
            wrong,
            "remove it (where a base has it: state_dtype: null)",
        )


def linear_maps(base: BaseModel) -> Mapping[str, bool]:
    """Return the names of the linear maps of a base's blocks -> whether attention has them."""
    if base.is_foreign:
        return base.shape.linear_maps
    return LLAMAS_MAPS


def with_targets(recipe: ExtensionRecipe, base: BaseModel) -> ExtensionRecipe:
    """Return the recipe with the adapters' targets by the names of the base's family."""
    names = targets(recipe.method, "lora_targets" in recipe.given, linear_maps(base))
    if not names:
        return recipe
    method = recipe.method.model_copy(update={"lora_targets": names})
    return replace(recipe, method=method, given=recipe.given | {"lora_targets"})


def finetuned(
    recipe: FinetuningRecipe, native: PreTrainedConfig, longest: int | None = None
) -> Config:
    """Return the configuration of a fine-tuned model, which keeps its encoding and its RoPE parameters.

    ``max_position_embeddings`` becomes ``longest``, the tokens of the longest text (None: as many as the recipe
    allows), where that is more; an encoding that depends on the length, such as ``yarn``, is trained for it.
    """
    length = max(longest or recipe.data.max_tokens, native.max_position_embeddings)
    changes: dict[str, Any] = {"max_position_embeddings": length}
    if native.model_type == TAPE:
        changes["position_options"] = encodings.kept_options(native) or None
    config = as_it_is(native, recipe.model.attention_backend, **changes)
    if config.model_type == TAPE:
        return encodings.config_at(config, length)
    return config


def as_it_is(native: PreTrainedConfig, attention_backend: str, **changes: Any) -> Config:
    """Return a base's configuration with its own encoding."""
    changes |= {} if native.model_type == TAPE else {"position_encoding": PLAIN}
    return extendable.configure(native, attention_backend=attention_backend, **changes)


def planned_config(recipe: Recipe, base: str | None = None) -> Config:
    """Return the configuration of the model that a recipe will train; ``base`` (a name, a path or a ``config.json``)
    replaces the recipe's."""
    if isinstance(recipe, GeneratedRecipe | PretrainingRecipe) and base is None:
        if isinstance(recipe, GeneratedRecipe):
            fields = recipe.configuration()
        else:
            entries = _entries(recipe) or len(tokenizers.load_tokenizer(str(recipe.data.tokenizer)))
            fields = recipe.configuration(NO_TOKENIZER, entries)
        config = TapeConfig(**fields)
        raise_if_any(check_model(recipe.scale, config))
        return config

    planned = planned_base(recipe.model.model if base is None else base)
    require_fit(recipe, planned)
    if isinstance(recipe, ExtensionRecipe):
        return extended(recipe, planned)
    if isinstance(recipe, FinetuningRecipe):
        return finetuned(recipe, planned.config)
    return extendable.configure(planned.config)


def known_config(recipe: Recipe) -> Config | None:
    """Return :func:`planned_config` where neither tokenizer nor unpacking is needed for it: for a published model, a
    folder, a new model of known vocabulary, a hub id whose ``config.json`` is in the cache or answered for by the hub
    within seconds; else None."""
    if isinstance(recipe, GeneratedRecipe):
        return planned_config(recipe)
    if isinstance(recipe, PretrainingRecipe):
        if _entries(recipe):
            return planned_config(recipe)
        return None
    name = recipe.model.model
    file = config_file.find(name, online=True)
    is_known = shape.known(name) or (name.endswith(".gguf") and paths.of(name).is_file())
    if file or is_known:
        return planned_config(recipe, None if file is None else str(file))
    return None


def check_weights(recipe: Recipe, config: Config | None) -> None:
    """Raise UserError where the files of a base that is a folder here do not hold the model of ``config``, by the names
    and shapes in their headers: what a run would find, for its dry run."""
    name = getattr(recipe.model, "model", None)
    if config is None or name is None or not paths.of(name).is_dir():
        return
    folder = paths.of(name)
    content = json_file.read(folder / hub.CONFIG, "model", name)
    # converted first, which gives its tensors other names
    if content.get("model_type") != BAICHUAN and wrapper.read(folder) is None:
        extendable.check_weights(folder, config)


def _entries(recipe: PretrainingRecipe) -> int:
    """Return rows of the embedding: the recipe's, or those of the published model whose tokenizer it takes; 0 if
    unknown."""
    tokenizer = str(recipe.data.tokenizer)
    published = shape.published(tokenizer).vocab_size if shape.known(tokenizer) else 0
    return recipe.model.vocab_size or published


def planned_base(model: str) -> BaseModel:
    """Return a base whose weights are not needed: its own configuration where that is here or can be fetched, else the
    published one."""
    if shape.known(model) and not Path(model).exists():
        return BaseModel(model, "", shape.published(model))
    path = Path(model)
    if path.is_file() and path.name == config_file.CONFIG:
        return BaseModel(model, "", extendable.read(path.parent))
    if model.endswith(".gguf"):
        return BaseModel(model, "", extendable.read_gguf(paths.of(model)))
    return BaseModel(
        model, "", extendable.read(model_folder.find_folder(model, with_weights=False))
    )
