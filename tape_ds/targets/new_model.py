"""The targets of recipes that train a new model: on text, or on a generated task."""

from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from tape_ds import paths
from tape_ds.config.generated import GeneratedRecipe
from tape_ds.config.new_model import NewModelRecipe
from tape_ds.config.pretraining import NO_TOKENIZER, PretrainingRecipe
from tape_ds.config.scale import check_model
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.generated.arithmetic import ArithmeticTask
from tape_ds.data.generated.task import tokenizer_of
from tape_ds.data.sources import generated, weights
from tape_ds.errors import Problem, UserError, raise_if_any
from tape_ds.models.configuration import TapeConfig
from tape_ds.models.loading import extendable
from tape_ds.targets import published
from tape_ds.targets.base import BaseModel
from tape_ds.targets.fit import check_base
from tape_ds.targets.target import FetchedModel, Target

N_co = TypeVar("N_co", bound=NewModelRecipe, covariant=True)


@dataclass(frozen=True)
class NewTarget(Target[N_co], Generic[N_co]):
    """A model that is built. Only a plan may give one a ``base``, whose sizes take the place of the recipe's."""

    @classmethod
    def of(cls, recipe: Any, base: BaseModel | None) -> Self:
        if base is not None:
            raise_if_any(list(check_base(recipe, base)))
            return cls(recipe, base, extendable.configure(base.config))
        config = TapeConfig(**cls.fields(recipe))
        raise_if_any(check_model(recipe.scale, config))
        return cls(recipe, None, config)

    @classmethod
    def fields(cls, recipe: Any) -> dict[str, Any]:
        """Return the fields of its configuration."""
        configured: dict[str, Any] = recipe.configuration()
        return configured


class PretrainingTarget(NewTarget[PretrainingRecipe]):
    """It is trained on text."""

    @classmethod
    def is_known(cls, recipe: PretrainingRecipe) -> bool:
        return known_entries(recipe) > 0

    @classmethod
    def fields(cls, recipe: PretrainingRecipe) -> dict[str, Any]:
        entries = known_entries(recipe) or len(
            tokenizers.load_tokenizer(str(recipe.data.tokenizer))
        )
        return recipe.configuration(NO_TOKENIZER, entries)

    def fetch(self) -> FetchedModel:
        """Load its tokenizer, or train one on its data."""
        data = self.recipe.data
        size = self.recipe.model.vocab_size
        if data.tokenizer is None:
            assert size is not None, "checked with the recipe"
            specs = generated.written_text(weights.specs_of(data.train_data))
            tokenizer = tokenizers.cached(
                specs, size, paths.data_cache(data.data_cache), data.skip.bad_rows
            )
        else:
            tokenizer = tokenizers.load_tokenizer(data.tokenizer)
            if size is not None and size != len(tokenizer):
                wrong = f"the tokenizer {data.tokenizer} has {len(tokenizer)} entries"
                raise UserError(Problem("vocab_size", size, wrong, "leave it out"))
        config = TapeConfig(**self.recipe.configuration(tokenizer))
        # a tokenizer may have other entries than were planned for
        raise_if_any(check_model(self.recipe.scale, config))
        return FetchedModel(config=config, tokenizer=tokenizer)


class GeneratedTarget(NewTarget[GeneratedRecipe]):
    """It is trained on sequences that are drawn as needed."""

    def fetch(self) -> FetchedModel:
        return FetchedModel(config=self.config, tokenizer=tokenizer_of(self.recipe.lengths.task))

    def fingerprints(self, *, held_out: bool = False) -> dict[str, str]:
        task = self.recipe.lengths.task
        kind = "arithmetic" if isinstance(task, ArithmeticTask) else "addressing"
        return {f"{kind}:{task.name}": task.fingerprint(self.recipe.lengths.trained)}


def known_entries(recipe: PretrainingRecipe) -> int:
    """Return rows of the embedding: the recipe's, or those of the published model whose tokenizer it takes; 0 if
    unknown."""
    tokenizer = str(recipe.data.tokenizer)
    entries = 0
    if published.known(tokenizer):
        entries = published.configuration(tokenizer).vocab_size
    return recipe.model.vocab_size or entries
