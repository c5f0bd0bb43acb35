"""A prompt that the model reads once, whatever is asked about it: its own probabilities, and several answers.

A cache of full layers is cut back after each answer. Other layers (sliding windows, states) have forgotten what they
held before it, so each answer that another one follows gets a copy of the cache.
"""

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor
from transformers.cache_utils import DynamicCache

from tape_ds.scoring.replies import is_cuttable
from tape_ds.serving.served import Served


class ReadPrompt:
    """Of one request.

    Args:
        served: the model.
        ids: the prompt's tokens.
        answers: how many will be drawn.
    """

    def __init__(self, served: Served, ids: Sequence[int], answers: int):
        self.served = served
        self.ids = list(ids)
        self.next_logits_1V: Tensor | None = None
        """Of the token after the prompt; None until it was read."""
        self._answers = answers
        self._cache: Any = None

    def new_cache(self) -> Any:
        """Return the empty cache that ``generate`` would make; None for a model that has one of its own kind, which is
        not kept."""
        if not self.served.model._supports_default_dynamic_cache():
            return None
        return DynamicCache(config=self.served.model.config.get_text_config(decoder=True))

    def keep(self, next_logits_1V: Tensor, cache: Any, *, grows: bool) -> None:
        """Keep what the model found out about the prompt, for the answers that are still to come; ``grows``: whether an
        answer is about to be written into this very cache."""
        self.next_logits_1V = next_logits_1V.clone()
        self._cache = cache
        # this very cache is about to hold an answer as well, and could not be cut back
        if grows and cache is not None and not is_cuttable(cache):
            self._cache = copy.deepcopy(cache)

    def begin_answer(self) -> Any:
        """Return a cache of the prompt, for one answer to grow; None if there is none, and it must be read."""
        self._answers -= 1
        if self._cache is None or is_cuttable(self._cache) or not self._answers:
            return self._cache
        return copy.deepcopy(self._cache)

    def end_answer(self) -> None:
        """Cut the cache back to the prompt."""
        if self._cache is None or not is_cuttable(self._cache):
            return
        beyond = self._cache.get_seq_length() - len(self.ids)
        if beyond:
            self._cache.crop(-beyond)

    @property
    def has_more(self) -> bool:
        """Whether answers follow the one that was begun last."""
        return self._answers > 0
