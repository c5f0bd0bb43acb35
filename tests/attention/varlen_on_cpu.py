"""``torch.nn.attention.varlen`` on a CPU, for tests: its operators answered by plain matrices, document by document.

torch has kernels for CUDA alone. What is registered here computes their definition (one width, bottom-right causal
mask, grouped heads), checks what they check, and says how often it was called.
"""

import itertools

import torch
from torch.nn.attention import varlen

CALLS = []
"""Documents of every call since the list was last cleared."""


def documents_of(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k):
    assert cu_seq_q.dtype == cu_seq_k.dtype == torch.int32 and cu_seq_q.shape == cu_seq_k.shape
    assert (
        query.shape[-1] == key.shape[-1] == value.shape[-1]
        and query.stride(-1) == value.stride(-1) == 1
    )
    queries, keys = cu_seq_q.tolist(), cu_seq_k.tolist()
    assert (queries[0], queries[-1], keys[0], keys[-1]) == (0, len(query), 0, len(key)), (
        "tokens of no document"
    )
    assert max_q >= max(cu_seq_q.diff().tolist(), default=0) and max_k >= max(
        cu_seq_k.diff().tolist(), default=0
    )
    return list(zip(itertools.pairwise(queries), itertools.pairwise(keys), strict=True))


def _weights(q_THK, k_SGK, scale, window, softcap=0.0):
    """[H, T, S] of one document."""
    k_SHK = k_SGK.repeat_interleave(q_THK.shape[1] // k_SGK.shape[1], dim=1)
    scores = torch.einsum("thk,shk->hts", q_THK, k_SHK) * (
        q_THK.shape[-1] ** -0.5 if scale is None else scale
    )
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    (before, after), everything = window, torch.ones(scores.shape[1:], dtype=torch.bool)
    past = scores.shape[2] - scores.shape[1]
    if after >= 0:
        scores = scores.masked_fill(everything.triu(past + after + 1), -torch.inf)
    if before >= 0:
        scores = scores.masked_fill(everything.tril(past - before - 1), -torch.inf)
    return scores.softmax(-1)


def attention(q, k, v, scale, window, softcap=0.0):
    """Of one document; a window of -1 has no end."""
    v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
    return torch.einsum("hts,shk->thk", _weights(q, k, scale, window, softcap), v)


def _forward(
    query,
    key,
    value,
    cu_seq_q,
    cu_seq_k,
    max_q,
    max_k,
    is_causal=False,
    scale=None,
    window=None,
    *_,
    **__,
):
    assert is_causal == (list(window) == [-1, 0])
    out = torch.full_like(query, torch.nan)
    CALLS.append(len(cu_seq_q) - 1)
    for (a, b), (c, d) in documents_of(query, key, value, cu_seq_q, cu_seq_k, max_q, max_k):
        out[a:b] = attention(query[a:b], key[c:d], value[c:d], scale, window)
    return out, query.new_zeros(query.shape[1], len(query)), torch.zeros(2, dtype=torch.uint64)


def _backward(
    grad,
    query,
    key,
    value,
    out,
    lse,
    cu_q,
    cu_k,
    max_q,
    max_k,
    is_causal,
    rng,
    scale=None,
    window=None,
):
    gradients = [torch.zeros_like(x) for x in (query, key, value)]
    copies, scale = (
        query.shape[1] // key.shape[1],
        query.shape[-1] ** -0.5 if scale is None else scale,
    )
    for (a, b), (c, d) in documents_of(query, key, value, cu_q, cu_k, max_q, max_k):
        q, do = query[a:b], grad[a:b]
        k, v = (x[c:d].repeat_interleave(copies, dim=1) for x in (key, value))
        p = _weights(q, key[c:d], scale, window)
        dp = torch.einsum("thk,shk->hts", do, v)
        ds = p * (dp - (dp * p).sum(-1, keepdim=True)) * scale
        gradients[0][a:b] = torch.einsum("hts,shk->thk", ds, k)
        per_head = torch.einsum("hts,thk->shk", ds, q), torch.einsum("hts,thk->shk", p, do)
        for gradient, own in zip(gradients[1:], per_head, strict=True):
            gradient[c:d] = own.unflatten(1, (-1, copies)).sum(2)
    return tuple(gradients)


varlen._varlen_attn.register_kernel("cpu")(_forward)
varlen._varlen_attn_backward.register_kernel("cpu")(_backward)
