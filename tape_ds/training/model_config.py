"""The configuration of the model that a recipe trains: for a run, or planned without loading the model.

A plan has no tokenizer and perhaps no model: a base that is not on this machine has its published sizes.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from tape_ds import attention, encodings
from tape_ds.config.extension import ExtensionRecipe, check_against_model
from tape_ds.config.finetuning import FinetuningRecipe
from tape_ds.config.generated import GeneratedRecipe
from tape_ds.config.method import targets_of
from tape_ds.config.pretraining import NO_TOKENIZER, PretrainingRecipe
from tape_ds.config.recipe import Recipe
from tape_ds.config.scale import check_model
from tape_ds.config.sections import check_trained, learns
from tape_ds.data import tokenizer as tokenizers
from tape_ds.distributed.layout import SEQUENCE
from tape_ds.encodings import trained_rope
from tape_ds.errors import Problem, raise_if_any
from tape_ds.models import decoder_configuration
from tape_ds.models.flops import decoder_shape
from tape_ds.models.loading import config_file, extendable, model_folder
from tape_ds.models.loading.config_file import TAPE
from tape_ds.planning import shape
from tape_ds.planning.shape import Config

PLAIN = "rope"
"""The encoding by which a plain Llama is read."""


def extended(recipe: ExtensionRecipe, native: PreTrainedConfig, tokenizer: Any = NO_TOKENIZER) -> Config:
    """Return the configuration of a recipe's extended model."""
    model = recipe.model
    options = encodings.options_for(model.position_encoding, position_options(recipe, native), tokenizer)
    return extendable.configure(
        native,
        position_encoding=model.position_encoding,
        position_options=options or None,
        state_dtype=model.state_dtype,
        attention_backend=model.attention_backend,
        max_position_embeddings=model.target_length,
        rope_parameters=trained_rope.extended(
            trained_rope.read(native.to_dict(), model.model), recipe.rope_parameters, model.target_length
        ),
    )


def check_fit(recipe: Recipe, native: PreTrainedConfig) -> list[Problem]:
    """Return the parts of a recipe that its base model cannot do; for a run, its dry run and a plan alike."""
    if refused := extendable.check(native):
        return refused  # further problems would mislead
    found = list(check_model(recipe.scale, native))
    if extendable.by_own_class(native):
        found += _check_own_class(recipe, native)
    elif isinstance(recipe, ExtensionRecipe):
        found += targets_of(recipe.method, _family(native))
    if not isinstance(recipe, ExtensionRecipe | FinetuningRecipe):
        return found
    if isinstance(recipe, ExtensionRecipe):
        found += check_against_model(recipe, native)
        encoding, options = recipe.model.position_encoding, position_options(recipe, native)
        learned = recipe.trains_positions and learns(encoding, options)
    else:
        learned = learns(getattr(native, "position_encoding", PLAIN), getattr(native, "position_options", None) or {})
    return found + list(check_trained(recipe.optimization, learned))


def _family(native: PreTrainedConfig) -> str:
    return "llama" if native.model_type == TAPE else native.model_type.removeprefix("tape_")


def _check_own_class(recipe: Recipe, native: PreTrainedConfig) -> Iterator[Problem]:
    """Check a model that is extended by transformers' own class, which has fewer features."""
    family = _family(native)
    if isinstance(recipe, ExtensionRecipe):
        method, shape_of = recipe.method, decoder_shape(native)
        if "lora_targets" in recipe.given:
            yield from targets_of(method, family, shape_of.linear_maps)
        if method.train_router and not shape_of.has_router:
            yield Problem("train_router", True, f"a {family} has no router", "remove it")
        if method.chosen.grouped:
            yield Problem("method", method.method, f"a {family} does not attend in groups", "method: lora")
        if method.distill and decoder_configuration.changes_logits(native):
            wrong = f"a {family} changes what its head gives, and the divergence is of heads"
            yield Problem("distill", True, wrong, "leave it out")
    if recipe.model.liger == "on":
        yield Problem("liger", "on", f"Liger's kernels are not put into a {family}", "liger: auto")
    if recipe.memory.mlp_tiles > 1:
        wrong = f"the feed-forward of a {family} is not cut into tiles"
        yield Problem("mlp_tiles", recipe.memory.mlp_tiles, wrong, "leave it out")
    if recipe.trainer_value("activation_checkpointing") and not decoder_configuration.recomputes(native):
        wrong = f"the layers of a {family} cannot be computed again"
        yield Problem("activation_checkpointing", True, wrong, "give false")
    if recipe.scale.sequence_parallel_size > 1:
        wrong = f"the sequences of a {family} are not shared out"
        yield Problem(SEQUENCE, recipe.scale.sequence_parallel_size, wrong, "leave it out, and use zero3")
    yield from attention.check_backend(recipe.model.attention_backend, sorted(decoder_configuration.needs(native)))


