"""The recipe of ``pretrain_c4.py``: a model of any size and encoding, trained from nothing."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from tape_ds.training.recipe import (
    address_checks,
    common,
    loading,
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
class ModelSection:
    """The model to be built: a Llama's sizes, and an encoding."""

    hidden_size: int
    """Width of the residual stream."""
    intermediate_size: int
    """Inner width of the feed-forward."""
    num_hidden_layers: int
    """Blocks."""
    num_attention_heads: int
    """Query heads."""
    position_encoding: str
    """A name of ``tape_ds.model.positions.available()``."""
    num_key_value_heads: int = DERIVED
    """Key/value heads; default one for each query head."""
    head_dim: int = DERIVED
    """Width of a head; default hidden_size / num_attention_heads."""
    vocab_size: int | None = None
    """Entries of the tokenizer that is trained. A tokenizer that is given has its own number: leave it out."""
    rms_norm_eps: float = 1e-5
    """Added to the mean square in the norms."""
    tie_word_embeddings: bool = False
    """Whether the output head is the embedding's own matrix."""
    initializer_range: float = 0.02
    """Standard deviation of the initial weights."""
    position_options: dict[str, Any] = field(default_factory=dict)
    """Options of that encoding; empty: its defaults."""
    rope_parameters: dict[str, Any] = DERIVED
    """Angles, in transformers' terms, read by the encodings that rotate; default what the encoding starts from: plain
    angles of base 10,000."""
    state_dtype: str | None = None
    """dtype of the position state between layers; null: that of the hidden states."""
    attention_backend: str = "auto"
    """"auto", or a name of ``tape_ds.model.attention.available()``."""
    liger: Literal["auto", "on", "off"] = "auto"
    """Liger's kernels for norms, feed-forward and the loss of long batches; auto: on CUDA where it is installed."""


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
        *("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "position_encoding"),
        *("train_data", "window"),
    )
    STAND_INS: ClassVar[Mapping[str, Any]] = {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "position_encoding": "rope",
        "train_data": ["stdlib"],
        "window": 64,
    }
    FORMER: ClassVar[Mapping[str, str]] = {
        "config_name": "the sizes and position_encoding themselves, as fields of the recipe",
        "method": "nothing: pretraining trains every parameter",
        "model_max_length": "window",
        "model_max_position_embeddings": "window",
        "model_name_or_path": "nothing: the model is built new from its sizes",
        "rpe_type": "position_encoding",
        "tokenizer_name": "tokenizer",
        "train_scale": "window",
    }
    CHECKS: ClassVar[tuple[Checks, ...]] = (
        *(pretraining_checks.CHECKS, address_checks.CHECKS, scale.HEAD_CHECKS),
        *common.CHECKS,
    )

    model: ModelSection
    data: DataSection
    evaluation: EvaluationSection

    @classmethod
    def derived(cls, flat: Mapping[str, Any]) -> dict[str, Any]:
        """A key/value head for each query head, heads that share the width, the encoding's angles, 1 to 8 windows to
        score."""
        from tape_ds.model import positions

        heads = flat["num_attention_heads"]
        return {
            "rope_parameters": positions.default_rope_parameters(flat["position_encoding"], flat["window"]),
            "num_key_value_heads": heads,
            "head_dim": flat["hidden_size"] // max(heads, 1),
            "eval_lengths": [multiple * flat["window"] for multiple in EVAL_MULTIPLES],
        }

    @property
    def window(self) -> int:
        """Tokens per training row."""
        return self.data.window

    def model_config(self, tokenizer: "PreTrainedTokenizerBase", vocab_size: int | None = None) -> "TapeConfig":
        """The configuration of the model for this tokenizer.

        No padding token is set: an embedding's padding row stays zero and is never trained, and rows are not padded.

        Args:
            tokenizer: gives the special tokens, and what the encoding takes from it.
            vocab_size: rows of the embedding; default the tokenizer's entries.

        Raises:
            UserError: sizes or options that no model can have.
        """
        from tape_ds.model import positions
        from tape_ds.model.configuration import TapeConfig

        model = self.model
        options = positions.options_for(model.position_encoding, model.position_options, tokenizer)
        fields = {
            "hidden_size": model.hidden_size,
            "intermediate_size": model.intermediate_size,
            "num_hidden_layers": model.num_hidden_layers,
            "num_attention_heads": model.num_attention_heads,
            "num_key_value_heads": model.num_key_value_heads,
            "head_dim": model.head_dim,
            "rms_norm_eps": float(model.rms_norm_eps),
            "tie_word_embeddings": model.tie_word_embeddings,
            "initializer_range": float(model.initializer_range),
            "max_position_embeddings": self.data.window,
            "vocab_size": vocab_size or len(tokenizer),
            "rope_parameters": dict(model.rope_parameters),
            "position_encoding": model.position_encoding,
            "position_options": options or None,
            "state_dtype": model.state_dtype,
            "attention_backend": model.attention_backend,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": None,
        }
        return TapeConfig(**fields)

    def outline(self) -> dict[str, str]:
        """Model, encoding, tokenizer and data."""
        model, data, lengths = self.model, self.data, self.evaluation.eval_lengths
        scored = f", at lengths {', '.join(f'{length:,}' for length in lengths)}"
        trained = f"sentencepiece, {model.vocab_size or 0:,} entries, trained on train_data"
        rows = f"streamed in {data.stream_lanes} lanes" if data.streaming else "packed documents"
        heads = f"{model.num_attention_heads} heads ({model.num_key_value_heads} key/value)"
        return {
            "model": f"{model.num_hidden_layers} layers, hidden {model.hidden_size:,}, {heads}, feed-forward "
            f"{model.intermediate_size:,}",
            "encoding": f"{model.position_encoding} {model.position_options or ''}".rstrip(),
            "tokenizer": data.tokenizer or trained,
            "data": f"{', '.join(data.train_data)}: rows of {data.window:,} tokens ({rows})",
            "held out": f"{', '.join(data.eval_data)}{scored}" if data.eval_data else "nothing",
        }


def load(argv: list[str], world_size: int | None = None) -> PretrainingRecipe:
    """Read and check the recipe that a command line asks for, see :func:`tape_ds.training.recipe.loading.load`.

    Raises:
        UserError: with everything that is wrong.
    """
    return loading.load(argv, PretrainingRecipe, world_size)
