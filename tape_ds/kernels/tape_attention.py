"""TAPE's attention in Triton: one causal softmax for a value and the position state.

This file is the operator: what it accepts, its registration with ``torch.library`` (so that ``torch.compile``,
``torch.export`` and checkpointing pass through it) and what it derives from documents. The kernels are in
``tape_attention_forward`` and ``tape_attention_backward``.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size.
"""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from tape_ds.kernels import jit, tape_attention_backward, tape_attention_forward
from tape_ds.kernels.operators import operator
from tape_ds.kernels.strides import empty_rows, rows
from tape_ds.kernels.tape_attention_backward import Saved
from tape_ds.kernels.tape_attention_forward import ForwardCall, whole_blocks

WIDEST = 128  # largest head size


def why_not(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSK: Tensor, e_BGSK: Tensor | None) -> str | None:
    """Return why :func:`tape_attention` cannot take this call, or None."""
    if problem := jit.why_not(q_BHTK):
        return problem
    return "no position state" if e_BGSK is None else why_not_shapes(q_BHTK, k_BGSK, v_BGSK, e_BGSK)


def why_not_shapes(q_BHTK: Tensor, k_BGSK: Tensor, *values_BGSK: Tensor) -> str | None:
    """Return the problem of the tensors' shapes, or None; the value, and the position state if any, come last."""
    named = dict(zip("qkve", (q_BHTK, k_BGSK, *values_BGSK), strict=False))
    shapes = ", ".join(f"{name} {list(x.shape)}" for name, x in named.items())
    if any(x.ndim != 4 for x in named.values()):
        return f"{shapes}: all need 4 dimensions"
    batch, heads, _, width = q_BHTK.shape
    groups, keys = k_BGSK.shape[1:3]
    if any(x.shape != (batch, groups, keys, width) for x in (k_BGSK, *values_BGSK)):
        return f"{shapes} do not fit together"
    if groups == 0 or heads % groups:
        return f"{heads} query heads are not a multiple of {groups} key/value heads"
    if width % 2 or not 0 < width <= WIDEST:
        return f"head size {width} is not an even number up to {WIDEST}"
    for what in ("dtype", "device"):
        if len(found := {str(getattr(x, what)) for x in named.values()}) > 1:
            return f"{', '.join(named)} differ in {what}: {', '.join(sorted(found))}"
    for name, x in named.items():
        if x.stride(-1) != 1:
            return f"the last dimension of {name} is not contiguous"
    return None


def document_borders(document_ids_BS: Tensor) -> Tensor:
    """Document, its first and its last place, of every token: what kernels need to leave out whole blocks.

    Many layers share one mask: make this once and give it as ``document_ids``. It costs a sort, and no wait for the
    device.

    Args:
        document_ids_BS: integers; below 0 is padding. A document's tokens need not be neighbours.

    Returns:
        int32 [3, B, S]; padding has the empty range from S to -1.
    """
    keys = document_ids_BS.shape[-1]
    ordered_BS, order_BS = document_ids_BS.contiguous().sort(dim=-1, stable=True)
    if keys:
        ids_BS = document_ids_BS.contiguous()
        first_BS = order_BS.gather(-1, torch.searchsorted(ordered_BS, ids_BS))
        last_BS = order_BS.gather(-1, torch.searchsorted(ordered_BS, ids_BS, right=True) - 1)
    else:
        first_BS = last_BS = order_BS
    padding_BS = document_ids_BS < 0
    first_BS, last_BS = first_BS.masked_fill(padding_BS, keys), last_BS.masked_fill(padding_BS, -1)
    ids_BS = document_ids_BS.clamp(min=-1)
    return torch.stack([x.to(torch.int32) for x in (ids_BS, first_BS, last_BS)])


