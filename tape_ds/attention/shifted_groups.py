"""Shifted sparse attention: in training a token attends within its group of tokens, half of the heads half a group off.

Source: LongLoRA (Chen et al. 2023, arXiv:2309.12307, Section 3.2). The first half of the query heads has borders at g,
2g, ..., the second at g/2, 3g/2, ...: what one half cannot see across a border the other can, layer after layer. The
paper's code rolls the second half around the sequence, so that the first tokens attend to the last ones; here its first
and last half-groups are separate. Groups go through ``attend`` as sequences of a batch: cost grows with T x g.

Shape letters: B batch, T tokens, H query heads, G key/value heads, K head size, V value width, N groups of equal
length, g tokens of a group; h and j heads of one half.
"""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tape_ds.attention.attend import attend
from tape_ds.attention.document_layout import DocumentLayout, PackedLayout


def attend_in_groups(
    q_BHTK: Tensor,
    k_BGTK: Tensor,
    v_BGTV: Tensor,
    *,
    group: int,
    layout: DocumentLayout | None = None,
    scale: float | None = None,
    backend: str = "auto",
) -> Tensor:
    """Causal attention within groups of ``group`` tokens, borders shifted by half a group for the last H // 2 heads.

    Args:
        q_BHTK: queries of whole sequences; H is a multiple of G. Where a key/value head serves query heads of both
            halves (9 heads on 3), keys and values are repeated, by as little as makes the halves even.
        k_BGTK: keys of the same tokens.
        v_BGTV: values, of any width.
        group: even, 2 or more; the last group of a sequence may be shorter. From 2 T on this is plain attention.
        layout: of the documents in sequences of T queries, which divide them further than the groups do.
        scale: factor on the scores; default K ** -0.5.
        backend: as ``attend`` takes it; "auto" chooses for calls of ``group`` tokens.

    Returns:
        [B, H, T, V]; 0 for padding.

    Raises:
        ValueError: an odd or too small ``group``; more keys than queries, as with a cache; whatever ``attend`` refuses.
    """
    check_group(group)
    heads, tokens = q_BHTK.shape[1:3]
    if k_BGTK.shape[2] != tokens:
        raise ValueError(
            f"attention within groups is for whole sequences, not for {tokens} queries over {k_BGTK.shape[2]} keys: "
            "call the model without a cache, or in evaluation mode, where attention is over everything"
        )
    if tokens <= group // 2:
        return attend(q_BHTK, k_BGTK, [v_BGTV], layout=layout, scale=scale, backend=backend)[0]
    halves_BThV = []
    heads_per_group = heads // k_BGTK.shape[1]
    for first, last, shifted in _halves(heads):
        # Views, unless a key/value head serves heads on both sides of the border between the halves: then key/value
        # heads are repeated, so that each copy serves a number of heads that divides both sides.
        served = math.gcd(heads_per_group, first, last)
        low = first // heads_per_group
        high = -(-last // heads_per_group)
        copies = heads_per_group // served
        kept = slice(first // served - low * copies, last // served - low * copies)
        q_BhTK = q_BHTK[:, first:last]
        k_BjTK, v_BjTV = (
            x[:, low:high, None].expand(-1, -1, copies, -1, -1).flatten(1, 2)[:, kept]
            for x in (k_BGTK, v_BGTV)
        )
        parts_BthV = []
        for piece in _pieces(tokens, group, shifted):
            # [B, G, T, C] -> [B N, G, g, C]; no copy where tokens are before heads in memory, as projections leave
            # them, and the piece is the whole sequence (or there is one sequence).
            q, k, v = (
                piece.cut(x, 2).transpose(1, 2).flatten(0, 1) for x in (q_BhTK, k_BjTK, v_BjTV)
            )
            documents = None if layout is None else _cut(layout, piece)
            (out_RhgV,) = attend(q, k, [v], layout=documents, scale=scale, backend=backend)
            parts_BthV.append(
                out_RhgV.transpose(1, 2).reshape(len(q_BHTK), -1, *out_RhgV.shape[1:4:2])
            )
        halves_BThV.append(parts_BthV[0] if len(parts_BthV) == 1 else torch.cat(parts_BthV, dim=1))
    return torch.cat(halves_BThV, dim=2).transpose(1, 2)


def use_groups(model: nn.Module, group_tokens: int | None) -> None:
    """Make every block of ``model`` attend within groups of ``group_tokens`` tokens in training mode; None: over
    everything, as in evaluation mode. The configuration does not change: a model that was trained so is an ordinary
    one."""
    if group_tokens is not None:
        check_group(group_tokens)
    blocks: list[Any] = [module for module in model.modules() if hasattr(module, "group_tokens")]
    if not blocks:
        raise ValueError(f"{type(model).__name__} has no attention that could work within groups")
    for block in blocks:
        block.group_tokens = group_tokens


def check_group(group: int) -> None:
    if group < 2 or group % 2:
        raise ValueError(
            f"a group of {group} tokens cannot be shifted by half of itself: give an even number, 2 or more"
        )


def attention_span(tokens: int, group: int, heads: int) -> float:
    """Length of the plain sequences whose attention costs as much per token: the groups' mean length, weighted by
    tokens."""
    squares = {
        shifted: sum(piece.groups * piece.length**2 for piece in _pieces(tokens, group, shifted))
        for shifted in (False, True)
    }
    return sum((last - first) * squares[shifted] for first, last, shifted in _halves(heads)) / (
        heads * tokens
    )


class _Piece(NamedTuple):
    start: int
    length: int
    groups: int

    def cut(self, x: Tensor, dim: int) -> Tensor:
        """Return a view of the piece's tokens: dimension ``dim`` (T) -> N, g."""
        return x.narrow(dim, self.start, self.groups * self.length).unflatten(
            dim, (self.groups, self.length)
        )


def _pieces(tokens: int, group: int, shifted: bool) -> list[_Piece]:
    """Return the groups of a sequence in order: possibly a half one, the full ones, possibly a shorter last one."""
    begin = min(group // 2, tokens) if shifted else 0
    full, rest = divmod(tokens - begin, group)
    pieces = (_Piece(0, begin, 1), _Piece(begin, group, full), _Piece(tokens - rest, rest, 1))
    return [piece for piece in pieces if piece.length and piece.groups]


def _halves(heads: int) -> list[tuple[int, int, bool]]:
    middle = heads - heads // 2
    return [(0, middle, False), (middle, heads, True)][: 1 if heads == 1 else 2]


def cut_ahead(layout: DocumentLayout | None, attention: Any) -> None:
    """Find the borders of groups before the layers run, so that none of them waits for the device; ``attention`` is
    that of any layer."""
    group: int | None = attention.group_tokens if attention.training else None
    if layout is None or group is None or torch.compiler.is_compiling():
        return
    for shifted in (False, True):
        for piece in _pieces(layout.queries, group, shifted):
            _ = _cut(layout, piece).packed


def _cut(layout: DocumentLayout, piece: _Piece) -> DocumentLayout:
    """Return the documents within the groups of a piece, computed once for all layers."""

    def cut(whole: DocumentLayout) -> DocumentLayout:
        sequences, tokens = whole.ids_BS.shape
        ids_RT = piece.cut(whole.ids_BS, 1).reshape(-1, piece.length)
        if torch.compiler.is_compiling() or whole.packed.key_order is not None:
            return DocumentLayout(ids_RT, piece.length)
        # Both kinds of border in one order, without counting them, which would wait for the device: where two meet, a
        # document is empty, which every kernel allows.
        length = piece.length * piece.groups
        number = whole.packed.cu_keys // tokens
        place = whole.packed.cu_keys % tokens
        inside = number * length + (place - piece.start).clamp(0, length)
        groups = torch.arange(
            0, sequences * length + 1, piece.length, device=inside.device, dtype=inside.dtype
        )
        cu = torch.cat((inside, groups)).sort().values
        longest = min(piece.length, whole.packed.longest_keys)
        return DocumentLayout(
            ids_RT, piece.length, packed=PackedLayout(cu, cu, longest, longest, None, None)
        )

    return layout.cached(piece, cut)
