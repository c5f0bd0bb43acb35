"""The model that a server has, with what every request asks of it."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from transformers import GenerationConfig

from tape_ds.scoring.generation import ends_of
from tape_ds.serving.settings import Defaults
from tape_ds.serving.token_texts import TokenTexts

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# bytes of a body for everything but its text
_OVERHEAD = 1 << 20
# JSON may write each as \uXXXX
_BYTES_PER_CHARACTER = 6
# bytes; parsing many times more would hold up every other request for a second
_LARGEST_BODY = 4 << 20
# with its comma and space
_BYTES_PER_ID = 8
# characters; a tokenizer without bytes reads any unknown word as one token
_SHORTEST_LONGEST = 64


class Served:
    """A model on its device, in evaluation mode.

    Args:
        model: a causal LM; its own generation settings are in ``defaults`` and are removed from it.
        tokenizer: the model's.
        name: what clients call it.
        length: tokens of a prompt and its answer.
        defaults: see :func:`tape_ds.serving.settings.of_model`.
    """

    def __init__(
        self,
        model: "PreTrainedModel",
        tokenizer: "PreTrainedTokenizerBase",
        name: str,
        length: int,
        defaults: Defaults | None = None,
    ):
        self.model: Any = model
        self.tokenizer = tokenizer
        self.name = name
        self.length = length
        self.defaults = defaults or Defaults()
        self.ends = frozenset(ends_of(model, tokenizer))
        """Tokens that end an answer."""
        self.texts = TokenTexts(tokenizer)
        self.rows = int(model.get_input_embeddings().weight.shape[0])
        """Token ids that the model can read: 0 to one less."""
        self.most_characters = length * max(self.texts.longest, _SHORTEST_LONGEST)
        """Of a prompt that can fit."""
        largest = max(_LARGEST_BODY, _OVERHEAD + _BYTES_PER_ID * length)
        self.most_bytes = min(_OVERHEAD + _BYTES_PER_CHARACTER * self.most_characters, largest)
        """Of a request's body."""
        # generate would fill in from it what a request leaves open
        model.generation_config = GenerationConfig()

    @property
    def device(self) -> Any:
        return self.model.get_input_embeddings().weight.device

    @contextmanager
    def noticing(self, check: Any) -> Iterator[None]:
        """Call ``check`` before each forward pass: it raises if the client left."""
        hook = self.model.register_forward_pre_hook(lambda *_: check())
        try:
            yield
        finally:
            hook.remove()
