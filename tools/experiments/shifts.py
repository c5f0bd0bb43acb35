"""Change of a forward pass when its text is moved along the positions: Table 8 of TAPE's paper (arXiv:2501.00712).

A text is moved in two ways. *Add tokens* puts a few BOS in front of it: there is something new to attend to, and its
effect on the first layers reaches the states of the others. *Shift ids* counts positions from a later number: a model
that is invariant under shifts computes the same up to rounding.

The paper defines neither number. Here, per layer and for the text's own tokens only:

- *Attention.* The L1 distance ``sum_m |A'_nm - A_nm|`` between a query's weights before and after, 0 to 2, as the mean
  over heads and queries; and the mean of ``|A'_nm - A_nm|`` over heads and pairs of a query and a key it may see.
  Weights on added tokens are left out, so a row no longer sums to 1, which is a change in itself: each number is also
  computed with the rows divided by their sum (*renormalised*).
- *Positions.* ``|P' - P|`` in per cent of ``|P|``, both as Frobenius norms over heads and those pairs, where P is the
  layer's :class:`tape_ds.scoring.inspection.PositionMap`: dot products of states, or the bias on scores.
- *Logits.* Mean and largest ``|l' - l|``, and the norm of the difference in per cent of that of ``l``.

Shape letters: T tokens of the text, S tokens with those in front, H heads, V vocabulary.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tape_ds.models.loading import extendable
from tape_ds.scoring.inspection import LayerView, inspect

KEPT_BYTES = 1 << 30
"""Limit of the attention weights that are kept for comparison; more layers are compared in further forward passes."""


def measure(
    model: extendable.Model, ids_T: Tensor, layers: Sequence[int], shift: int, token: int
) -> dict[str, dict[str, Any]]:
    """Return the changes of one text.

    Args:
        model: in evaluation mode.
        ids_T: int64 [T].
        layers: 1 is the first.
        shift: tokens that are added, positions that are skipped.
        token: the added one.

    Returns:
        By treatment: ``layers``, figures by the number of the layer, and ``logits``.
    """
    treatments = {"add_tokens": (shift, 0), "shift_ids": (0, shift)}  # added tokens, first position
    weight_bytes = max(4, model.dtype.itemsize)  # weights are fp32 at least
    fitting = max(1, KEPT_BYTES // (model.config.num_attention_heads * len(ids_T) ** 2 * weight_bytes))
    numbers = sorted(set(layers))
    found: dict[str, dict[str, Any]] = {name: {"layers": {}} for name in treatments}

    before: dict[int, LayerView] = {}

    def keep(view: LayerView) -> None:
        before[view.number] = view

    def compare(changes: dict[int, Any], added: int, view: LayerView) -> None:
        changes[view.number] = layer_changes(before[view.number], view, added)

    for at in range(0, len(numbers), fitting):
        before.clear()
        some = numbers[at : at + fitting]
        logits_TV = inspect(model, ids_T, some, keep)
        for name, (added, offset) in treatments.items():
            moved_S = torch.cat((ids_T.new_full((added,), token), ids_T))
            positions_S = torch.arange(len(moved_S)) + offset
            moved_SV = inspect(model, moved_S, some, partial(compare, found[name]["layers"], added), positions_S)
            difference_TV = moved_SV[added:] - logits_TV
            found[name]["logits"] = {
                "mean": float(difference_TV.abs().mean(dtype=torch.float64)),
                "largest": float(difference_TV.abs().max()),
                "relative_percent": relative_percent(difference_TV, logits_TV),
            }
    return found


def layer_changes(before: LayerView, after: LayerView, added: int) -> dict[str, float | None]:
    """Return the figures of one layer, which saw ``added`` more tokens in front ``after``."""
    kept_HTT = renormalised_HTT = after.weights_HTS[:, added:, added:]
    if added:
        renormalised_HTT = kept_HTT / kept_HTT.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(kept_HTT.dtype).tiny)
    figures: dict[str, float | None] = {}
    for name, weights_HTT in (("", kept_HTT), ("_renormalised", renormalised_HTT)):
        heads, tokens, _ = weights_HTT.shape
        total = float((weights_HTT - before.weights_HTS).abs().sum(dtype=torch.float64))
        figures[f"attention_l1{name}"] = total / (heads * tokens)
        figures[f"attention_mean{name}"] = total / (heads * tokens * (tokens + 1) / 2)
    figures["positions_percent"] = None
    if before.positions is not None and after.positions is not None:
        whole = before.positions.matrix().tril()
        change = after.positions.matrix()[:, added:, added:].tril() - whole
        figures["positions_percent"] = relative_percent(change, whole)
    return figures


def relative_percent(difference: Tensor, whole: Tensor) -> float:
    """Return one Frobenius norm in per cent of another: 0 without a change, infinite if ``whole`` is 0."""
    changed, size = (float(torch.linalg.vector_norm(each, dtype=torch.float64)) for each in (difference, whole))
    if changed == 0:
        return 0.0
    return 100 * changed / size if size else math.inf


def mean(measured: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean over texts of what :func:`measure` returned; of ``largest``, the largest."""
    texts = list(measured)
    means: dict[str, Any] = {}
    for key, value in texts[0].items():
        values = [text[key] for text in texts]
        if isinstance(value, Mapping):
            means[key] = mean(values)
        elif value is None:
            means[key] = None
        else:
            means[key] = max(values) if key == "largest" else sum(values) / len(values)
    return means
