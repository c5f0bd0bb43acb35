"""One attention function for every positional encoding: causal softmax whose value may be wider than its key.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, V value width.

Document boundaries come from :class:`DocumentLayout`. Position ids are never read here: a jump in them (PoSE) is no
boundary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tape_ds.attention import backends
from tape_ds.attention.call import complete
from tape_ds.attention.document_layout import DocumentLayout
from tape_ds.attention.plain import attention_with_weights
from tape_ds.attention.score_bias import ContentBias, ScoreBias


def attend(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    values: Sequence[Tensor],
    *,
    layout: DocumentLayout | None = None,
    offset: int | Tensor | None = None,
    scale: float | None = None,
    score_bias: ScoreBias | ContentBias | None = None,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Tensor | None = None,
    backend: str = "auto",
) -> tuple[Tensor, ...]:
    """Attention of T queries over S keys, query t over those up to its own place ``offset + t``; without dropout.

    Args:
        q_BHTK: queries; H is a multiple of G (grouped-query attention, keys and values are not repeated).
        k_BGSK: keys.
        values: one or more [B, G, S, V], of any widths V >= 1, that share one softmax.
        layout: which document every key belongs to, and which keys are padding; of the keys up to the last query.
            None: one document, no padding.
        offset: place of the first query on the key axis; default S - T. Keys after the last query (the unused end of
            a static cache) are never seen.
        scale: factor on the scores; default K ** -0.5.
        score_bias: what is added to the scaled scores; never held for all queries at once.
        window: the most keys that a query sees, its own and those before it on the key axis; None: all before it.
        softcap: scaled scores become ``softcap * tanh(scores / softcap)``.
        sinks: [H], one more score for each query head that takes part in the softmax and has no value.
        backend: "auto" or a name of :func:`available`; the environment variable ``TAPE_DS_ATTENTION`` overrides it.

    Returns:
        For each value [B, H, T, V]; 0 for a query that may see no key.

    Raises:
        ValueError: unknown backend, one that cannot compute this call here, queries outside the key axis,
            borders of other sequences, a soft cap or sinks together with a bias, or an input so long that the only way
            left would hold the whole T x S matrix.
    """
    call = complete(
        q_BHTK, k_BGSK, tuple(values), layout, offset, scale, score_bias, window, softcap, sinks
    )
    return backends.run(backends.choose(backend, call), call)


def attend_with_weights(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    values: Sequence[Tensor],
    *,
    offset: int | Tensor | None = None,
    **arguments: Any,
) -> tuple[tuple[Tensor, ...], Tensor]:
    """:func:`attend` by the ``reference`` backend, together with its weights [B, H, T, S] (fp32) without the sinks'."""
    wide = torch.cat(list(values), dim=-1)
    offset = k_BGSK.shape[2] - q_BHTK.shape[2] if offset is None else offset
    call = complete(q_BHTK, k_BGSK, (wide,), offset=offset, **arguments)
    out, weights = attention_with_weights(call)
    # keys in front of the first query's window
    if call.offset is not offset and (unseen := int(offset - call.offset)):
        weights = F.pad(weights, (unseen, 0))
    return out.split([value.shape[-1] for value in values], dim=-1), weights
