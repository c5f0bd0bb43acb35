"""The recipe of ``pretrain_c4.py``: train a new model of any size and encoding."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field

from tape_ds.config import new_model
from tape_ds.config.reading import DocumentReading
from tape_ds.config.sections import DataCache, Mixture
from tape_ds.data import sources
from tape_ds.data.bad_rows import Skip
from tape_ds.data.sources import KINDS, TokenSource, generated, weights
from tape_ds.distributed.launch_command import TRAINING
from tape_ds.errors import Problem
from tape_ds.fields import COMPARED, DERIVED, FREE, Section, Tokens, rule
from tape_ds.models.files import config_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

NO_TOKENIZER = new_model.Words((".", "\n", "0"))
"""Stand-in for a tokenizer that is not loaded yet; it changes no size."""
EVAL_MULTIPLES = (1, 2, 4, 8)
"""Default lengths to score, in windows."""


class PretrainingModel(new_model.NewModel):
    """The model to be built."""

    vocab_size: Annotated[int | None, COMPARED] = Field(None, ge=1)
    """Entries of the tokenizer to train; to be left out for a given tokenizer, which has its own number."""


class PretrainingData(Section):
    """Data for training and scores, and the tokenizer."""

    train_data: Mixture
    window: Tokens = Field(ge=2)
    """Tokens per training sequence, and the length the model is made for (max_position_embeddings)."""
    eval_data: Annotated[list[str], FREE, COMPARED] = []
    """Data specs of held-out text for perplexity by length; empty: nothing is scored."""
    tokenizer: Annotated[str | None, FREE, COMPARED] = None
    """A folder, a hub id or ``smollm2``; null: a sentencepiece model of vocab_size entries, trained on train_data."""
    streaming: bool = False
    """Read, tokenise and pack during training, for data too large to be tokenised ahead."""
    stream_workers: int = Field(32, ge=1)
    """Shards of the data that are read in parallel when streaming; sequences take turns between them. They are part of
    the data order, whatever the number of processes."""
    skip: Skip = Skip()
    data_cache: DataCache = None


class PretrainingEvaluation(Section):
    """Perplexity by length, after training."""

    eval_lengths: Annotated[list[Annotated[Tokens, Field(ge=2)]], FREE, COMPARED] = DERIVED
    """Lengths in tokens; default 1, 2, 4 and 8 windows. Every length is scored on the same documents."""
    eval_tokens: Annotated[Tokens, FREE, COMPARED] = 2**20
    """Held-out tokens to read, at most; each length reads them all."""


@dataclass(frozen=True, kw_only=True)
class PretrainingRecipe(new_model.NewModelRecipe):
    """A recipe of this launcher."""

    LAUNCHER: ClassVar[str] = TRAINING["pretrain"]
    DEFAULT: ClassVar[str] = "tiny"
    STAND_INS: ClassVar[Mapping[str, Any]] = {
        **new_model.STAND_INS,
        "train_data": ["stdlib"],
        "window": 64,
    }

    model: PretrainingModel
    data: PretrainingData
    evaluation: PretrainingEvaluation

    @property
    def reading(self) -> DocumentReading:
        return DocumentReading(self.data.tokenizer)

    def derived(self) -> dict[str, Any]:
        lengths = [multiple * self.data.window for multiple in EVAL_MULTIPLES]
        return new_model.derived(self.model, self.data.window) | {"eval_lengths": lengths}

    def configuration(
        self,
        tokenizer: "PreTrainedTokenizerBase | new_model.Words" = NO_TOKENIZER,
        vocab_size: int | None = None,
    ) -> dict[str, Any]:
        """See :func:`.new_model.configuration`. No padding token is set: sequences are not padded."""
        # of a tokenizer that is still to be trained or loaded
        if vocab_size is None:
            vocab_size = (
                self.model.vocab_size or 2**31 if tokenizer is NO_TOKENIZER else len(tokenizer)
            )
        return new_model.configuration(
            self.model, self.data.window, tokenizer, vocab_size, self.model.position_options
        )

    def outline(self) -> dict[str, str]:
        model = self.model
        data = self.data
        lengths = self.evaluation.eval_lengths
        scored = f", at lengths {', '.join(f'{length:,}' for length in lengths)}"
        trained = f"sentencepiece, {model.vocab_size or 0:,} entries, trained on train_data"
        made = "packed documents"
        if data.streaming:
            made = f"streamed by {data.stream_workers} workers"
        return {
            **model.outline(),
            "tokenizer": data.tokenizer or trained,
            "data": f"{weights.described(data.train_data)}: sequences of {data.window:,} tokens ({made})",
            "held out": f"{', '.join(data.eval_data)}{scored}" if data.eval_data else "nothing",
        }

    @rule("tokenizer", "vocab_size")
    def _vocabulary(self) -> Iterator[Problem]:
        tokenizer = self.data.tokenizer
        size = self.model.vocab_size
        if tokenizer is None and size is None:
            remedy = "give the entries of the tokenizer to train, or tokenizer: a folder, a hub id or smollm2"
            yield Problem("vocab_size", None, "missing, and so is a tokenizer", remedy)
        if tokenizer is not None:
            files = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json")
            yield from config_file.check_name("tokenizer", tokenizer, files)

    @rule("eval_lengths", "eval_tokens", "window")
    def _lengths(self) -> Iterator[Problem]:
        lengths = self.evaluation.eval_lengths
        tokens = self.evaluation.eval_tokens
        if not lengths:
            yield Problem(
                "eval_lengths",
                lengths,
                "nothing to score",
                "leave it out, or empty eval_data instead",
            )
        elif len(set(lengths)) < len(lengths):
            yield Problem("eval_lengths", lengths, "a length is repeated", "give each once")
        elif tokens < max(lengths):
            wrong = f"fewer than one block of {max(lengths)}, the longest of eval_lengths"
            yield Problem("eval_tokens", tokens, wrong, f"give {max(lengths)} or more")

    @rule("train_data", "window", "max_steps", "tokenizer", "streaming")
    def _generated(self) -> Iterator[Problem]:
        data = self.data
        specs = weights.specs_of(data.train_data)
        # of a stream, the next rule asks for them
        steps = 1 if data.streaming else self.trainer.max_steps
        yield from generated.check_drawn(data.train_data, data.window, steps)
        if data.tokenizer is None and specs and not generated.written_text(specs):
            remedy = "give a folder, a hub id or smollm2; or data that hold text"
            yield Problem(
                "tokenizer", None, "it would be trained on train_data, which hold no text", remedy
            )

    @rule(
        "streaming",
        "train_data",
        "eval_data",
        "skip_bad_rows",
        "max_steps",
        "dataloader_num_workers",
    )
    def _data(self) -> Iterator[Problem]:
        data = self.data
        yield from sources.check_lists(data.train_data, data.eval_data, data.skip.bad_rows)
        if not data.streaming:
            yield from weights.check_steps(data.train_data, self.trainer.max_steps)
            return
        for spec in weights.specs_of(data.train_data):
            kind = KINDS.get(spec.partition(":")[0])
            if kind is not None and issubclass(kind, TokenSource) and not kind.streamed:
                wrong = "holds token ids already, and is read from disk anyway"
                yield Problem("train_data", spec, wrong, "set streaming: false")
        steps = self.trainer.max_steps
        workers = self.trainer.dataloader_num_workers
        if steps <= 0:
            yield Problem(
                "max_steps", steps, "the length of a stream is unknown", "give the steps to train"
            )
        if workers > 1:
            wrong = "each would read and tokenise the same stream"
            yield Problem(
                "dataloader_num_workers",
                workers,
                wrong,
                "give 1 (reads ahead during training) or 0",
            )
