"""The PyTorch form of ``position_mix``: one G x G matrix per token, a few tokens at a time.

``M_t = contract diag(SiLU(gate_t)) expand`` for all tokens of a piece is one product, and what it does to their states
is one batched product; nothing of [B, I, T, K] exists, and temporaries are as large as a piece.

Shape letters: B batch, T tokens, N = B T tokens of all sequences, H query heads, G key/value heads, K head size, I
position rank, X = G G entries of a token's matrix.
"""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tape_ds.kernels.linear_cross_entropy import add_product
from tape_ds.kernels.pair_modulus import restore_modulus, restore_modulus_backward
from tape_ds.kernels.position_mix_inputs import Inputs

# elements of the state that a CPU computes at a time: a megabyte in fp32, which fits its cache
CHUNK = 1 << 18
DEVICE_CHUNK = 1 << 24  # on any other device, where every piece costs a dozen launches


class _Tokens(NamedTuple):
    """A few tokens of all inputs in the arithmetic's dtype."""

    start: Tensor
    """[N, 1 or G, K]"""
    state: Tensor | None
    """[N, G, K]"""
    moved: Tensor | None
    """[N, H, K]"""
    attend: Tensor | None
    """[N, G, H], the same matrix for every token"""
    gate: Tensor | None
    """[N, I]"""
    silu: Tensor | None
    """[N, I], SiLU of the gate"""
    product: Tensor | None
    """[I, X]: entry (i, g G + h) is contract[g, i] expand[i, h], so ``silu @ product`` is every M_t."""

    def added(self, out: Tensor) -> Tensor:
        """``d + u`` [N, G, K], written to ``out``."""
        if self.moved is None or self.attend is None:
            return out.zero_() if self.state is None else out.copy_(self.state)
        if self.state is None:
            return torch.bmm(self.attend, self.moved, out=out)
        return torch.baddbmm(self.state, self.attend, self.moved, out=out)

    def matrices(self) -> Tensor | None:
        """M_t [N, G, G], where there is a feed-forward."""
        if self.silu is None or self.product is None:
            return None
        matrix_NX = self.silu @ self.product
        groups = round(self.product.shape[1] ** 0.5)
        return matrix_NX.unflatten(1, (groups, groups))

    def updated(self, matrix: Tensor | None, out: Tensor) -> Tensor:
        """Return the new deviation before its moduli are restored, written to ``out``; ``matrix`` is M_t, if there is
        one."""
        result = self.added(out)
        return result if matrix is None else result.baddbmm_(matrix, result + self.start)


def _flat(x: Tensor) -> Tensor:
    """[B, heads, T, K] -> [B T, heads, K], without a copy where memory is [B, T, heads, ...]."""
    return x.transpose(1, 2).flatten(0, 1)


def _as_met(weight: Tensor, activation: Tensor, wide: torch.dtype) -> Tensor:
    """Return a weight rounded to the other operand's dtype, for arithmetic in ``wide``."""
    return _in(weight.to(activation.dtype), wide)


def _in(x: Tensor, wide: torch.dtype) -> Tensor:
    """Return ``x.to(wide)``: for small tensors torch takes as long to find that nothing is to be done as to do it."""
    return x if x.dtype == wide else x.to(wide)


def product(inputs: Inputs, wide: torch.dtype) -> Tensor:
    """[I, X], see :class:`_Tokens`; there must be a feed-forward."""
    assert inputs.gate is not None and inputs.expand is not None and inputs.contract is not None
    expand_IG = _as_met(inputs.expand, inputs.gate, wide)
    contract_GI = _as_met(inputs.contract, inputs.gate, wide)
    return (contract_GI.T.unsqueeze(2) * expand_IG.unsqueeze(1)).flatten(1)


def _at(x: Tensor, place: slice | None) -> Tensor:
    """Return the tokens of a piece; None is all of them, which need no view."""
    return x if place is None else x[place]


