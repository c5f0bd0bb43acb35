"""Recipes of ``finetune.py``: train a whole model on conversations, or on the questions of a SCROLLS data set, which
are also the recipes of ``finetune_scrolls.py``."""

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from pydantic import Field

from tape_ds import paths
from tape_ds.config.recipe import Recipe
from tape_ds.config.ruler_scores import RulerScores
from tape_ds.config.sections import Backend, DataCache, Liger
from tape_ds.data.bad_rows import Skip
from tape_ds.data.chat import conversations
from tape_ds.data.chat.conversations import TooLong
from tape_ds.data.scrolls import examples
from tape_ds.data.scrolls.prompts import reserved
from tape_ds.data.sources import generated
from tape_ds.distributed.launch_command import SCROLLS, TRAINING
from tape_ds.errors import Problem
from tape_ds.fields import COMPARED, DERIVED, FREE, Section, Tokens, rule
from tape_ds.models.files import config_file

TRAIN = "train"
HELD_OUT = "validation"
SMALLEST_PROMPT = 16
"""Least tokens of a text to learn from; a summary's request alone has about seven."""


class FinetuningModel(Section):
    """The model that is fine-tuned; it keeps its encoding and its RoPE parameters."""

    model: Annotated[str, FREE, COMPARED]
    """A whole model: the folder ``trained`` of a run that trained every parameter, any folder or hub id of a family
    that ``extend_llama.py`` takes, a ``.gguf`` file, or ``smollm2``."""
    attention_backend: Backend = "auto"
    liger: Liger = "auto"


class ScrollsData(Section):
    """The questions of a data set."""

    dataset: str
    """A data set of SCROLLS, or ``stdlib`` (generated questions about Python's own sources)."""
    data_dir: Annotated[str | None, FREE] = None
    """A folder with ``NAME/SPLIT.jsonl`` or ``NAME.zip``, or such a zip file; null: the hub's ``tau/scrolls``."""
    max_tokens: Tokens = 8192
    """Tokens of a sequence, prompt and answer together; longer ones are cut and counted."""
    answer_tokens: Tokens = Field(DERIVED, ge=1)
    """Tokens of an answer without EOS; default 200, 1,000 for a summary."""
    reference_format: bool = False
    """Sequences as in the published code, except its padding: another BOS before each answer, its first target."""
    eval_examples: Annotated[int, FREE] = Field(200, ge=0)
    """Questions of the split ``validation``, spread over it, whose answers are scored before and after; 0: none."""
    skip: Skip = Skip()
    data_cache: DataCache = None

    @property
    def named(self) -> str:
        made = self.dataset == examples.MADE.name
        if made:
            origin = "Python's own sources"
        else:
            origin = f"the hub's {examples.HUB_REPOSITORY}"
        return f"{self.dataset} of {self.data_dir or origin}"


class ChatData(Section):
    """The conversations to learn from."""

    train_data: Annotated[list[str], FREE, COMPARED]
    """Conversations, as specs: ``jsonl:FILE``, ``parquet:FILE``, ``hub:NAME``, whose rows have a column ``messages``
    (another: ``#COLUMN``) with a list of {role, content}; or ``stdlib`` and ``generated:retrieval``, which make
    some."""
    eval_data: Annotated[list[str], FREE, COMPARED] = []
    """Conversations whose answers are scored before and after, as specs."""
    eval_share: float = Field(0.0, ge=0, lt=1)
    """Share of ``train_data`` that is held out and scored, evenly spread over it."""
    eval_examples: Annotated[int, FREE] = Field(200, ge=0)
    """Held-out conversations that are scored at most, spread over all; 0: none."""
    max_tokens: Tokens = Field(8192, ge=2)
    """Tokens of a sequence; as many conversations share one as fit it recipe."""
    too_long: TooLong = "cut"
    """A conversation of more than ``max_tokens`` loses its end (cut) or is left out (leave_out); either is counted."""
    chat_template: Annotated[str | None, FREE] = None
    """A jinja file that renders conversations, saved with the model; null: the model's own template."""
    skip: Skip = Skip()
    data_cache: DataCache = None


@dataclass(frozen=True, kw_only=True)
class FinetuningRecipe(Recipe):
    """The common part of both kinds."""

    FULL_ROWS: ClassVar[bool] = False
    LONG_DATA: ClassVar[str]
    """What a person can do to have longer sequences."""

    model: FinetuningModel
    ruler: RulerScores

    @property
    def window(self) -> int:
        return int(self.data.max_tokens)

    def note_of_length(self, longest: int, length: int) -> str | None:
        """Return what a person should know before a model of ``length`` positions learns from texts of ``longest``
        tokens at most; None where they are half as long or longer."""
        if 2 * longest >= length:
            return None
        note = f"no text is longer than {longest:,} tokens, and the model has {length:,} positions: what it finds "
        note += f"beyond the texts may be lost. {self.LONG_DATA}"
        if not self.ruler.ruler_lengths:
            note += f"; ruler_lengths: [{length}] measures it before and after"
        return note

    @property
    def trains_positions(self) -> bool:
        return True  # a run checks whether the model has any