def fitted(recipe: ExtensionRecipe, native: PreTrainedConfig) -> ExtensionRecipe:
    """Return the recipe with the adapters' default targets, named as in the base's family."""
    adapted = recipe.method.chosen.trains == "adapters" and "lora_targets" not in recipe.given
    if not adapted or not extendable.by_own_class(native):
        return recipe
    targets = [name for name, of_attention in decoder_shape(native).linear_maps.items() if of_attention]
    return replace(recipe, method=recipe.method.model_copy(update={"lora_targets": targets}))


def position_options(recipe: ExtensionRecipe, native: PreTrainedConfig) -> dict[str, Any]:
    """Return the recipe's options, with the method's; without any, those of a base that has this very encoding."""
    model = recipe.model
    if not model.position_options and getattr(native, "position_encoding", None) == model.position_encoding:
        return dict(getattr(native, "position_options", None) or {})
    chosen = recipe.position_options
    scaled = recipe.method.chosen.drops_rope and chosen.get("score_scale") is not None
    return ({"trained_length": native.max_position_embeddings} if scaled else {}) | chosen


def untouched(native: PreTrainedConfig, attention_backend: str) -> Config:
    encoding = {} if native.model_type == TAPE else {"position_encoding": PLAIN}
    return extendable.configure(native, attention_backend=attention_backend, **encoding)


def finetuned(recipe: FinetuningRecipe, native: PreTrainedConfig, longest: int | None = None) -> Config:
    """Return the configuration of a fine-tuned model. It keeps its encoding and its RoPE parameters.
    ``max_position_embeddings`` becomes the length of the longest text (None: as many tokens as the recipe allows) where
    that is longer, which is what it addresses from then on (randpe draws positions for so many); an encoding that
    depends on the length, as ``yarn`` does, is trained as for that length."""
    length = max(longest or recipe.data.max_tokens, native.max_position_embeddings)
    changes = {"max_position_embeddings": length, "attention_backend": recipe.model.attention_backend}
    changes |= {} if native.model_type == TAPE else {"position_encoding": PLAIN}
    config = extendable.configure(native, **changes)
    return encodings.config_at(config, length) if config.model_type == TAPE else config


def planned_config(recipe: Recipe, base: str | None = None) -> Config:
    """Return the configuration of the model that a recipe will train; ``base`` (a name, a path or a ``config.json``)
    replaces the recipe's."""
    if isinstance(recipe, GeneratedRecipe | PretrainingRecipe) and base is None:
        if isinstance(recipe, GeneratedRecipe):
            config = recipe.checked_config()
        else:
            entries = _entries(recipe) or len(tokenizers.load(str(recipe.data.tokenizer)))
            config = recipe.model_config(NO_TOKENIZER, entries)
        raise_if_any(check_model(recipe.scale, config))
        return config

    native = native_config(recipe.model.model if base is None else base)
    raise_if_any(check_fit(recipe, native))
    if isinstance(recipe, ExtensionRecipe):
        return extended(recipe, native)
    return finetuned(recipe, native) if isinstance(recipe, FinetuningRecipe) else extendable.configure(native)


def known_config(recipe: Recipe) -> Config | None:
    """Return :func:`planned_config` where neither network, tokenizer nor unpacking is needed for it: for a published
    model, a folder, a new model of known vocabulary; else None. A dry run asks the hub for a configuration."""
    if isinstance(recipe, GeneratedRecipe):
        return planned_config(recipe)
    if isinstance(recipe, PretrainingRecipe):
        return planned_config(recipe) if _entries(recipe) else None
    name = recipe.model.model
    file = config_file.find(name, online=recipe.dry_run)
    return planned_config(recipe, None if file is None else str(file)) if file or shape.known(name) else None


def _entries(recipe: PretrainingRecipe) -> int:
    """Return rows of the embedding: the recipe's, or those of the published model whose tokenizer it takes; 0 if
    unknown."""
    tokenizer = str(recipe.data.tokenizer)
    published = shape.published(tokenizer).vocab_size if shape.known(tokenizer) else 0
    return recipe.model.vocab_size or published


def native_config(model: str) -> PreTrainedConfig:
    """Return the configuration of a base model: its own where it is here or can be fetched, else as published. Only a
    GGUF file, which holds both, has its weights read."""
    if shape.known(model) and not Path(model).exists():
        return shape.published(model)

    path = Path(model)
    if path.is_file() and path.name == config_file.CONFIG:
        return extendable.read(path.parent)
    if model.endswith(".gguf"):
        return extendable.read(model_folder.resolve(model))
    return extendable.read(model_folder.find_folder(model, with_weights=False))