def _chunks(
    inputs: Inputs, wide: torch.dtype, product_IX: Tensor | None
) -> Iterator[tuple[slice | None, _Tokens]]:
    """Yield all tokens of all sequences, piece by piece, each with its place among the N tokens."""
    batch, groups, tokens, width = inputs.sizes()
    start = _flat(inputs.start.expand(batch, -1, -1, -1))
    state = None if inputs.state is None else _flat(inputs.state)
    moved = None if inputs.moved is None else _flat(inputs.moved)
    gate = None if inputs.gate is None else inputs.gate.flatten(0, 1)
    attend = None
    if inputs.attend is not None and inputs.moved is not None:
        attend = _as_met(inputs.attend, inputs.moved, wide)

    def cut(place: slice | None, count: int) -> tuple[slice | None, _Tokens]:
        gate_NI = None if gate is None else _in(_at(gate, place), wide)
        of_piece = _Tokens(
            _in(_at(start, place), wide),
            None if state is None else _in(_at(state, place), wide),
            None if moved is None else _in(_at(moved, place), wide),
            None if attend is None else attend.expand(count, -1, -1),
            gate_NI,
            None if gate_NI is None else F.silu(gate_NI),
            product_IX,
        )
        return place, of_piece

    total = batch * tokens
    step = max(1, (CHUNK if start.device.type == "cpu" else DEVICE_CHUNK) // (groups * width))
    if total <= step:
        yield cut(None, total)
        return
    for first in range(0, total, step):
        place = slice(first, min(first + step, total))
        yield cut(place, place.stop - first)


def forward(inputs: Inputs, out_BGTK: Tensor, unit: bool) -> None:
    """Write the new deviation to ``out``, which must be laid out as ``position_mix_inputs.empty`` does."""
    wide = inputs.wide()
    out_NGK = _flat(out_BGTK)
    product_IX = None if inputs.gate is None else product(inputs, wide)
    for place, tokens in _chunks(inputs, wide, product_IX):
        out = _at(out_NGK, place)
        result = tokens.updated(
            tokens.matrices(), out if out.dtype == wide else torch.empty_like(out, dtype=wide)
        )
        if unit:
            result = restore_modulus(tokens.start, result)
        if result is not out:
            out.copy_(result)


def backward(grad: Tensor, inputs: Inputs, gradients: list[Tensor | None], unit: bool) -> None:
    """Write the gradients that have memory (``position_mix_inputs.empty_gradients``)."""
    wide = inputs.wide()
    d_state, d_moved, d_attend, d_gate, d_expand, d_contract = gradients
    product_IX = None if inputs.gate is None else product(inputs, wide)
    attend_sum: Tensor | None = None
    product_sum: Tensor | None = None
    weights = d_expand is not None or d_contract is not None
    grad_NGK = _flat(grad)
    for place, tokens in _chunks(inputs, wide, product_IX):
        d_out = _in(_at(grad_NGK, place), wide)
        matrix = tokens.matrices()
        if unit:
            deviation = tokens.updated(
                matrix, torch.empty_like(d_out, memory_format=torch.contiguous_format)
            )
            d_out = restore_modulus_backward(d_out, tokens.start, deviation)
        d_added = d_out
        if (
            matrix is not None
            and tokens.gate is not None
            and tokens.silu is not None
            and product_IX is not None
        ):
            d_added = torch.baddbmm(d_out, matrix.mT, d_out)
            if d_gate is not None or weights:
                x = tokens.added(
                    torch.empty_like(d_out, memory_format=torch.contiguous_format)
                ).add_(tokens.start)
                d_matrix_NX = torch.bmm(d_out, x.mT).flatten(1)
                if weights:
                    product_sum = add_product(product_sum, tokens.silu.T, d_matrix_NX)
                if d_gate is not None:
                    d_silu = d_matrix_NX @ product_IX.T
                    _at(d_gate.flatten(0, 1), place).copy_(
                        torch.ops.aten.silu_backward(d_silu, tokens.gate)
                    )
        if d_state is not None:
            _at(_flat(d_state), place).copy_(d_added)
        if d_moved is not None and tokens.attend is not None:
            _at(_flat(d_moved), place).copy_(torch.bmm(tokens.attend.mT, d_added))
        if d_attend is not None and tokens.moved is not None:
            of_piece = torch.bmm(d_added, tokens.moved.mT).sum(dim=0)
            attend_sum = of_piece if attend_sum is None else attend_sum.add_(of_piece)
    # there is a piece, also of no tokens
    if d_attend is not None and attend_sum is not None:
        d_attend.copy_(attend_sum)
    if product_sum is not None:
        split(product_sum, inputs, d_expand, d_contract)


def split(
    product_sum_IX: Tensor, inputs: Inputs, d_expand: Tensor | None, d_contract: Tensor | None
) -> None:
    """Return the gradients of the factors from that of their product [I, X]."""
    assert inputs.gate is not None and inputs.expand is not None and inputs.contract is not None
    expand_IG = _as_met(inputs.expand, inputs.gate, product_sum_IX.dtype)
    contract_GI = _as_met(inputs.contract, inputs.gate, product_sum_IX.dtype)
    sum_IGG = product_sum_IX.unflatten(1, (contract_GI.shape[0], -1))
    if d_expand is not None:
        d_expand.copy_((sum_IGG * contract_GI.T[:, :, None]).sum(dim=1))
    if d_contract is not None:
        d_contract.copy_((sum_IGG * expand_IG[:, None]).sum(dim=2).T)
