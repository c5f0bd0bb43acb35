"""The target of a recipe that extends a pretrained model."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from transformers import PreTrainedConfig, PreTrainedTokenizerBase

from tape_ds import encodings
from tape_ds.config.extension import ExtensionRecipe, check_against_model, of_method
from tape_ds.config.method import check_targets, targets
from tape_ds.config.pretraining import NO_TOKENIZER
from tape_ds.config.sections import check_trained, learns
from tape_ds.encodings import trained_rope
from tape_ds.errors import Problem, UserError
from tape_ds.models import decoder_configuration, hybrids
from tape_ds.models.files import config_file
from tape_ds.models.loading import extendable
from tape_ds.models.loading.extendable import Config
from tape_ds.targets.base import PLAIN, BaseModel
from tape_ds.targets.fit import check_base, lacking
from tape_ds.targets.target import PretrainedTarget


@dataclass(frozen=True)
class ExtensionTarget(PretrainedTarget[ExtensionRecipe]):
    """A pretrained model with a longer context."""

    CHANGES_ANGLES: ClassVar[bool] = True

    @classmethod
    def problems(cls, recipe: ExtensionRecipe, base: BaseModel) -> Iterator[Problem]:
        yield from check_base(recipe, base)
        if base.is_foreign:
            yield from _of_foreign(recipe, base)
        if "lora_targets" in recipe.given:
            yield from check_targets(recipe.method, base.family, base.linear_maps)
        yield from check_against_model(recipe, base.config)
        learned = learns(recipe.model.position_encoding, position_options(recipe, base.config))
        yield from check_trained(recipe.optimization, recipe.trains_positions and learned)

    @classmethod
    def completed(cls, recipe: ExtensionRecipe, base: BaseModel) -> ExtensionRecipe:
        """Return the recipe with the adapters' targets by the names of the base's family."""
        names = targets(recipe.method, "lora_targets" in recipe.given, base.linear_maps)
        if not names:
            return recipe
        method = recipe.method.model_copy(update={"lora_targets": names})
        return replace(recipe, method=method, given=recipe.given | {"lora_targets"})

    @classmethod
    def configure(
        cls,
        recipe: ExtensionRecipe,
        base: BaseModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
    ) -> Config:
        model = recipe.model
        if base.is_foreign and recipe.method.chosen.drops_rope:
            native = hybrids.without_rope(base.config)
            assert native is not None, "checked with the recipe"
            return extendable.configure(
                native,
                attention_backend=model.attention_backend,
                max_position_embeddings=model.target_length,
            )
        given = position_options(recipe, base.config)
        words = NO_TOKENIZER if tokenizer is None else tokenizer
        options = encodings.options_for(model.position_encoding, given, words)
        try:
            return extendable.configure(
                base.config,
                position_encoding=model.position_encoding,
                position_options=options or None,
                state_dtype=model.state_dtype,
                attention_backend=model.attention_backend,
                max_position_embeddings=model.target_length,
                rope_parameters=trained_rope.extended(
                    base.rope, recipe.rope_parameters, model.target_length
                ),
            )
        except UserError as error:
            raise UserError(of_method(recipe, problem) for problem in error.problems) from error

    def outline(self) -> dict[str, str]:
        recipe = self.recipe
        native = self.base.rope.native_length
        target = recipe.model.target_length
        scores = recipe.evaluation
        lines = super().outline()
        lengths = f"{native:,} -> {target:,} positions, x{target / native:g}"
        note = config_file.family_note(self.base.config.to_dict())
        lines["model"] = f"{recipe.model.model}, {lengths}{note}"
        start = trained_rope.described_change(self.base.rope, recipe.rope_parameters, target)
        lines["encoding"] = f"{recipe.chosen_encoding} from {start}"
        last_start = (scores.eval_length - 1) // scores.eval_span * scores.eval_span
        if recipe.data.eval_data and last_start < native < scores.eval_length:
            lines["held out"] += f"; NO SPAN begins past {native:,}: give a shorter eval_span"
        return lines


def _of_foreign(recipe: ExtensionRecipe, base: BaseModel) -> Iterator[Problem]:
    model = recipe.model
    method = recipe.method
    if model.position_encoding != PLAIN:
        remedy = decoder_configuration.PLAIN
        if not hybrids.rotates(base.config):
            remedy = "method: lora, full, norms"
        if "position_encoding" in recipe.given:
            own = f"position_encoding: {PLAIN}"
            remedy = own if method.chosen.encoding == PLAIN else f"method: lora and {own}"
        wrong = decoder_configuration.only_rope(base.config)
        if method.chosen.drops_rope:
            wrong = hybrids.why_not_dropped(base.config)
        if wrong:
            yield Problem("position_encoding", model.position_encoding, wrong, remedy)
    if recipe.data.pose.chunks > 1 and not hybrids.rotates(base.config):
        wrong = f"the attention of this {base.family} has no positions, and would see no skip"
        remedy = "give pose_chunks: 1 (and a longer window)"
        yield Problem("pose_chunks", recipe.data.pose.chunks, wrong, remedy)
    asked = {
        "position_options": model.position_options,
        "state_dtype": model.state_dtype,
        "train_router": method.train_router and not base.shape.has_router,
        "method": method.chosen.grouped and method.method,
        "distill": method.distill and decoder_configuration.changes_logits(base.config),
    }
    yield from lacking(base, asked)


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
