"""The output head: logits as ever, or the loss straight from hidden states, logits a chunk of tokens at a time.

Both ways go through the module's own ``__call__``, so whatever hooks a head (ZeRO-3 gathering its weight, a wrapper
that holds a trained copy of it) serves the loss as well as the logits.

Shape letters: B batch, T tokens, D hidden size, V entries of the vocabulary.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tape_ds.kernels.linear_cross_entropy import linear_cross_entropy
from tape_ds.kernels.linear_kl import linear_kl
from tape_ds.models.sharding import Shards, VocabularyPart

logger = logging.getLogger(__name__)

BIAS_COLUMNS = 8
"""Columns that a head's bias takes beside its weight, where the two become one matrix."""

Loss = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""(hidden [N, D], weight [V, D], targets [N], ignore_index) -> sum of losses."""


class OutputHead(nn.Linear):
    """A linear map to the vocabulary, with parameters and names of ``nn.Linear``; only GPT-J's has a bias."""

    fused_loss: Loss | None = None
    """A kernel that takes the loss of ``fused_from`` tokens or more, see :mod:`tape_ds.methods.liger`."""
    fused_from = 0
    part: VocabularyPart | None = None
    """Several processes share the vocabulary, and the weight has this one's rows; None: all of it is here."""

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = False,
        device: torch.device | None = None,
        dtype: torch.dtype | None = None,
    ):
        super().__init__(in_features, out_features, bias=bias, device=device, dtype=dtype)

    @classmethod
    def of(cls, linear: nn.Linear) -> nn.Linear:
        """``linear`` itself, turned into an output head: its parameter, attributes and hooks stay what they are.

        A subclass of ``nn.Linear``, or one with parameters beside its own, is returned as it is.
        """
        own = ["weight", "bias"] if linear.bias is not None else ["weight"]
        if type(linear) is nn.Linear and [name for name, _ in linear.named_parameters()] == own:
            linear.__class__ = cls
        return linear

    def forward(
        self,
        hidden: Tensor,
        targets: Tensor | None = None,
        ignore_index: int = -100,
        teacher: tuple[Tensor, Tensor] | None = None,
    ) -> Tensor:
        """Return logits [..., V] of hidden states [..., D] after the final norm; with ``targets`` or ``teacher``, the
        loss instead: the sum of cross-entropies, or of divergences KL(teacher || this head), an fp32 scalar in nats.

        ``targets``: int64 [...], already shifted, or ``ignore_index``. ``teacher``: :meth:`operands` of another head.
        """
        if teacher is not None:
            return linear_kl(*self.operands(hidden.reshape(-1, hidden.shape[-1])), *teacher)
        if targets is None:
            own = super().forward(hidden)
            return own if self.part is None else self.part.logits(own)
        targets_N = targets.reshape(-1)
        hidden_ND, weight_VD = self.operands(hidden.reshape(-1, hidden.shape[-1]))
        if self.part is not None:
            return self.part.loss(hidden_ND, weight_VD, targets_N, ignore_index)
        # The fused kernel gives the weight no gradient where the hidden states need none, and rounds the sum over all
        # tokens to the weight's dtype before anything divides it: fp16 cannot hold that.
        trained_in_fp16 = self.weight.requires_grad and self.weight.dtype == torch.float16
        long = len(targets_N) >= self.fused_from
        if self.fused_loss is not None and long and hidden.requires_grad and not trained_in_fp16:
            return self.fused_loss(hidden_ND, weight_VD, targets_N, ignore_index)
        return linear_cross_entropy(hidden_ND, weight_VD, targets_N, ignore_index=ignore_index)

    def operands(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two matrices whose product is the logits: hidden states [N, D] and the weight, the bias a column
        of both."""
        bias_V: Tensor | None = self.bias
        if bias_V is None:
            return hidden_ND, self.weight
        # BIAS_COLUMNS in place of one keep rows aligned for a GPU's matrix products
        bias_VC = F.pad(bias_V[:, None], (0, BIAS_COLUMNS - 1))
        ones_NC = F.pad(hidden_ND.new_ones(len(hidden_ND), 1), (0, BIAS_COLUMNS - 1))
        return torch.cat((hidden_ND, ones_NC), dim=1), torch.cat((self.weight, bias_VC), dim=1)


def causal_lm_loss(
    head: nn.Module | Callable[..., Tensor],
    hidden_BTD: Tensor,
    labels_BT: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **_: Any,
) -> Tensor | None:
    """transformers' ``ForCausalLMLoss`` of the head's logits, which are never held whole; None where the head can only
    give logits, which is logged once with the reason.

    Args:
        head: of the model, maybe wrapped; or a function that gives the sum of losses as :class:`OutputHead` does.
        hidden_BTD: what the head reads.
        labels_BT: int64; token t predicts label t + 1.
        num_items_in_batch: divides the sum; default the number of labels, which makes the mean (NaN without any).
        ignore_index: label of what is not predicted.
        shift_labels: int64 [B, T], labels that are shifted already, in place of ``labels_BT``.
    """
    if (reason := why_not(head)) is not None:
        _say_once(reason)
        return None
    targets_BT = shifted(labels_BT, ignore_index) if shift_labels is None else shift_labels
    targets_BT = targets_BT.to(hidden_BTD.device)
    loss = head(hidden_BTD, targets=targets_BT, ignore_index=ignore_index)
    return _divided(loss, targets_BT, ignore_index, num_items_in_batch)


def _divided(total: Tensor, targets_BT: Tensor, ignore_index: int, items: Tensor | int | None) -> Tensor:
    items = (targets_BT != ignore_index).sum() if items is None else items
    return total / (items.to(total.device) if isinstance(items, Tensor) else items)


def divergence(
    head: nn.Module,
    hidden_BTD: Tensor,
    labels_BT: Tensor,
    teacher: Any,
    num_items_in_batch: Tensor | int | None = None,
    **_: Any,
) -> Tensor:
    """Return the divergence from what a teacher predicts (:class:`tape_ds.methods.distillation.TeacherTokens`), summed
    over its tokens and divided by the targets of the whole batch, as :func:`causal_lm_loss` divides."""
    found: Tensor = head(hidden_BTD[teacher.counts_BT], teacher=(teacher.hidden_ND, teacher.weight_VD))
    return _divided(found, shifted(labels_BT), -100, num_items_in_batch)


def shifted(labels_BT: Tensor, ignore_index: int = -100) -> Tensor:
    """Return the target of each token: the label of the next one; the last has none."""
    return F.pad(labels_BT, (0, 1), value=ignore_index)[..., 1:]


def local_targets(
    shards: Shards,
    labels_BT: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Return what the loss of one process's tokens takes beside labels: its targets, and the number that divides their
    sum.

    The number is of whole sequences; where nobody gives it, it is counted there. So the parts of all processes add up
    to the loss, and a part without a target is 0. Arguments are those of :func:`causal_lm_loss`.
    """
    targets_BT = shifted(labels_BT, ignore_index) if shift_labels is None else shift_labels
    items = (targets_BT != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
    own_BT = shards.local_tokens(targets_BT, filling=ignore_index).contiguous()  # transformers' loss takes a view of it
    return {"shift_labels": own_BT, "num_items_in_batch": items}


def why_not(head: nn.Module | Callable[..., Tensor]) -> str | None:
    """Why this head can only give logits; None where it can give the loss.

    peft's ``modules_to_save`` hands a call on, arguments and all, to its trained copy or to the original. Its adapters
    (LoRA) add to the logits, which must then be there. A function in the place of a module gives the loss.
    """
    if not isinstance(head, nn.Module):
        return None
    copies = getattr(head, "modules_to_save", None)
    heads = [head.original_module, *copies.values()] if isinstance(copies, nn.ModuleDict) else [head]
    foreign = [type(each).__name__ for each in heads if not isinstance(each, OutputHead)]
    return f"the output head is a {foreign[0]}, which only gives logits" if foreign else None


@functools.cache
def _say_once(reason: str) -> None:
    logger.warning("the loss holds the logits of the whole batch, and fp32 copies of them: %s", reason)
