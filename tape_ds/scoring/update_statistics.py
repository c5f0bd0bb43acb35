"""Statistics of trained position updates, layer by layer, on one text: how far and which way the state has moved."""

from typing import NamedTuple

from torch import Tensor

from tape_ds.models.llama import TapeForCausalLM
from tape_ds.scoring.inspection import LayerView, inspect
from tape_ds.scoring.losses import evaluating


class UpdateStatistics(NamedTuple):
    """A number for each layer, of the state as the layer reads it."""

    deviation: list[float]
    """|d| / |e|, as norms over all tokens, heads and columns; e = start + d."""
    along_own: list[float | None]
    """Share of |d|^2 along the token's own pairs (cos_j, sin_j) of e: it changes their length, which rescales scores;
    the rest rotates them. None without an update."""
    first_token: list[float]
    """Weight of the first token in ``A e``, mean over heads and all queries but the first."""


def measure(model: TapeForCausalLM, ids_T: Tensor, positions_T: Tensor | None = None) -> UpdateStatistics:
    """Measure one text of two tokens or more, int64 [T], in evaluation mode; positions count from 0 by default."""
    statistics = UpdateStatistics([], [], [])

    def visit(view: LayerView) -> None:
        statistics.first_token.append(view.weights_HTS[:, 1:, 0].mean().item())
        if view.start is None or view.deviation is None:
            statistics.deviation.append(0.0)
            statistics.along_own.append(None)
            return
        d = view.deviation.float()
        e = view.start.float() + d
        statistics.deviation.append((d.norm() / e.norm()).item())
        d_pairs, e_pairs = (x.unflatten(-1, (2, -1)) for x in (d, e))
        along = (d_pairs * e_pairs).sum(-2) / e_pairs.norm(dim=-2).clamp_min(1e-12)
        squares = d.square().sum()
        statistics.along_own.append((along.square().sum() / squares).item() if squares else None)

    with evaluating(model):
        inspect(model, ids_T, range(1, model.config.num_hidden_layers + 1), visit, positions_T)
    return statistics
