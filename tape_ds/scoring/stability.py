"""How much of a forward changes when a text is moved along the positions: Table 8 of TAPE's paper (arXiv:2501.00712).

A text is moved in two ways. *Add tokens* puts a few BOS in front of it: there is something new to attend to, and what
the first layers make of it reaches the states of the others. *Shift ids* counts its positions from a few on: nothing
but the numbers is new, and a model that is invariant under shifts computes the same up to rounding.

The paper says of neither number how it is taken. Here, per layer and for the text's own tokens only:

- *Attention.* The L1 distance ``sum_m |A'_nm - A_nm|`` between a query's weights before and after, 0 to 2, as the mean
  over heads and queries; and the mean of ``|A'_nm - A_nm|`` over heads and pairs of a query and a key it may see.
  Weights on added tokens are left out. What is left of a row then no longer sums to 1, which is a change of its own:
  each number is also taken with the rows divided by their sum (*renormalised*).
- *Positions.* ``|P' - P|`` as a share of ``|P|``, in percent, both as Frobenius norms over heads and those pairs, where
  P is the layer's :class:`tape_ds.scoring.inspection.PositionMap`: dot products of states, or the bias on scores.
- *Logits.* Mean and largest ``|l' - l|``, and the norm of the difference as a share of that of ``l``, in percent.

Shape letters: T tokens of the text, S tokens with those in front, H heads, V vocabulary.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tape_ds.models.loading import extendable
from tape_ds.scoring.inspection import LayerView, PositionMap, inspect

KEPT_BYTES = 1 << 30
"""Of attention weights that wait to be compared: layers beyond are compared in further forwards."""

Figures = dict[str, float | None]


@dataclass(frozen=True)
class Treatment:
    """One way to move a text."""

    name: str
    added: int
    """Tokens in front of it."""
    offset: int
    """Position id of the first token."""


def treatments(shift: int) -> tuple[Treatment, Treatment]:
    """Table 8's two."""
    return Treatment("add_tokens", shift, 0), Treatment("shift_ids", 0, shift)


def measure(
    model: extendable.Model, ids_T: Tensor, layers: Sequence[int], shift: int, token: int
) -> dict[str, dict[str, Any]]:
    """Return what changes of one text.

    Args:
        model: in evaluation mode.
        ids_T: int64 [T].
        layers: 1 is the first.
        shift: tokens that are added, positions that are skipped.
        token: what is added.

    Returns:
        By treatment: ``layers``, the figures of each by its number, and ``logits``, theirs.
    """
    heads = model.config.num_attention_heads
    weight_bytes = max(4, model.dtype.itemsize)  # weights are fp32 at least
    fitting = max(1, KEPT_BYTES // (heads * len(ids_T) ** 2 * weight_bytes))
    wanted = sorted(set(layers))
    found: dict[str, dict[str, Any]] = {each.name: {"layers": {}} for each in treatments(shift)}
    for at in range(0, len(wanted), fitting):
        _compare(model, ids_T, wanted[at : at + fitting], shift, token, found)
    return found


def _compare(
    model: extendable.Model, ids_T: Tensor, layers: Sequence[int], shift: int, token: int, found: dict[str, Any]
) -> None:
    """Add the figures of these layers, from one forward of the text and one for each treatment."""
    before: dict[int, LayerView] = {}
    logits_TV = inspect(model, ids_T, layers, lambda view: before.update({view.number: view}))
    for treatment in treatments(shift):
        own = found[treatment.name]

        def compare(view: LayerView, own: dict[str, Any] = own, added: int = treatment.added) -> None:
            own["layers"][view.number] = layer_changes(before[view.number], view, added)

        moved_S = torch.cat((ids_T.new_full((treatment.added,), token), ids_T))
        places_S = torch.arange(len(moved_S)) + treatment.offset
        moved_SV = inspect(model, moved_S, layers, compare, places_S)
        own["logits"] = logit_changes(logits_TV, moved_SV[treatment.added :])


def layer_changes(before: LayerView, after: LayerView, added: int) -> Figures:
    """Return the figures of one layer, of which ``after`` saw ``added`` tokens more in front."""
    kept_HTT = renormalised_HTT = after.weights_HTS[:, added:, added:]
    if added:
        renormalised_HTT = kept_HTT / kept_HTT.sum(dim=-1, keepdim=True).clamp_min(torch.finfo(kept_HTT.dtype).tiny)
    figures: Figures = {}
    for name, weights_HTT in (("", kept_HTT), ("_renormalised", renormalised_HTT)):
        heads, tokens, _ = weights_HTT.shape
        total = float((weights_HTT - before.weights_HTS).abs().sum(dtype=torch.float64))
        figures[f"attention_l1{name}"] = total / (heads * tokens)
        figures[f"attention_mean{name}"] = total / (heads * tokens * (tokens + 1) / 2)
    figures["positions_percent"] = _position_change(before.positions, after.positions, added)
    return figures


def _position_change(before: PositionMap | None, after: PositionMap | None, added: int) -> float | None:
    """None where the layers know no positions."""
    if before is None or after is None:
        return None
    whole = before.matrix().tril()
    return relative_percent(after.matrix()[:, added:, added:].tril() - whole, whole)


def logit_changes(before_TV: Tensor, after_TV: Tensor) -> Figures:
    """Return the figures of logits."""
    difference_TV = after_TV - before_TV
    return {
        "mean": float(difference_TV.abs().mean(dtype=torch.float64)),
        "largest": float(difference_TV.abs().max()),
        "relative_percent": relative_percent(difference_TV, before_TV),
    }


def relative_percent(difference: Tensor, whole: Tensor) -> float:
    """Return one Frobenius norm as a share of another; 0 where nothing changes, infinite where there was nothing."""
    changed, size = (float(torch.linalg.vector_norm(each, dtype=torch.float64)) for each in (difference, whole))
    if changed == 0:
        return 0.0
    return 100 * changed / size if size else math.inf


def mean(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the mean over texts of what :func:`measure` found of each; of ``largest``, the largest."""
    texts = list(found)
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
