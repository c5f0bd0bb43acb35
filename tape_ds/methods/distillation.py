"""Self-distillation inside the native window, from an untouched copy of the base model.

Shape letters: B batch, T tokens, D hidden size, V entries of the vocabulary.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tape_ds.models.loading.extendable import Model


class TeacherTokens(NamedTuple):
    """A teacher's output on a batch, as the loss reads it."""

    hidden_ND: Tensor
    """Hidden states, of the tokens that count alone."""
    weight_VD: Tensor
    """Its output head."""
    counts_BT: Tensor
    """bool: the tokens whose position in their document is within the native window."""
    share: float
    """Weight of the divergence in the loss; the rest is the cross-entropy's."""


class Teacher:
    """The untouched model, frozen, and how its part of the loss is weighed.

    Args:
        model: on the device of the batches; held by nothing else.
        window: its native tokens.
        share: weight of the divergence in the loss.
    """

    def __init__(self, model: Model, window: int, share: float):
        self.model = model.eval().requires_grad_(False)
        self.window = window
        self.share = share

    @torch.no_grad()
    def tokens(self, inputs: Mapping[str, Any]) -> TeacherTokens:
        """Return the teacher's output on a batch of :func:`tape_ds.data.order.collate`."""
        ids_BT = inputs["input_ids"]
        documents_BT = inputs["document_ids"]
        places_BT, counts_BT = native_places(inputs["position_ids"], documents_BT, self.window)
        # attention is causal, so no token that counts sees one after the last that does
        seen = int(counts_BT.any(dim=0).nonzero().max()) + 1 if bool(counts_BT.any()) else 1
        hidden_BTD = self.model.decode(
            input_ids=ids_BT[:, :seen],
            position_ids=places_BT[:, :seen],
            document_ids=documents_BT[:, :seen],
            use_cache=False,
        ).last_hidden_state
        head: Any = self.model.get_output_embeddings()
        hidden_ND, weight_VD = head.operands(hidden_BTD[counts_BT[:, :seen]])
        return TeacherTokens(hidden_ND, weight_VD, counts_BT, self.share)


def native_places(position_ids: Tensor, documents_BT: Tensor, window: int) -> tuple[Tensor, Tensor]:
    """Return positions counted from each document's first token, int64 [B, T] and at most ``window - 1``, and which of
    them are within the window, bool [B, T]; padding is not. Positions rise within a document, which is in one piece;
    document -1 is padding."""
    positions_BT = position_ids.expand_as(documents_BT)
    begins_BT = torch.ones_like(documents_BT, dtype=torch.bool)
    begins_BT[:, 1:] = documents_BT.diff(dim=1) != 0
    columns_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    first_BT = torch.where(begins_BT, columns_T, 0).cummax(dim=1).values
    places_BT = positions_BT - positions_BT.gather(1, first_BT)
    return places_BT.clamp(max=window - 1), (places_BT < window) & (documents_BT >= 0)
