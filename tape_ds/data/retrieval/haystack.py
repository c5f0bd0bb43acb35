"""The text that records are put into: stretches of tokenised documents, as text again."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from tape_ds.data.selection import token_counts

if TYPE_CHECKING:
    from datasets import Dataset

LONGEST_UNIT = 240
"""Characters of text between two places for a record, at most."""
_TRIED = 2000
"""Tokens that are read back to see whether they can be."""
# a decoder writes it for a part of a character
_CUT = "\ufffd"


class Haystack:
    """Tokenised documents (of :func:`tape_ds.data.selection.select`), of which any stretch may be asked for."""

    def __init__(self, documents: "Dataset", tokenizer: Any):
        self.documents = documents.with_format("numpy", columns=["input_ids"], dtype=np.int64)
        self.tokenizer = tokenizer
        self.ends = np.cumsum(token_counts(documents))

    def stretch(self, rng: np.random.Generator, tokens: int) -> str:
        """Return a text of about ``tokens`` tokens that ends anywhere; where its document begins too late, the end of
        another one comes before it."""
        parts: list[str] = []
        while tokens > 0:
            end = int(rng.integers(1, self.ends[-1], endpoint=True))
            number = int(np.searchsorted(self.ends, end))
            before = int(self.ends[number - 1]) if number else 0
            last = end - before
            ids = self.documents[number]["input_ids"][max(0, last - tokens) : last]
            tokens -= len(ids)
            text = self.tokenizer.decode(
                ids.tolist(), skip_special_tokens=True, clean_up_tokenization_spaces=False
            )
            parts.append(text.strip(_CUT))
        return "\n\n".join(reversed(parts))

    def is_readable(self) -> bool:
        """Return whether a text that is read back has at least half of its tokens; unknown characters have none."""
        asked = min(_TRIED, int(self.ends[-1]))
        text = self.stretch(np.random.default_rng(0), asked)
        return (
            2 * len(self.tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"])
            >= asked
        )


def units(text: str) -> Iterator[str]:
    """Yield the lines of a text with their ends; longer ones in pieces that end at a space, where there is one."""
    for line in text.splitlines(keepends=True):
        rest = line
        while len(rest) > LONGEST_UNIT:
            at = rest.rfind(" ", 1, LONGEST_UNIT)
            cut = LONGEST_UNIT if at < 0 else at
            yield rest[:cut]
            rest = rest[cut:]
        yield rest
