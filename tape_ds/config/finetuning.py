"""Recipes of ``finetune.py``: a whole model learns to answer, in conversations or to the questions of a data set.

The latter, of SCROLLS, are those of ``finetune_scrolls.py``, which takes nothing else.
"""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from tape_ds import paths
from tape_ds.config import loading
from tape_ds.config.recipe import Recipe
from tape_ds.data.bad_rows import Skip
from tape_ds.data.chat import conversations
from tape_ds.data.chat.conversations import TooLong
from tape_ds.data.scrolls import examples
from tape_ds.data.scrolls.prompts import reserved
from tape_ds.errors import Problem
from tape_ds.fields import DERIVED, Section, rule
from tape_ds.models.loading import config_file

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


class ScrollsData(Section):
    """What is asked and answered."""

    dataset: str
    """A data set of SCROLLS, or ``stdlib`` (questions about Python's own sources, made on the spot)."""
    data_dir: str | None = None
    """A folder with ``NAME/SPLIT.jsonl`` or ``NAME.zip``, or such a zip file; null: the hub's ``tau/scrolls``."""
    max_tokens: int = 8192
    """Tokens of a sequence, prompt and answer together. What is longer is cut, and what was cut is counted."""
    answer_tokens: int = Field(DERIVED, ge=1)
    """Tokens of an answer without EOS; default 200, 1,000 for a summary."""
    reference_format: bool = False
    """Sequences as the published code has them, but for its padding: another BOS before each answer, its first
    target."""
    eval_examples: int = Field(200, ge=0)
    """Questions of the split ``validation``, spread over it, whose answers are scored before and after; 0: none."""
    skip: Skip = Skip()
    data_cache: str | None = None
    """Folder of tokenised sequences, shared by runs; null: ``tape_ds/data`` in XDG_CACHE_HOME, else in HF_HOME, else in
    ~/.cache."""

    @property
    def named(self) -> str:
        """The data set, and where it comes from."""
        made = self.dataset == examples.MADE.name
        origin = "Python's own sources" if made else f"the hub's {examples.HUB_REPOSITORY}"
        return f"{self.dataset} of {self.data_dir or origin}"


class ChatData(Section):
    """The conversations that are learnt."""

    train_data: list[str]
    """Conversations, as specs: ``jsonl:FILE``, ``parquet:FILE``, ``hub:NAME``, whose rows have a column ``messages``
    (another: ``#COLUMN``) with a list of {role, content}; ``stdlib``: made on the spot."""
    eval_data: list[str] = []
    """Conversations whose answers are scored before and after, as specs."""
    eval_share: float = Field(0.0, ge=0, lt=1)
    """Share of ``train_data`` that is held out and scored instead, evenly spread over it."""
    eval_examples: int = Field(200, ge=0)
    """Held-out conversations that are scored at most, spread over all; 0: none."""
    max_tokens: int = Field(8192, ge=2)
    """Tokens of a sequence; as many conversations share one as fit it whole."""
    too_long: TooLong = "cut"
    """A conversation of more than ``max_tokens`` loses its end (cut) or is left out (leave_out); either is counted."""
    chat_template: str | None = None
    """A jinja file that renders conversations; null: the model's own template. It is saved with the model."""
    skip: Skip = Skip()
    data_cache: str | None = None
    """Folder of rendered conversations, shared by runs; null: ``tape_ds/data`` in XDG_CACHE_HOME, else in HF_HOME, else
    in ~/.cache."""


@dataclass(frozen=True, kw_only=True)
class FinetuningRecipe(Recipe):
    """What both kinds of recipes have."""

    FORMER: ClassVar[Mapping[str, str]] = {
        "block_size": "max_tokens",
        "config_name": "nothing: the model's folder has its configuration",
        "method": "nothing: fine-tuning trains every parameter",
        "model_max_length": "max_tokens",
        "model_name_or_path": "model",
        "position_encoding": "nothing: the model keeps its own",
        "preprocessing_num_workers": "nothing: sequences are tokenised once and kept",
        "tokenizer": "model (the tokenizer comes with it)",
        "tokenizer_name": "model (the tokenizer comes with it)",
        "window": "max_tokens",
    }
    FULL_ROWS: ClassVar[bool] = False

    model: FinetuningModel

    @property
    def window(self) -> int:
        """Tokens per training sequence, at most."""
        return int(self.data.max_tokens)

    @property
    def trains_positions(self) -> bool:
        """All that the model has; the launcher looks whether it has any."""
        return True

    @rule("model")
    def _model_is_there(self) -> Iterator[Problem]:
        yield from config_file.check(self.model.model, online=self.dry_run)


