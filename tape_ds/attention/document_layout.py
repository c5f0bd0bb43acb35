"""Borders of the documents in the sequences of one forward: computed once, and passed to every layer.

Masks read the ids of documents. Kernels for packed sequences (``torch.nn.attention.varlen``, flash-attn) read where
each document begins in one long sequence of tokens, and the longest length. Computing that from ids makes a GPU wait
for the host: it happens before the layers, or not at all where the collator gives it (``cu_seq_lens_q``).

Shape letters: B batch, T queries of a sequence, S keys of a sequence, N documents, P tokens of all documents, without
padding.
"""

from collections.abc import Callable, Hashable
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.nn import functional as F

Made = TypeVar("Made")

FEW_QUERIES = 16
"""Up to this many queries in a sequence are a step of decoding: a mask is small, and borders are not needed."""


class PackedLayout(NamedTuple):
    """Tokens of all documents one after the other, without padding."""

    cu_queries: Tensor
    """int32 [N + 1]: document n has the queries ``cu_queries[n] .. cu_queries[n + 1]``; perhaps none."""
    cu_keys: Tensor
    """int32 [N + 1]: the same for keys. A document's queries are the last of its tokens."""
    longest_queries: int
    """Of any document, or more."""
    longest_keys: int
    query_order: Tensor | None
    """int64 [P]: places in [B * T] of the queries; None: they are in this order, and none is padding."""
    key_order: Tensor | None
    """int64 [P]: places in [B * S] of the keys; None as for the queries."""


class DocumentLayout:
    """Documents and padding of sequences of S keys, T of which are queries.

    Args:
        ids_BS: integers, the document of each key; below 0 is padding.
        queries: T.
        offset: place of the first query among the keys; a tensor inside a compiled graph, where only masks are made.
        packed: None: computed when it is first read.
    """

    def __init__(
        self,
        ids_BS: Tensor,
        queries: int,
        offset: int | Tensor = 0,
        packed: PackedLayout | None = None,
    ):
        self.ids_BS = ids_BS
        self.queries = queries
        self.offset = offset
        self._made: dict[Hashable, Any] = {} if packed is None else {PackedLayout: packed}

    @property
    def packed(self) -> PackedLayout:
        """Document boundaries; computing them waits for the device once, unless the caller gave them."""
        return self.cached(PackedLayout, _pack)

    @property
    def known(self) -> bool:
        return PackedLayout in self._made

    @property
    def may_pad(self) -> bool:
        return not self.known or self.packed.key_order is not None

    @property
    def contiguous(self) -> bool:
        return self.cached("contiguous", _contiguous)

    def to(self, device: Any, non_blocking: bool = False) -> "DocumentLayout":
        """Return a copy on another device, made once: accelerate moves a block's arguments to the block's device."""
        ids_BS = self.ids_BS.to(device, non_blocking=non_blocking)
        if ids_BS is self.ids_BS:
            return self

        def moved(_: "DocumentLayout") -> "DocumentLayout":
            given: list[Any] = [self.offset, *(self.packed if self.known else ())]
            for index, value in enumerate(given):
                if isinstance(value, Tensor):
                    given[index] = value.to(device, non_blocking=non_blocking)
            packed = PackedLayout(*given[1:]) if self.known else None
            return DocumentLayout(ids_BS, self.queries, given[0], packed)

        return self.cached(ids_BS.device, moved)

    def cached(self, key: Hashable, make: Callable[["DocumentLayout"], Made]) -> Made:
        """Return ``make(self)``, computed once and kept under ``key`` for later layers."""
        if key not in self._made:
            self._made[key] = make(self)
        made: Made = self._made[key]
        return made


def layout_of_ids(ids_BS: Tensor, queries: int, offset: int | Tensor = 0) -> DocumentLayout | None:
    """Return the layout of sequences from the documents' ids; None where no sequence has padding or a second document
    (a compiled graph cannot look, and always gets a layout)."""
    if not torch.compiler.is_compiling() and bool(
        ((ids_BS == ids_BS[:, :1]) & (ids_BS >= 0)).all()
    ):
        return None
    return DocumentLayout(ids_BS, queries, offset)


