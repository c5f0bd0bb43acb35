"""A bias on attention scores that is never held as a whole: computed for a block of queries, used, and forgotten.

ALiBi, T5 and FIRE add a number to every score that depends on the two tokens' positions (and on learned parameters).
As one fp32 [B, H, T, S] tensor that is 48 GiB for 12 heads at 32,768 tokens. Here an encoding hands over *marks*, what
has to be known of each query and of each key, and a function from two blocks of marks to a block of the bias. CoPE's
number depends on the scores of the keys between the two tokens: it hands over a function from a block of scores.

Shape letters: B batch, T queries, S keys, t and s blocks of them, H query heads, K head size, N numbers in a mark.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

from torch import Tensor

ElementFunction = Callable[[Tensor, Tensor, Tensor], Tensor]


class ScoreBias(NamedTuple):
    """Added to ``scale * q k``: ``block`` of the marks."""

    query_marks: Tensor
    """[B or 1, heads or 1, T, N]."""
    key_marks: Tensor
    """[B or 1, heads or 1, S, N]."""
    block: Callable[[Tensor, Tensor], Tensor]
    """Marks of t queries and s keys -> fp32 [B or 1, H or 1, t, s], differentiable wherever it depends on a
    parameter or a state."""
    element: ElementFunction | None = None
    """The same for one query, one key and one head, as FlexAttention's ``score_mod`` takes it: scalar marks (N = 1,
    heads = 1) and the head's number as a scalar tensor. None: the bias has no such form."""
    learned: bool = False
    """Whether gradients flow into the bias."""
    inner: int = 1
    """Numbers that ``block`` holds per query and key on the way to the H it gives."""
    alike: Hashable = None
    """Equal for biases that are equal in all layers of a forward; None: they differ between layers."""
    made: dict[Hashable, Any] | None = None
    """Results of one forward for ``alike`` biases; None: nothing is kept for later layers."""

    def of(self, queries: slice, keys: slice) -> Tensor:
        return self.block(self.query_marks[:, :, queries], self.key_marks[:, :, keys])

    def part(self, queries: slice, keys: slice) -> ScoreBias:
        return self._replace(
            query_marks=self.query_marks[:, :, queries], key_marks=self.key_marks[:, :, keys]
        )


class ContentBias(NamedTuple):
    """A term of the scores ``scale * q k`` that follows from these scores themselves: only attention that holds them,
    of a block of queries and all their keys, can compute it."""

    block: Callable[[Tensor, Tensor, Tensor], Tensor]
    """(queries [B, H, t, K], which keys each may see, bool [B or 1, 1, t, s], scaled scores [B, H, t, s], at least
    fp32) -> bias [B, H, t, s], differentiable. The keys are all up to the last query's; scores of keys that are not
    seen are finite, and mean nothing."""


def elementwise(
    function: ElementFunction, query_marks: Tensor, key_marks: Tensor, heads: Tensor
) -> Tensor:
    """Return ``function`` of blocks of scalar marks [B or 1, 1, t, 1] and [B or 1, 1, s, 1]: [B or 1, H, t, s]."""
    return function(query_marks, key_marks.transpose(-1, -2), heads[None, :, None, None])
