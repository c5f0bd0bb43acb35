"""One attention function for every positional encoding: causal softmax whose value may be wider than its key.

Shape letters: B batch, T queries, S keys, H query heads, G key/value heads, K head size, V value width.

``attend`` is the only place that turns ``document_ids`` into masks. Position ids are never read here: a jump in them
(PoSE) is not a border, and a border is only what the collator says it is.
"""

from torch import Tensor

from tape_ds.model.attention.backends import available, missing, problems, requested
from tape_ds.model.attention.backends import choose as _choose
from tape_ds.model.attention.backends import run as _run
from tape_ds.model.attention.call import complete, documents_of
from tape_ds.model.attention.plain import attention_with_weights
from tape_ds.model.score_bias import ScoreBias

__all__ = ["attend", "attend_with_weights", "available", "documents_of", "missing", "problems", "requested"]


def attend(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSV: Tensor,
    *,
    causal: bool = True,
    document_ids: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    offset: int | Tensor | None = None,
    scale: float | None = None,
    score_bias: ScoreBias | None = None,
    backend: str = "auto",
) -> Tensor:
    """Attention of T queries over S keys; without dropout.

    Args:
        q_BHTK: queries; H is a multiple of G (grouped-query attention, keys and values are repeated by nobody).
        k_BGSK: keys.
        v_BGSV: values, of any width V >= 1.
        causal: query t sees the keys up to its own place ``offset + t``.
        document_ids: integers [B, S]: a query sees only keys of its own document; -1 marks padding, which sees
            nothing and is seen by nobody, whatever it contains (NaN included). Queries stand at
            ``offset .. offset + T`` of the key axis. None: one document, no padding.
        cu_seqlens: the same for one row of packed documents, as FlashAttention's varlen functions take it, see
            :func:`documents_of`.
        offset: place of the first query on the key axis; default S - T. Keys behind the last query (the unused end of
            a static cache) are never seen by a causal query.
        scale: factor on the scores; default K ** -0.5.
        score_bias: what is added to the scaled scores; never held for all queries at once.
        backend: "auto" or a name of :func:`available`; the environment variable ``TAPE_DS_ATTENTION`` overrides it.

    Returns:
        [B, H, T, V]; 0 for a query that may see no key.

    Raises:
        ValueError: unknown backend, one that cannot compute this call here, queries that stand outside the key axis,
            ``cu_seqlens`` beside ``document_ids`` or for several rows, or an input so long that the only way left would
            hold the whole T x S matrix.
    """
    if cu_seqlens is not None:
        if document_ids is not None or k_BGSK.shape[0] != 1:
            raise ValueError("cu_seqlens packs the documents of one row: give it alone, or document_ids for several")
        document_ids = documents_of(cu_seqlens, k_BGSK.shape[2])
    call = complete(q_BHTK, k_BGSK, v_BGSV, causal, document_ids, offset, scale, score_bias)
    return _run(_choose(backend, call), call)


def attend_with_weights(
    q_BHTK: Tensor,
    k_BGSK: Tensor,
    v_BGSV: Tensor,
    *,
    causal: bool = True,
    document_ids: Tensor | None = None,
    offset: int | Tensor | None = None,
    scale: float | None = None,
    score_bias: ScoreBias | None = None,
) -> tuple[Tensor, Tensor]:
    """:func:`attend` by the ``reference`` backend, together with its weights [B, H, T, S] (fp32)."""
    return attention_with_weights(complete(q_BHTK, k_BGSK, v_BGSV, causal, document_ids, offset, scale, score_bias))
