"""The model that a recipe trains, of any kind of recipe: what small files say of it, and what is fetched for a run."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Generic, Self, TypeVar

from transformers import PreTrainedTokenizerBase

from tape_ds import paths
from tape_ds.config.recipe import Recipe
from tape_ds.data import placeholders, sources
from tape_ds.data import tokenizer as tokenizers
from tape_ds.data.sources import weights
from tape_ds.errors import Problem, raise_if_any
from tape_ds.models import convert
from tape_ds.models.loading import extendable, model_folder, wrapper
from tape_ds.models.loading.extendable import Config
from tape_ds.targets.base import BaseModel

R_co = TypeVar("R_co", bound=Recipe, covariant=True)


@dataclass(frozen=True, kw_only=True)
class FetchedModel:
    """The parts of the trained model, on this machine."""

    base: BaseModel | None = None
    """With its weights; None of a new model."""
    config: Config
    """Configuration of the trained model, with what its tokenizer decides."""
    tokenizer: PreTrainedTokenizerBase
    identity: Mapping[str, str] = field(default_factory=dict)
    """Everything else that decides the run's numbers, besides recipe, data, tokenizer and weights."""


@dataclass(frozen=True)
class Target(ABC, Generic[R_co]):
    """The model that a recipe trains; :meth:`of` makes none unless the recipe fits its base."""

    recipe: R_co
    """Checked, with what the base decides."""
    base: BaseModel | None
    """The pretrained model that it starts from, without weights; None of a new model."""
    config: Config
    """Configuration of the trained model, as far as no tokenizer decides it; sizes are final."""

    CHANGES_ANGLES: ClassVar[bool] = False
    """Whether it may have other angles than its base, which engines have to compute."""

    @classmethod
    @abstractmethod
    def of(cls, recipe: Any, base: Any) -> Self:
        """Return the target of a recipe of this kind. Raises UserError: everything that the base cannot do."""

    @classmethod
    def is_known(cls, recipe: Any) -> bool:
        """Return whether its sizes follow from the recipe and the base, without a tokenizer."""
        return True

    @abstractmethod
    def fetch(self) -> FetchedModel:
        """Check the tokenizer, and only then download what is not on this machine: the slow part of a start.
        Raises UserError: the tokenizer does not fit, or the files do not hold this model."""

    def check_weights(self) -> None:
        """Raise UserError where the files of a base that is a folder here do not hold this model, by the names and
        shapes in their headers: what a run would find, for its dry run."""
        if self.base is None or not paths.of(self.base.name).is_dir():
            return
        # tensors of one that is converted first get other names
        is_wrapper = wrapper.find(self.base.name) is not None
        if not is_wrapper and not model_folder.is_converted(self.base.name):
            extendable.check_weights(self.base.name, self.config)

    def outline(self) -> dict[str, str]:
        """Return the recipe's part of the plan, with what its base says."""
        return self.recipe.outline()

    def fingerprints(self, *, held_out: bool = False) -> dict[str, str]:
        """Return the fingerprint of each source of training data, with ``held_out`` of evaluation data too, by spec."""
        data = self.recipe.data
        specs: list[str] = []
        if self.recipe.trains or held_out:
            specs += weights.specs_of(data.train_data)
        if held_out:
            specs += data.eval_data
        return {spec: sources.parse(spec).fingerprint() for spec in specs}


@dataclass(frozen=True)
class PretrainedTarget(Target[R_co], Generic[R_co]):
    """A model that starts from a pretrained one."""

    base: BaseModel

    @classmethod
    def of(cls, recipe: Any, base: BaseModel) -> Self:
        raise_if_any(list(cls.problems(recipe, base)))
        recipe = cls.completed(recipe, base)
        return cls(recipe, base, cls.configure(recipe, base))

    @classmethod
    @abstractmethod
    def problems(cls, recipe: Any, base: BaseModel) -> Iterable[Problem]:
        """Return what the base of a recipe cannot do; for a run, its dry run and a plan alike."""

    @classmethod
    def completed(cls, recipe: Any, base: BaseModel) -> Any:
        """Return the recipe with what the base decides."""
        return recipe

    @classmethod
    @abstractmethod
    def configure(
        cls, recipe: Any, base: BaseModel, tokenizer: PreTrainedTokenizerBase | None = None
    ) -> Config:
        """Return the configuration of the trained model; without a tokenizer, as far as none decides it."""

    def check_tokenizer(self, tokenizer: PreTrainedTokenizerBase) -> list[Problem]:
        """Return why this kind of run cannot use a tokenizer."""
        return []

    def identity(self, tokenizer: PreTrainedTokenizerBase) -> Mapping[str, str]:
        """Return :attr:`FetchedModel.identity`."""
        return {}

    def fetch(self) -> FetchedModel:
        base = self.base.unpacked()
        tokenizer = tokenizers.load_tokenizer(base.folder, "model")
        placeholders.mark(tokenizer, base.config)
        raise_if_any(
            [*convert.check_rows(base.config, tokenizer), *self.check_tokenizer(tokenizer)]
        )
        config = self.configure(self.recipe, base, tokenizer)
        base = base.fetched()
        extendable.check_weights(base.folder, config)
        return FetchedModel(
            base=base, config=config, tokenizer=tokenizer, identity=self.identity(tokenizer)
        )
