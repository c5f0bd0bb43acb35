"""Where the tokens of a text are in it, as tokenizers with ``tokenizer.json`` know."""

from typing import Any

import numpy as np


class LocatedTokens:
    """The tokens of a text without special tokens: ``ids`` int64 [n], and their first and last characters."""

    def __init__(self, text: str, tokenizer: Any):
        # verbose=False: no warning about the native length, which a text may exceed
        encoding = tokenizer(
            text, add_special_tokens=False, return_offsets_mapping=True, verbose=False
        )
        self.ids = np.asarray(encoding["input_ids"], np.int64)
        self.starts, self.ends = np.array(encoding["offset_mapping"], np.int64).reshape(-1, 2).T

    def of(self, start: int, end: int) -> slice:
        """Return the tokens with a character of ``start`` .. ``end`` - 1: one character may be several tokens."""
        return slice(
            int(np.searchsorted(self.ends, start, "right")), int(np.searchsorted(self.starts, end))
        )