@dataclass(frozen=True, kw_only=True)
class ScrollsRecipe(FinetuningRecipe):
    """A recipe of ``finetune_scrolls.py``: the questions of one data set."""

    LAUNCHER: ClassVar[str] = "finetune_scrolls"
    DEFAULT: ClassVar[str] = "scrolls_tiny"
    STAND_INS: ClassVar[Mapping[str, Any]] = {"model": "smollm2", "dataset": examples.MADE.name}

    model: FinetuningModel
    data: ScrollsData

    @classmethod
    def derived(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
        """An answer is as long as its data set's."""
        known = examples.DATASETS.get(flat["dataset"], examples.MADE)
        return {"answer_tokens": known.answer_tokens}

    def outline(self) -> dict[str, str]:
        """Model, data and what is scored."""
        data = self.data
        begun = ", in the published code's format" if data.reference_format else ""
        asked = f"answers to {data.eval_examples:,} questions of {HELD_OUT}"
        return {
            "model": f"{self.model.model}, with its own encoding; every parameter is trained",
            "data": f"{data.named}: sequences of up to {data.max_tokens:,} tokens, answers of up to "
            f"{data.answer_tokens:,} and EOS{begun}",
            "held out": asked if data.eval_examples else "nothing",
        }

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


@dataclass(frozen=True, kw_only=True)
class ChatRecipe(FinetuningRecipe):
    """A recipe of ``finetune.py``: conversations."""

    LAUNCHER: ClassVar[str] = "finetune"
    DEFAULT: ClassVar[str] = "chat_tiny"
    STAND_INS: ClassVar[Mapping[str, Any]] = {"model": "smollm2", "train_data": ["stdlib"]}
    FORMER: ClassVar[Mapping[str, str]] = {
        **FinetuningRecipe.FORMER,
        "dataset": "a recipe of SCROLLS, as scrolls/qasper (or launcher: finetune_scrolls in your own)",
        "excess_length_strategy": "too_long (cut, leave_out)",
        "sequence_len": "max_tokens",
        "val_set_size": "eval_share",
    }

    model: FinetuningModel
    data: ChatData

    def outline(self) -> dict[str, str]:
        """Model, data and what is scored."""
        data = self.data
        held_out = ", ".join(data.eval_data) or (f"{data.eval_share:.1%} of them" if data.eval_share else "")
        long = "lose their end" if data.too_long == "cut" else "are left out"
        return {
            "model": f"{self.model.model}, with its own encoding; every parameter is trained",
            "data": f"conversations of {', '.join(data.train_data)}, packed into sequences of up to "
            f"{data.max_tokens:,} tokens; longer ones {long}",
            "held out": f"answers of {held_out}, {data.eval_examples:,} conversations at most"
            if held_out
            else "nothing",
        }

    @rule("train_data", "eval_data", "skip_bad_rows")
    def _conversations(self) -> Iterator[Problem]:
        """What the hub holds is known once it is read."""
        yield from conversations.check(self.data.train_data, self.data.eval_data, self.data.skip.bad_rows)

    @rule("eval_data", "eval_share")
    def _held_out_once(self) -> Iterator[Problem]:
        if self.data.eval_data and self.data.eval_share:
            wrong = "eval_data names what is held out"
            yield Problem("eval_share", self.data.eval_share, wrong, "keep one of the two")

    @rule("model", "chat_template")
    def _template(self) -> Iterator[Problem]:
        """Of a folder its files are looked at; all other models say it once their tokenizer is read."""
        given, folder = self.data.chat_template, paths.of(self.model.model)
        if given is not None:
            try:
                paths.of(given).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                wrong = f"cannot be read ({error})"
                yield Problem("chat_template", given, wrong, "give a jinja file, as a model's chat_template.jinja")
        elif self.model.model != config_file.SMOLLM2 and os.path.isdir(folder) and not _has_template(folder):
            yield conversations.without_template(self.model.model)


def _has_template(folder: Path) -> bool:
    """Return whether a model's folder has a chat template in one of the places where transformers looks; of a file that
    is damaged, which the tokenizer's reader says, as if it had."""
    if (folder / "chat_template.jinja").is_file() or (folder / "chat_template.json").is_file():
        return True
    try:
        return bool(json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8")).get("chat_template"))
    except FileNotFoundError:
        return False
    except (OSError, ValueError, AttributeError):
        return True


load = partial(loading.load, kind=ScrollsRecipe)
load_chat = partial(loading.load, kind=ChatRecipe)
