"""Rows of token ids in one file, and the documents in them."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

PART_TOKENS = 2**24
"""Tokens of a part of a file, which streams read separately; decides their order."""
# ids in which a border is looked for at a time
_BLOCK = 2**22


@dataclass(frozen=True)
class Border:
    """A token id that every document has at its end, or ``begins`` with."""

    token: int
    begins: bool = False


@dataclass(frozen=True)
class TokenTable:
    """The rows of one file: neighbours in ``ids``."""

    ids: np.ndarray
    """Integers [n] of any width, usually mapped from the disk."""
    ends: np.ndarray
    """int64 [rows], rising: where each row ends. The first begins at 0, the last ends at n."""

    def __post_init__(self) -> None:
        """Raise ValueError if the ends are not those of the ids."""
        total = int(self.ends[-1]) if len(self.ends) else 0
        if total != len(self.ids):
            raise ValueError(f"its last document ends at token {total:,} of {len(self.ids):,}")
        if (np.diff(self.ends, prepend=0) < 0).any():
            raise ValueError("a document ends before it begins")

    @classmethod
    def of_rows(cls, rows: list[np.ndarray]) -> "TokenTable":
        if not rows:
            return cls(np.zeros(0, np.int64), np.zeros(0, np.int64))
        return cls(np.concatenate(rows), np.cumsum([len(row) for row in rows], dtype=np.int64))

    @classmethod
    def of_one_row(cls, ids: np.ndarray) -> "TokenTable":
        return cls(ids, np.array([len(ids)], np.int64))

    @property
    def parts(self) -> int:
        return max(1, -(-len(self.ids) // PART_TOKENS))

    def documents(self, part: int, border: Border | None) -> Iterator[tuple[int, np.ndarray]]:
        """Yield (where it begins, ids [n], n >= 1) of the documents that begin within a part, in order.

        Args:
            border: divides the rows further; None: each row is a document.
        """
        first = part * PART_TOKENS
        last = min(first + PART_TOKENS, len(self.ids))
        row = int(np.searchsorted(self.ends, first, side="right"))
        begin = int(self.ends[row - 1]) if row else 0
        while row < len(self.ends) and begin < last:
            end = int(self.ends[row])
            if border is not None:
                yield from self._divided(begin, end, first, last, border)
            elif first <= begin < end:
                yield begin, self.ids[begin:end]
            begin = end
            row += 1

    def _divided(
        self, begin: int, end: int, first: int, last: int, border: Border
    ) -> Iterator[tuple[int, np.ndarray]]:
        """Yield the documents of the row ``begin .. end`` that begin in ``first .. last``."""
        start: int | None = begin if begin >= first else None
        # a document that begins at `first` is known by the token before it
        for cut in self._cuts(max(begin, first - 1), end, border):
            if cut <= begin or cut < first:
                continue
            if start is not None:
                yield start, self.ids[start:cut]
            start = cut if cut < end else None
            if cut >= last:
                return
        if start is not None and start < last and start < end:
            yield start, self.ids[start:end]

    def _cuts(self, begin: int, end: int, border: Border) -> Iterator[int]:
        """Yield where documents begin: at a border token, or after it."""
        after = 0 if border.begins else 1
        for at in range(begin, end, _BLOCK):
            found = np.flatnonzero(self.ids[at : min(at + _BLOCK, end)] == border.token)
            for each in found:
                yield at + int(each) + after
