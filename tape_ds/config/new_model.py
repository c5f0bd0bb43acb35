"""The section of recipes that build a new model, the model's configuration, and the rules of its sizes."""

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import Field

from tape_ds import encodings
from tape_ds.config.recipe import Recipe
from tape_ds.config.sections import Backend, Liger, StateDType
from tape_ds.distributed.layout import SEQUENCE, TENSOR, check_heads
from tape_ds.encodings import scaling
from tape_ds.errors import Problem
from tape_ds.fields import DERIVED, Section, rule
from tape_ds.models import sizes

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

STAND_INS: Mapping[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "position_encoding": "rope",
}


class NewModel(Section):
    """The model to be built: the sizes of a Llama, and an encoding."""

    hidden_size: int = Field(ge=1)
    """Width of the residual stream."""
    intermediate_size: int = Field(ge=1)
    """Inner width of the feed-forward."""
    num_hidden_layers: int = Field(ge=1)
    """Blocks."""
    num_attention_heads: int = Field(ge=1)
    """Query heads."""
    position_encoding: str
    """Name of a positional encoding (docs/encodings.md)."""
    num_key_value_heads: int = Field(DERIVED, ge=1)
    """Key/value heads; default one for each query head."""
    head_dim: int = Field(DERIVED, ge=1)
    """Width of a head; default hidden_size / num_attention_heads."""
    rms_norm_eps: float = Field(1e-5, gt=0)
    """Added to the mean square in the norms."""
    tie_word_embeddings: bool = False
    """Whether the output head is the embedding's own matrix."""
    initializer_range: float = Field(0.02, gt=0)
    """Standard deviation of the initial weights."""
    position_options: dict[str, Any] = {}
    """Options of that encoding; empty: its defaults."""
    rope_parameters: dict[str, Any] = DERIVED
    """RoPE parameters, in transformers' terms, of the encodings that rotate; default plain RoPE of base 10,000, or what
    the encoding starts from."""
    state_dtype: StateDType = None
    attention_backend: Backend = "auto"
    liger: Liger = "auto"

    def outline(self) -> dict[str, str]:
        heads = f"{self.num_attention_heads} heads ({self.num_key_value_heads} key/value)"
        return {
            "model": f"{self.num_hidden_layers} layers, hidden {self.hidden_size:,}, {heads}, feed-forward "
            f"{self.intermediate_size:,}",
            "encoding": f"{self.position_encoding} {self.position_options or ''}".rstrip(),
        }


_SIZES = (
    *(
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
    ),
    "head_dim",
)
_TAKEN_OVER = (
    *_SIZES,
    "tie_word_embeddings",
    "position_encoding",
    "state_dtype",
    "attention_backend",
)
"""Fields that the configuration has too."""


def derived(model: NewModel, window: int) -> dict[str, Any]:
    """Return a key/value head for each query head, heads that share the width, and the encoding's RoPE parameters."""
    heads = model.num_attention_heads
    encoding = model.position_encoding
    # a rule refuses it
    known = encoding if encoding in encodings.available() else STAND_INS["position_encoding"]
    return {
        "rope_parameters": encodings.options_of(known, {}).default_rope_parameters(window),
        "num_key_value_heads": heads,
        "head_dim": model.hidden_size // heads,
    }


class Words:
    """Stand-in for a tokenizer where a recipe is checked, which loads none.

    Args:
        tokens: in the order of their ids.
        special: whether they begin with padding, unknown, begin and end.
    """

    def __init__(self, tokens: Sequence[str], special: bool = False):
        self.tokens = tokens
        self.pad_token_id = 0 if special else None
        self.bos_token_id = 2 if special else None
        self.eos_token_id = 3 if special else None

    def __len__(self) -> int:
        return len(self.tokens)

    def get_vocab(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.tokens)}

    def convert_tokens_to_string(self, tokens: Sequence[str]) -> str:
        return "".join(tokens)


def configuration(
    model: NewModel,
    window: int,
    tokenizer: "PreTrainedTokenizerBase | Words",
    vocab_size: int,
    options: Mapping[str, Any],
    pad_token_id: int | None = None,
) -> dict[str, Any]:
    """Return the fields of a new model's ``TapeConfig``.

    Args:
        model: its section.
        window: tokens of a training sequence, which become ``max_position_embeddings``.
        tokenizer: for the special tokens and for the encoding.
        vocab_size: rows of the embedding.
        options: of the encoding.
        pad_token_id: its embedding stays zero and is never trained; None if every token may be a text's.

    Raises:
        UserError: options that the encoding does not have.
    """
    filled = encodings.options_for(model.position_encoding, options, tokenizer)
    return {
        **{name: getattr(model, name) for name in _TAKEN_OVER},
        "rms_norm_eps": float(model.rms_norm_eps),
        "initializer_range": float(model.initializer_range),
        "max_position_embeddings": window,
        "vocab_size": vocab_size,
        "rope_parameters": dict(model.rope_parameters),
        "position_options": filled or None,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": pad_token_id,
    }


_TASK = ("task", "test_digits", "task_options", "train_lengths", "test_lengths")
_ENCODING = (
    "position_encoding",
    "position_options",
    "rope_parameters",
    "state_dtype",
    "attention_backend",
)


@dataclass(frozen=True, kw_only=True)
class NewModelRecipe(Recipe):
    """A recipe that builds its model."""

    model: NewModel

    @abstractmethod
    def configuration(self) -> dict[str, Any]:
        """Return the fields of the model's configuration, with stand-ins for values that only a run knows."""

    @rule("position_encoding", "position_options")
    def _options(self) -> Iterator[Problem]:
        yield from encodings.check_options(
            self.model.position_encoding, self.model.position_options
        )

    @rule(*_SIZES, *_ENCODING, "rms_norm_eps", "initializer_range", "vocab_size", "window", *_TASK)
    def _sizes(self) -> Iterator[Problem]:
        model = self.model
        if "head_dim" not in self.given and model.hidden_size % model.num_attention_heads:
            wrong = f"not divisible by num_attention_heads = {model.num_attention_heads}"
            yield Problem(
                "hidden_size", model.hidden_size, wrong, "choose a multiple, or give head_dim"
            )
        elif not encodings.check_options(model.position_encoding, model.position_options):
            known = {field.name for field in dataclasses.fields(sizes.Fields)}
            own = {name: value for name, value in self.configuration().items() if name in known}
            yield from sizes.problems(sizes.Fields(**own))
            yield from scaling.check_factor(model.rope_parameters)

    @rule(SEQUENCE, TENSOR, "num_attention_heads", "num_key_value_heads")
    def _heads(self) -> Iterator[Problem]:
        for name in (SEQUENCE, TENSOR):
            size = getattr(self.scale, name)
            yield from check_heads(
                self.model.num_attention_heads, self.model.num_key_value_heads, size, name
            )
