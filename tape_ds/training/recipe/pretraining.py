"""The recipe of ``pretrain_c4.py``: a model of any size and encoding, trained from nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from tape_ds.training.recipe import (
    address_checks,
    common,
    loading,
    new_model,
    pretraining_checks,
    scale,
)
from tape_ds.training.recipe.checks import Checks
from tape_ds.training.recipe.recipe import DERIVED, Recipe

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from tape_ds.model.configuration import TapeConfig

EVAL_MULTIPLES = (1, 2, 4, 8)
"""Default lengths that are scored, in windows."""


@dataclass(frozen=True)
class ModelSection(new_model.NewModel):
    """The model to be built."""

    vocab_size: int | None = None
    """Entries of the tokenizer that is trained. A tokenizer that is given has its own number: leave it out."""


@dataclass(frozen=True)
class DataSection:
    """What is trained on and scored, and with which tokenizer."""

    train_data: list[str]
    """Addresses of text, see ``tape_ds.data.sources``."""
    window: int
    """Tokens per training row, and the length the model is made for (max_position_embeddings)."""
    eval_data: list[str] = field(default_factory=list)
    """Addresses of held-out text for perplexity by length; empty: nothing is scored."""
    tokenizer: str | None = None
    """A folder, a hub id or ``smollm2``; null: a sentencepiece model of vocab_size entries, trained on train_data."""
    streaming: bool = False
    """Read, tokenise and pack while training goes on: for what is too large to be tokenised ahead."""
    stream_lanes: int = 32
    """Shards of the data that are read side by side when streaming; rows take turns between them. Part of the data
    order, whatever the number of processes."""
    data_cache: str = "~/.cache/tape_ds/data"
    """Folder of tokenised data and trained tokenizers, shared by runs."""


@dataclass(frozen=True)
class EvaluationSection:
    """Perplexity by length, after training."""

    eval_lengths: list[int] = DERIVED
    """Lengths in tokens; default 1, 2, 4 and 8 windows. Every length is scored on the same documents."""
    eval_tokens: int = 2**20
    """Held-out tokens that are read, at most; each length reads them all."""


@dataclass(frozen=True, kw_only=True)
class PretrainingRecipe(Recipe):
    """A recipe of this launcher."""

    LAUNCHER: ClassVar[str] = "pretrain_c4"
    DEFAULT: ClassVar[str] = "tiny"
    SECTIONS: ClassVar[Mapping[str, type]] = {
        "model": ModelSection,
        "data": DataSection,
        "evaluation": EvaluationSection,
        **common.SECTIONS,
    }
    REQUIRED: ClassVar[tuple[str, ...]] = (
        *new_model.REQUIRED,
        *("train_data", "window"),
    )
    STAND_INS: ClassVar[Mapping[str, Any]] = {
        **new_model.STAND_INS,
        "train_data": ["stdlib"],
        "window": 64,
    }
    FORMER: ClassVar[Mapping[str, str]] = {
        "config_name": "the sizes and position_encoding themselves, as fields of the recipe",
        "dataset_cache_dir": "train_data",
        "method": "nothing: pretraining trains every parameter",
        "model_max_length": "window",
        "model_max_position_embeddings": "window",
        "model_name_or_path": "nothing: the model is built new from its sizes",
        "rpe_type": "position_encoding",
        "tokenizer_name": "tokenizer",
        "train_scale": "window",
    }
    CHECKS: ClassVar[tuple[Checks, ...]] = (
        *(new_model.CHECKS, pretraining_checks.CHECKS, address_checks.CHECKS, scale.HEAD_CHECKS),
        *common.CHECKS,
    )

    model: ModelSection
    data: DataSection
    evaluation: EvaluationSection

    @classmethod
    def derived(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
        """A key/value head for each query head, heads that share the width, the encoding's angles, 1 to 8 windows to
        score."""
        lengths = [multiple * flat["window"] for multiple in EVAL_MULTIPLES]
        return new_model.derived(flat, flat["window"]) | {"eval_lengths": lengths}

    @property
    def window(self) -> int:
        """Tokens per training row."""
        return self.data.window

    def model_config(self, tokenizer: "PreTrainedTokenizerBase", vocab_size: int | None = None) -> "TapeConfig":
        """The configuration of the model for this tokenizer, see :func:`.new_model.configuration`.

        No padding token is set: rows are not padded.

        Args:
            tokenizer: gives the special tokens, and what the encoding takes from it.
            vocab_size: rows of the embedding; default the tokenizer's entries.

        Raises:
            UserError: sizes or options that no model can have.
        """
        entries = vocab_size or len(tokenizer)
        return new_model.configuration(self.model, self.data.window, tokenizer, entries, self.model.position_options)

    def checked_config(self) -> "TapeConfig":
        """The configuration with a stand-in for the run's tokenizer, which no check loads.

        Raises:
            UserError: as :meth:`model_config`.
        """
        return self.model_config(_some_tokenizer(), max(0, self.model.vocab_size or 0) or 2**31)

    def outline(self) -> dict[str, str]:
        """Model, encoding, tokenizer and data."""
        model, data, lengths = self.model, self.data, self.evaluation.eval_lengths
        scored = f", at lengths {', '.join(f'{length:,}' for length in lengths)}"
        trained = f"sentencepiece, {model.vocab_size or 0:,} entries, trained on train_data"
        rows = f"streamed in {data.stream_lanes} lanes" if data.streaming else "packed documents"
        return {
            **model.outline(),
            "tokenizer": data.tokenizer or trained,
            "data": f"{', '.join(data.train_data)}: rows of {data.window:,} tokens ({rows})",
            "held out": f"{', '.join(data.eval_data)}{scored}" if data.eval_data else "nothing",
        }


def _some_tokenizer() -> "PreTrainedTokenizerBase":
    """Stands in for the run's tokenizer, where an encoding takes something from it: a full stop, and a digit."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({".": 0, "0": 1}, unk_token=".")))


def load(argv: list[str], world_size: int | None = None) -> PretrainingRecipe:
    """Read and check the recipe that a command line asks for, see :func:`tape_ds.training.recipe.loading.load`.

    Raises:
        UserError: with everything that is wrong.
    """
    return loading.load(argv, PretrainingRecipe, world_size)