@dataclass(frozen=True, kw_only=True)
class ScrollsRecipe(FinetuningRecipe):
    """A recipe of ``finetune_scrolls.py``."""

    LAUNCHER: ClassVar[str] = SCROLLS
    DEFAULT: ClassVar[str] = "scrolls_tiny"
    STAND_INS: ClassVar[Mapping[str, Any]] = {"model": "smollm2", "dataset": examples.MADE.name}
    LONG_DATA: ClassVar[str] = "Raise max_tokens if the texts are longer"

    model: FinetuningModel
    data: ScrollsData

    def derived(self) -> dict[str, Any]:
        known = examples.DATASETS.get(self.data.dataset, examples.MADE)
        return {"answer_tokens": known.answer_tokens}

    def outline(self) -> dict[str, str]:
        data = self.data
        begun = ""
        if data.reference_format:
            begun = ", in the published code's format"
        asked = f"answers to {data.eval_examples:,} questions of {HELD_OUT}"
        return {
            "model": f"{self.model.model}, with its own encoding; every parameter is trained",
            "data": f"{data.named}: sequences of up to {data.max_tokens:,} tokens, answers of up to "
            f"{data.answer_tokens:,} and EOS{begun}",
            "held out": asked if data.eval_examples else "nothing",
            "RULER": self.ruler.outline(),
        }

    @rule("dataset", "data_dir", "eval_examples")
    def _data(self) -> Iterator[Problem]:
        splits = (TRAIN, HELD_OUT) if self.data.eval_examples else (TRAIN,)
        yield from examples.check(self.data.dataset, splits, self.data.data_dir)

    @rule("max_tokens", "answer_tokens")
    def _sizes(self) -> Iterator[Problem]:
        data = self.data
        if data.max_tokens < (least := reserved(data.answer_tokens) + SMALLEST_PROMPT):
            wrong = f"answer_tokens = {data.answer_tokens} and EOS leave fewer than {SMALLEST_PROMPT} for the text"
            yield Problem(
                "max_tokens",
                data.max_tokens,
                wrong,
                f"give {least} or more, or fewer answer_tokens",
            )


@dataclass(frozen=True, kw_only=True)
class ChatRecipe(FinetuningRecipe):
    """A recipe of ``finetune.py``: conversations."""

    LAUNCHER: ClassVar[str] = TRAINING["finetune"]
    DEFAULT: ClassVar[str] = "chat_tiny"
    STAND_INS: ClassVar[Mapping[str, Any]] = {"model": "smollm2", "train_data": ["stdlib"]}
    LONG_DATA: ClassVar[str] = (
        "generated:retrieval#documents=N&tokens=LENGTH in train_data adds long conversations"
    )

    model: FinetuningModel
    data: ChatData

    def outline(self) -> dict[str, str]:
        data = self.data
        held_out = ", ".join(data.eval_data) or (
            f"{data.eval_share:.1%} of them" if data.eval_share else ""
        )
        long = "lose their end" if data.too_long == "cut" else "are left out"
        return {
            "model": f"{self.model.model}, with its own encoding; every parameter is trained",
            "data": f"conversations of {', '.join(data.train_data)}, packed into sequences of up to "
            f"{data.max_tokens:,} tokens; longer ones {long}",
            "held out": f"answers of {held_out}, {data.eval_examples:,} conversations at most"
            if held_out
            else "nothing",
            "RULER": self.ruler.outline(),
        }

    @rule("train_data", "eval_data", "skip_bad_rows")
    def _conversations(self) -> Iterator[Problem]:
        yield from conversations.check(
            self.data.train_data, self.data.eval_data, self.data.skip.bad_rows
        )
        if self.data.eval_data and self.data.eval_share:
            wrong = "eval_data names what is held out"
            yield Problem("eval_share", self.data.eval_share, wrong, "remove it, or eval_data: []")

    @rule("train_data", "max_tokens")
    def _generated(self) -> Iterator[Problem]:
        yield from generated.check_conversations(self.data.train_data, self.data.max_tokens)

    @rule("model", "chat_template")
    def _template(self) -> Iterator[Problem]:
        given = self.data.chat_template
        folder = paths.of(self.model.model)
        if given is not None:
            try:
                paths.of(given).read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                wrong = f"cannot be read ({error})"
                yield Problem(
                    "chat_template",
                    given,
                    wrong,
                    "give a jinja file, as a model's chat_template.jinja",
                )
            return
        # a run checks it with its tokenizer for a model that is no folder; a damaged file is reported there too
        if self.model.model == config_file.SMOLLM2 or not os.path.isdir(folder):
            return
        has_file = any((folder / f"chat_template.{kind}").is_file() for kind in ("jinja", "json"))
        try:
            settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
        except FileNotFoundError:
            settings = {}
        except (OSError, ValueError):
            return
        if not has_file and isinstance(settings, dict) and not settings.get("chat_template"):
            yield conversations.without_template(self.model.model)
