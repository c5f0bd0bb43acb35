"""The recipe of ``finetune_scrolls.py``: a whole model learns to answer the questions of one data set."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

from pydantic import Field

from tape_ds.data.scrolls import datasets, examples
from tape_ds.data.scrolls.prompts import reserved
from tape_ds.errors import Problem
from tape_ds.fields import DERIVED, Section, rule
from tape_ds.recipe import loading, pretrained
from tape_ds.recipe.recipe import Recipe

TRAIN, HELD_OUT = "train", "validation"
"""The splits that are read."""
SMALLEST_PROMPT = 16
"""Tokens of a text below which nothing could be learnt of it; a summary's request alone has about seven."""


class FinetuningModel(Section):
    """The model that is fine-tuned; it keeps its encoding and its RoPE parameters."""

    model: str
    """A whole model: the folder ``trained`` of a run that trained every parameter, any folder or hub id of a family
    that ``extend_llama.py`` takes, a ``.gguf`` file, or ``smollm2``."""
    attention_backend: str = "auto"
    """``auto``, or the name of a backend (docs/kernels.md)."""
    liger: Literal["auto", "on", "off"] = "auto"
    """Liger's kernels for norms, feed-forward and the loss of long batches; auto: on CUDA where it is installed."""


class FinetuningData(Section):
    """What is asked and answered."""

    dataset: str
    """A data set of SCROLLS, or ``stdlib`` (questions about Python's own sources, made on the spot)."""
    data_dir: str | None = None
    """A folder with ``NAME/SPLIT.jsonl`` or ``NAME.zip``, or such a zip file; null: the hub's ``tau/scrolls``."""
    max_tokens: int = 8192
    """Tokens of a row, prompt and answer together. What is longer is cut, and what was cut is counted."""
    answer_tokens: int = Field(DERIVED, ge=1)
    """Tokens of an answer without EOS; default 200, 1,000 for a summary."""
    reference_format: bool = False
    """Rows as the published code has them, but for its padding: another BOS before each answer, its first target."""
    eval_examples: int = Field(200, ge=0)
    """Questions of the split ``validation``, spread over it, whose answers are scored before and after; 0: none."""
    data_cache: str | None = None
    """Folder of tokenised rows, shared by runs; null: ``tape_ds/data`` in XDG_CACHE_HOME, else in HF_HOME, else in
    ~/.cache."""


@dataclass(frozen=True, kw_only=True)
class FinetuningRecipe(Recipe):
    """A recipe of this launcher."""

    LAUNCHER: ClassVar[str] = "finetune_scrolls"
    DEFAULT: ClassVar[str] = "scrolls_tiny"
    STAND_INS: ClassVar[Mapping[str, Any]] = {"model": "smollm2", "dataset": datasets.MADE.name}
    FORMER: ClassVar[Mapping[str, str]] = {
        "block_size": "max_tokens",
        "config_name": "nothing: the model's folder has its configuration",
        "method": "nothing: fine-tuning trains every parameter",
        "model_max_length": "max_tokens",
        "model_name_or_path": "model",
        "position_encoding": "nothing: the model keeps its own",
        "preprocessing_num_workers": "nothing: rows are tokenised once and kept",
        "tokenizer": "model (the tokenizer comes with it)",
        "tokenizer_name": "model (the tokenizer comes with it)",
        "window": "max_tokens",
    }
    FULL_ROWS: ClassVar[bool] = False

    model: FinetuningModel
    data: FinetuningData

    @classmethod
    def derived(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
        """An answer is as long as its data set's."""
        known = datasets.DATASETS.get(flat["dataset"], datasets.MADE)
        return {"answer_tokens": known.answer_tokens}

    @property
    def window(self) -> int:
        """Tokens per training row, at most."""
        return self.data.max_tokens

    @property
    def trains_positions(self) -> bool:
        """All that the model has; the launcher looks whether it has any."""
        return True

    def outline(self) -> dict[str, str]:
        """Model, data and what is scored."""
        data = self.data
        begun = ", in the published code's format" if data.reference_format else ""
        origin = data.data_dir or data_origin(data.dataset)
        asked = f"answers to {data.eval_examples:,} questions of {HELD_OUT}"
        return {
            "model": f"{self.model.model}, with its own encoding; every parameter is trained",
            "data": f"{data.dataset} of {origin}: rows of up to {data.max_tokens:,} tokens, answers of up to "
            f"{data.answer_tokens:,} and EOS{begun}",
            "held out": asked if data.eval_examples else "nothing",
        }

    @rule("model")
    def _model_is_there(self) -> Iterator[Problem]:
        yield from pretrained.check(self.model.model, online=self.dry_run)

    @rule("dataset", "data_dir", "eval_examples")
    def _data(self) -> Iterator[Problem]:
        """What the hub holds is known once it has been downloaded."""
        splits = (TRAIN, HELD_OUT) if self.data.eval_examples else (TRAIN,)
        yield from examples.check(self.data.dataset, splits, self.data.data_dir)

    @rule("max_tokens", "answer_tokens")
    def _sizes(self) -> Iterator[Problem]:
        data = self.data
        if data.max_tokens < (least := reserved(data.answer_tokens) + SMALLEST_PROMPT):
            wrong = f"answer_tokens = {data.answer_tokens} and EOS leave fewer than {SMALLEST_PROMPT} for the text"
            yield Problem("max_tokens", data.max_tokens, wrong, f"give {least} or more, or fewer answer_tokens")


def data_origin(dataset: str) -> str:
    """Return where a data set comes from if no ``data_dir`` is given."""
    return "Python's own sources" if dataset == datasets.MADE.name else f"the hub's {datasets.HUB_REPOSITORY}"


load = partial(loading.load, kind=FinetuningRecipe)