@operator("tape_ds::tape_attention", devices=("cpu", "cuda"))
def _forward(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    e_BGSK: Tensor,
    documents_3BS: Tensor | None,
    offset: int,
    scale: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    if problem := why_not(q_BHTK, k_BGSK, v_BGSK, e_BGSK):
        raise ValueError(f"tape_attention: {problem}")
    call = ForwardCall(offset, scale, documents_3BS)
    with torch.cuda.device_of(q_BHTK):
        return tape_attention_forward.forward(q_BHTK, k_BGSK, v_BGSK, e_BGSK, call)


@_forward.register_fake
def _(q_BHTK: Tensor, *others: Any) -> tuple[Tensor, Tensor, Tensor]:
    batch, heads, queries, _ = q_BHTK.shape
    lse_BHT = q_BHTK.new_empty((batch, heads, whole_blocks(queries)), dtype=torch.float32)
    return empty_rows(q_BHTK), empty_rows(q_BHTK), lse_BHT


@operator("tape_ds::tape_attention_backward", devices=("cpu", "cuda"))
def _backward(
    dout_BHTK: Tensor,
    dattended_BHTK: Tensor,
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    e_BGSK: Tensor,
    out_BHTK: Tensor,
    attended_BHTK: Tensor,
    lse_BHT: Tensor,
    documents_3BS: Tensor | None,
    offset: int,
    scale: float,
    deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    call = ForwardCall(offset, scale, documents_3BS)
    exact = deterministic or torch.are_deterministic_algorithms_enabled()
    saved = Saved(q_BHTK, k_BGSK, v_BGSK, e_BGSK, out_BHTK, attended_BHTK, lse_BHT)
    # ``sum`` hands back one number seen everywhere: rows() copies that
    with torch.cuda.device_of(q_BHTK):
        return tape_attention_backward.backward(
            rows(dout_BHTK), rows(dattended_BHTK), saved, call, exact
        )


@_backward.register_fake
def _(
    dout_BHTK: Tensor, dattended_BHTK: Tensor, q_BHTK: Tensor, k_BGSK: Tensor, *_: Any
) -> tuple[Tensor, ...]:
    return empty_rows(q_BHTK), empty_rows(k_BGSK), empty_rows(k_BGSK), empty_rows(k_BGSK)


def _keep(ctx: FunctionCtx, inputs: tuple, output: tuple[Tensor, Tensor, Tensor]) -> None:
    ctx.options = inputs[5:]  # type: ignore[attr-defined]
    ctx.save_for_backward(*inputs[:4], *output, inputs[4])
    ctx.mark_non_differentiable(output[2])


def _differentiate(
    ctx: FunctionCtx, dout_BHTK: Tensor, dattended_BHTK: Tensor, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    gradients = _backward(dout_BHTK, dattended_BHTK, *ctx.saved_tensors, *ctx.options)  # type: ignore[attr-defined]
    return *gradients, None, None, None, None


_forward.register_autograd(_differentiate, setup_context=_keep)


def tape_attention(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSK: Tensor,
    e_BGSK: Tensor,
    *,
    offset: int | None = None,
    document_ids: Tensor | None = None,
    scale: float | None = None,
    deterministic: bool = False,
) -> tuple[Tensor, Tensor]:
    """Causal softmax attention of a value and a position state, without anything of size T x S in memory.

    Args:
        q_BHTK: queries, K even and at most 128. Any strides whose last is 1; so for k, v and e, which may be parts of
            one tensor, or repeat themselves (a state shared by all heads, expanded: its gradient has the full shape).
        k_BGSK: keys; query head h reads key/value head h // (H / G), which is never repeated in memory.
        v_BGSK: values.
        e_BGSK: position states, in the value's dtype.
        offset: position of the first query on the key axis; S - T if None. Query t sees no key after offset + t.
        document_ids: integers [B, S], below 0 is padding. Query t is at offset + t and sees its document only;
            padding sees nothing and its memory is never used, whatever it holds. Contiguous documents cost only
            their own blocks. Or what :func:`document_borders` made of the ids, for all layers at once.
        scale: factor on the scores, above 0; K^-1/2 if None.
        deterministic: compute dQ in a separate kernel instead of by atomic sums, whose order varies; also on under
            ``torch.use_deterministic_algorithms``.

    Returns:
        A v and A e, [B, H, T, K] in the inputs' dtype, laid out as [B, T, H, K]; 0 for a query without any key.
    """
    if problem := why_not(q_BHTK, k_BGSK, v_BGSK, e_BGSK):
        raise ValueError(f"tape_attention: {problem}")
    scale = q_BHTK.shape[-1] ** -0.5 if scale is None else scale
    offset = k_BGSK.shape[2] - q_BHTK.shape[2] if offset is None else offset
    if not scale > 0:
        raise ValueError(f"tape_attention: scale {scale} is not above 0")
    documents_3BS = document_ids
    if document_ids is not None:
        ids_shape = (q_BHTK.shape[0], k_BGSK.shape[2])
        if document_ids.shape not in (ids_shape, (3, *ids_shape)):
            raise ValueError(
                f"tape_attention: document_ids {list(document_ids.shape)} are not {list(ids_shape)}"
            )
        if document_ids.ndim == 2:
            documents_3BS = document_borders(document_ids)
    return _forward(q_BHTK, k_BGSK, v_BGSK, e_BGSK, documents_3BS, offset, scale, deterministic)[:2]
