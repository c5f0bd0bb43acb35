"""The plain form of every fused operation: slow, at least fp32 throughout, and the truth in every numeric test.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, V value width, I position
rank, D hidden size.
"""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F


def upcast(x: Tensor) -> Tensor:
    """``x`` in fp32, or untouched where it is already wider."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def attention(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSV: Tensor,
    allowed_BTS: Tensor,
    scale: float,
    bias_BHTS: Tensor | Callable[[Tensor], Tensor] | None = None,
    softcap: float | None = None,
    sinks_H: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Softmax attention whose value may be wider than its key.

    Args:
        q_BHTK: queries.
        k_BGSK: keys; query head h reads key/value head h // (H / G).
        v_BGSV: values, any width V.
        allowed_BTS: True where a query may see a key; a query without any such key yields 0.
        scale: factor on the scores.
        bias_BHTS: added to the scaled scores; B and H may be 1. Or a function of these that gives it.
        softcap: see :func:`capped`.
        sinks_H: see :func:`softmax`.

    Returns:
        The output [B, H, T, V] in the value's dtype, and the weights [B, H, T, S] in fp32 (fp64 for fp64 input).
    """
    group = q_BHTK.shape[1] // k_BGSK.shape[1]
    q, k, v = (upcast(x) for x in (q_BHTK, k_BGSK, v_BGSV))
    k_BHSK, v_BHSV = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
    allowed_B1TS = allowed_BTS[:, None]
    scores_BHTS = capped((q @ k_BHSK.transpose(-1, -2)) * scale, softcap)
    if bias_BHTS is not None:
        scores_BHTS = scores_BHTS + upcast(
            bias_BHTS if isinstance(bias_BHTS, Tensor) else bias_BHTS(scores_BHTS)
        )
    scores_BHTS = scores_BHTS.masked_fill(~allowed_B1TS, torch.finfo(scores_BHTS.dtype).min)
    weights_BHTS = softmax(scores_BHTS, sinks_H).masked_fill(~allowed_B1TS, 0.0)
    return (weights_BHTS @ v_BHSV).to(v_BGSV.dtype), weights_BHTS


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Squeeze scores smoothly into ``-softcap .. softcap`` (Gemma 2)."""
    return scores if softcap is None else torch.tanh(scores / softcap) * softcap


def softmax(scores_BHTS: Tensor, sinks_H: Tensor | None) -> Tensor:
    """Softmax over the keys and each head's sink, a score without a value (gpt-oss); the sink's weight is left out."""
    if sinks_H is None:
        return scores_BHTS.softmax(dim=-1)
    sinks_BHT1 = sinks_H.to(scores_BHTS.dtype)[:, None, None].expand(*scores_BHTS.shape[:3], 1)
    return torch.cat((scores_BHTS, sinks_BHT1), dim=-1).softmax(dim=-1)[..., :-1]


def rotate(x_BHTK: Tensor, state_BGTK: Tensor) -> Tensor:
    """Rotate heads by a position state ``[cos | sin]``: pair (j, j + K/2) by the angle in column j.

    Args:
        x_BHTK: queries or keys.
        state_BGTK: cosines in the first K/2 columns, sines in the last; B or G may be 1 (shared), and H must be a
            multiple of G: head h is rotated by the state of head h // (H / G).
    """
    batch, heads, tokens, width = x_BHTK.shape
    groups = state_BGTK.shape[1]
    x = upcast(x_BHTK).reshape(batch, groups, heads // groups, tokens, width)
    cos, sin = upcast(state_BGTK)[:, :, None].chunk(2, dim=-1)
    real, imaginary = x.chunk(2, dim=-1)
    rotated = torch.cat((real * cos - imaginary * sin, imaginary * cos + real * sin), dim=-1)
    return rotated.reshape(x_BHTK.shape).to(x_BHTK.dtype)


def rotate_whole(x_BHTK: Tensor, state_BGTC: Tensor) -> Tensor:
    """:func:`rotate` by a state of 2 K columns, whose halves need not repeat themselves: ``x cos + rotate_half(x) sin``
    with K cosines and K sines."""
    batch, heads, tokens, width = x_BHTK.shape
    groups = state_BGTC.shape[1]
    x = upcast(x_BHTK).reshape(batch, groups, heads // groups, tokens, width)
    cos, sin = upcast(state_BGTC)[:, :, None].chunk(2, dim=-1)
    real, imaginary = x.chunk(2, dim=-1)
    turned = x * cos + torch.cat((-imaginary, real), dim=-1) * sin
    return turned.reshape(x_BHTK.shape).to(x_BHTK.dtype)


def position_mix(
    state_BGTK: Tensor, gate_BTI: Tensor, expand_IG: Tensor, contract_GI: Tensor
) -> Tensor:
    """``W_down diag(SiLU(g)) W_up e``, one rank at a time as the paper writes it (Section 3.3, feed-forward part).

    Returns:
        The update of the state [B, G, T, K]; the gate is what ``W_x y`` gives, before its SiLU.
    """
    up_BITK = torch.einsum("ig,bgtk->bitk", upcast(expand_IG), upcast(state_BGTK))
    gated_BITK = F.silu(upcast(gate_BTI)).transpose(1, 2)[..., None] * up_BITK
    return torch.einsum("gi,bitk->bgtk", upcast(contract_GI), gated_BITK).to(state_BGTK.dtype)


def position_update(
    start_B1TK: Tensor,
    state_BGTK: Tensor | None,
    attended_BHTK: Tensor | None,
    attend_GH: Tensor | None,
    gate_BTI: Tensor | None,
    expand_IG: Tensor | None,
    contract_GI: Tensor | None,
    unit: bool = False,
) -> Tensor:
    """Return a layer's whole update of the deviation: ``d + u + W_down diag(SiLU(g)) W_up (start + d + u)``, u = W_att
    A e.

    Args:
        start_B1TK: where the state started; B may be 1 here, and heads may be shared.
        state_BGTK: the deviation so far; None is zero.
        attended_BHTK: ``A e``; None, with ``attend_GH``, leaves that update out.
        attend_GH: W_att.
        gate_BTI: before its SiLU; None, with the two matrices, leaves the feed-forward out.
        expand_IG: W_up.
        contract_GI: W_down.
        unit: every pair (cos_j, sin_j) of the new state gets the modulus of its start back.

    Returns:
        The new deviation [B, G, T, K], not rounded: in fp32 or wider.
    """
    added_BGTK = torch.zeros_like(upcast(start_B1TK)) if state_BGTK is None else upcast(state_BGTK)
    if attended_BHTK is not None and attend_GH is not None:
        added_BGTK = added_BGTK + torch.einsum(
            "gh,bhtk->bgtk", upcast(attend_GH), upcast(attended_BHTK)
        )
    if gate_BTI is not None and expand_IG is not None and contract_GI is not None:
        state = upcast(start_B1TK) + added_BGTK
        full_BGTK = state.expand(gate_BTI.shape[0], contract_GI.shape[0], -1, -1)
        added_BGTK = added_BGTK + position_mix(full_BGTK, gate_BTI, expand_IG, contract_GI)
    if not unit:
        return added_BGTK
    start, state = (
        torch.complex(*x.chunk(2, dim=-1))
        for x in (upcast(start_B1TK), upcast(start_B1TK) + added_BGTK)
    )
    turned = state * start.abs() / state.abs()
    return torch.cat((turned.real, turned.imag), dim=-1) - upcast(start_B1TK)
