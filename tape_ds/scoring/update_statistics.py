"""What trained position updates do, layer by layer: how far the state has moved, which way, and what it was moved by.

Seen on one text, in one forward whose attention is written out.
"""

from typing import NamedTuple

from torch import Tensor

from tape_ds.models.llama import TapeForCausalLM
from tape_ds.scoring.causal_lm import evaluating
from tape_ds.scoring.inspection import LayerView, inspect


class UpdateStatistics(NamedTuple):
    """Of the state as each layer reads it, a number for each layer; None where layers have nothing to say yet."""

    deviation: list[float]
    """|d| / |e|, as norms over all tokens, heads and columns; e = start + d."""
    along_own: list[float | None]
    """Share of |d|^2 that lies along the token's own pairs (cos_j, sin_j) of e: it lengthens or shortens them, which
    rescales scores, where the rest turns them."""
    first_token: list[float]
    """Weight of the first token in ``A e``, the mean over heads and all queries but the first."""


def measure(model: TapeForCausalLM, ids_T: Tensor, positions_T: Tensor | None = None) -> UpdateStatistics:
    """Measure on one text of at least two tokens, in evaluation mode whatever mode the model is in.

    Args:
        model: one whose layers keep a state of cosines and sines.
        ids_T: int64 [T].
        positions_T: position ids [T]; default: from 0.

    Raises:
        UserError: the environment asks for another attention than the one with weights.
    """
    found = UpdateStatistics([], [], [])

    def visit(view: LayerView) -> None:
        found.first_token.append(view.weights_HTS[:, 1:, 0].mean().item())
        if view.start is None or view.deviation is None:
            found.deviation.append(0.0)
            found.along_own.append(None)
            return
        d = view.deviation.float()
        e = view.start.float() + d
        found.deviation.append((d.norm() / e.norm()).item())
        d_pairs, e_pairs = (x.unflatten(-1, (2, -1)) for x in (d, e))
        along = (d_pairs * e_pairs).sum(-2) / e_pairs.norm(dim=-2).clamp_min(1e-12)
        squares = d.square().sum()
        found.along_own.append((along.square().sum() / squares).item() if squares else None)

    with evaluating(model):
        inspect(model, ids_T, range(1, model.config.num_hidden_layers + 1), visit, positions_T)
    return found