def layout_of_packed_sequences(
    cu_seq_lens: Tensor, longest: int, sequences: int, tokens: int
) -> DocumentLayout | None:
    """Return the layout of sequences filled with documents to the last token; None where every sequence is one
    document. It waits for no device: arguments pass :func:`check_packed_sequences` first."""
    # a sequence has one document at least
    if len(cu_seq_lens) == sequences + 1:
        return None
    cu_seq_lens = cu_seq_lens.int()
    ids_BT = ids_of_packed_sequences(cu_seq_lens, sequences, tokens)
    return DocumentLayout(
        ids_BT, tokens, packed=PackedLayout(cu_seq_lens, cu_seq_lens, longest, longest, None, None)
    )


def ids_of_packed_sequences(cu_seq_lens: Tensor, sequences: int, tokens: int) -> Tensor:
    places = torch.arange(sequences * tokens, device=cu_seq_lens.device)
    return torch.bucketize(places, cu_seq_lens[1:], right=True, out_int32=True).view(
        sequences, tokens
    )


def ids_of_positions(position_ids_BT: Tensor) -> Tensor:
    """Return document ids int32 [B, T] from position ids: one that does not increase starts a document."""
    starts = position_ids_BT.diff(dim=1) <= 0
    return F.pad(starts.cumsum(dim=1), (1, 0)).int()


def check_packed_sequences(cu_seq_lens: Tensor, longest: int, sequences: int, tokens: int) -> None:
    """Raise ValueError for borders that do not ascend from 0 to B x T, leave out a sequence's, or have a longer
    document.

    Only CPU tensors are checked, and not in a compiled graph: on a GPU the check would wait.
    """
    if cu_seq_lens.device.type != "cpu" or torch.compiler.is_compiling():
        return
    given = cu_seq_lens.tolist()
    ascending = cu_seq_lens.dim() == 1 and given == sorted(given) and given[:1] == [0]
    begins = {number * tokens for number in range(sequences)}
    if (
        not ascending
        or cu_seq_lens.is_floating_point()
        or given[-1] != sequences * tokens
        or not begins <= set(given)
    ):
        raise ValueError(
            f"cu_seq_lens_q = {given}: give where each document begins, ascending from 0 and with the begin of every "
            f"sequence, and {sequences * tokens}, the number of tokens, at the end"
        )
    if longest < max(cu_seq_lens.diff().tolist()):
        raise ValueError(
            f"max_length_q = {longest}: a document has {max(cu_seq_lens.diff().tolist())} tokens"
        )


def _contiguous(layout: DocumentLayout) -> bool:
    order = layout.packed.key_order
    if order is None:
        return True
    jumps = order.diff() != 1
    # from a document to the next
    jumps[layout.packed.cu_keys[1:-1].long() - 1] = False
    return not bool(jumps.any())


def _pack(layout: DocumentLayout) -> PackedLayout:
    """Find the documents' tokens; documents may be interleaved, and padding may be anywhere."""
    ids_BS = layout.ids_BS
    queries = layout.queries
    offset = layout.offset
    sequences, keys = ids_BS.shape
    if not ids_BS.numel():
        nothing = torch.zeros(1, dtype=torch.int32, device=ids_BS.device)
        return PackedLayout(nothing, nothing, 0, 0, None, None)
    span = ids_BS.max().long().clamp_min(0) + 1
    number_B1 = torch.arange(sequences, device=ids_BS.device)[:, None]
    # padding comes last
    owners = torch.where(ids_BS < 0, sequences * span, number_B1 * span + ids_BS).flatten()
    order = owners.argsort(stable=True)
    order = order[: int((ids_BS >= 0).sum())]
    begins = (F.pad(owners[order], (1, 0), value=-1).diff() != 0).nonzero()[:, 0]
    cu_keys = F.pad(begins, (0, 1), value=len(order))
    # among the queries; those outside are of keys alone
    places = order % keys - offset
    asks = (places >= 0) & (places < queries)
    cu_queries = F.pad(asks.cumsum(0), (1, 0))[cu_keys]
    key_order = query_order = None
    if len(order) < ids_BS.numel() or bool((order.diff() != 1).any()):
        key_order = order
        query_order = (order // keys * queries + places)[asks]
    longest = [int(cu.diff().max()) if len(cu) > 1 else 0 for cu in (cu_queries, cu_keys)]
    return PackedLayout(
        cu_queries.int(), cu_keys.int(), longest[0], longest[1], query_order, key_order
    )
