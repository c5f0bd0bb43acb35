"""Shifted groups as a mask, pair by pair: what attention within groups has to equal."""

import torch


def same_group(s, t, group, shifted):
    """Whether two places lie in one group; half a group further on, the shifted half's groups are the plain ones."""
    half = group // 2 if shifted else 0
    return (s + half) // group == (t + half) // group


def allowed(heads, length, group, documents=None, batch=1):
    """bool [B, H, T, S], pair by pair."""
    mask = torch.zeros(batch, heads, length, length, dtype=torch.bool)
    for b in range(batch):
        for h in range(heads):
            for t in range(length):
                for s in range(t + 1):
                    one = documents is None or documents[b][s] == documents[b][t] >= 0
                    mask[b, h, t, s] = one and same_group(
                        s, t, group, shifted=h >= heads - heads // 2
                    )
    return mask


def masked(q, k, v, mask, scale=None):
    """Dense attention under a mask, keys and values repeated; 0 for a query without a key."""
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))
    scores = (q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)).masked_fill(
        ~mask, -1e30
    )
    return scores.softmax(-1).masked_fill(~mask, 0.0) @ v


def in_groups_by_mask(q, k, v, *, group, scale=None, layout=None, backend="auto"):
    """The model's call, answered by an explicit mask."""
    assert scale in (None, q.shape[-1] ** -0.5)
    rows = None if layout is None else layout.ids_BS.tolist()
    return masked(q, k, v, allowed(q.shape[1], q.shape[2], group, rows, len(q) if rows else 1))
