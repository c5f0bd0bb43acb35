"""The output head: logits, or the loss from hidden states, with the logits of a chunk of tokens at a time.

Both go through the module's own ``__call__``, so that hooks on a head (ZeRO-3 gathering its weight, a wrapper with a
trained copy) serve the loss as well as the logits.

Shape letters: B batch, T tokens, D hidden size, V entries of the vocabulary.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.utils import logging

from tape_ds.kernels.linear_cross_entropy import linear_cross_entropy
from tape_ds.kernels.linear_kl import linear_kl
from tape_ds.kernels.weighted_cross_entropy import separate_losses, weighted_cross_entropy
from tape_ds.models.sharding import Shards, VocabularyPart

logger = logging.get_logger(__name__)

BIAS_COLUMNS = 8
"""Columns of a head's bias next to its weight, when the two become one matrix."""

Loss = Callable[[Tensor, Tensor, Tensor, int], Tensor]
"""(hidden [N, D], weight [V, D], targets [N], ignore_index) -> sum of losses."""


class OutputHead(nn.Linear):
    """A linear map to the vocabulary, with parameters and names of ``nn.Linear``; only GPT-J's has a bias."""

    fused_loss: Loss | None = None
    """A kernel that takes the loss of ``fused_from`` tokens or more, see :mod:`tape_ds.methods.liger`."""
    fused_from = 0
    part: VocabularyPart | None = None
    """Several processes share the vocabulary, and the weight has this one's rows; None: all of it is here."""

    @classmethod
    def of(cls, linear: nn.Linear) -> nn.Linear:
        """Turn ``linear`` itself into an output head, its parameters, attributes and hooks kept; a subclass of
        ``nn.Linear``, or one with more parameters, is returned as it is."""
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
        weights: Tensor | None = None,
        cap: float | None = None,
        apart: bool = False,
    ) -> Tensor:
        """Return logits [..., V] of hidden states [..., D] after the final norm; with ``targets`` or ``teacher``, the
        loss instead: the sum of cross-entropies, or of divergences KL(teacher || this head), an fp32 scalar in nats.

        ``targets``: int64 [...], already shifted, or ``ignore_index``. ``teacher``: :meth:`operands` of another head.
        ``weights`` [...] and ``cap``: of the targets, as in :mod:`tape_ds.kernels.weighted_cross_entropy`; the result
        is then its three sums. ``apart``: the loss of each target [...], without gradients.
        """
        if teacher is not None:
            return linear_kl(*self.operands(hidden.reshape(-1, hidden.shape[-1])), *teacher)
        if targets is None:
            own = super().forward(hidden)
            if self.part is None:
                return own
            return self.part.logits(own)
        targets_N = targets.reshape(-1)
        hidden_ND, weight_VD = self.operands(hidden.reshape(-1, hidden.shape[-1]))
        if apart:
            of_each = separate_losses if self.part is None else self.part.separate_losses
            return of_each(hidden_ND, weight_VD, targets_N, ignore_index=ignore_index).view_as(
                targets
            )
        given_N = None if weights is None else weights.reshape(-1)
        if self.part is not None:
            return self.part.loss(hidden_ND, weight_VD, targets_N, ignore_index, given_N, cap)
        if given_N is not None:
            return weighted_cross_entropy(
                hidden_ND, weight_VD, targets_N, given_N, cap=cap, ignore_index=ignore_index
            )
        # The fused kernel gives the weight no gradient where the hidden states need none, and rounds the sum over all
        # tokens to the weight's dtype before anything divides it: fp16 cannot hold that.
        trained_in_fp16 = self.weight.requires_grad and self.weight.dtype == torch.float16
        long = len(targets_N) >= self.fused_from
        if self.fused_loss is not None and long and hidden.requires_grad and not trained_in_fp16:
            return self.fused_loss(hidden_ND, weight_VD, targets_N, ignore_index)
        return linear_cross_entropy(hidden_ND, weight_VD, targets_N, ignore_index=ignore_index)

    def operands(self, hidden_ND: Tensor) -> tuple[Tensor, Tensor]:
        """Return the two matrices whose product is the logits: hidden states [N, D] and the weight, with the bias as a
        column of both."""
        bias_V: Tensor | None = self.bias
        if bias_V is None:
            return hidden_ND, self.weight
        # more than one column, so that rows stay aligned for a GPU's matrix products
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
    target_weights: Tensor | None = None,
    weight_cap: float | None = None,
    **_: Any,
) -> Tensor | None:
    """Return transformers' ``ForCausalLMLoss`` of the head's logits, which are never held whole; None, and a warning,
    if the head only returns logits.

    Args:
        head: of the model, maybe wrapped; or a function that returns the sum of losses as :class:`OutputHead` does.
        hidden_BTD: the head's input.
        labels_BT: int64; token t predicts label t + 1.
        num_items_in_batch: divides the sum; default the number of labels, which makes the mean (NaN without any).
        ignore_index: label of tokens that are not predicted.
        shift_labels: int64 [B, T], labels that are shifted already, instead of ``labels_BT``.
        target_weights: [B, T], one for each label and shifted like them, with ``weight_cap`` as in
            :func:`tape_ds.kernels.weighted_cross_entropy.weighted_cross_entropy`. The result is then [3]: the sum of
            weighted losses, divided as the loss is, and undivided the sums of the losses and of the weights.
    """
    # peft's ``modules_to_save`` passes a call on, arguments and all, to its trained copy or to the original. Its
    # adapters (LoRA) add to the logits, which must exist for that.
    copies = getattr(head, "modules_to_save", None)
    heads: list[Any] = [head]
    if isinstance(copies, nn.ModuleDict):
        heads = [getattr(head, "original_module", None), *copies.values()]
    for each in heads:
        if isinstance(each, nn.Module) and not isinstance(each, OutputHead):
            logger.warning_once(
                "the loss holds the logits of the whole batch, and fp32 copies of them: the output head is a "
                f"{type(each).__name__}, which only gives logits"
            )
            return None
    targets_BT = shifted(labels_BT, ignore_index) if shift_labels is None else shift_labels
    targets_BT = targets_BT.to(hidden_BTD.device)
    if target_weights is None:
        loss = head(hidden_BTD, targets=targets_BT, ignore_index=ignore_index)
        return _divided(loss, targets_BT, ignore_index, num_items_in_batch)
    weights_BT = target_weights if shift_labels is not None else shifted(target_weights, 0)
    weights_BT = weights_BT.to(hidden_BTD.device)
    sums = head(
        hidden_BTD,
        targets=targets_BT,
        ignore_index=ignore_index,
        weights=weights_BT,
        cap=weight_cap,
    )
    loss = _divided(sums[0], targets_BT, ignore_index, num_items_in_batch)
    return torch.cat((loss[None], sums[1:]))


def _divided(
    total: Tensor, targets_BT: Tensor, ignore_index: int, items: Tensor | int | None
) -> Tensor:
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
    """Return the divergence from a teacher's predictions (:class:`tape_ds.methods.distillation.TeacherTokens`), summed
    over its tokens and divided as in :func:`causal_lm_loss`."""
    total: Tensor = head(
        hidden_BTD[teacher.counts_BT], teacher=(teacher.hidden_ND, teacher.weight_VD)
    )
    return _divided(total, shifted(labels_BT), -100, num_items_in_batch)


def shifted(labels_BT: Tensor, ignore_index: int = -100) -> Tensor:
    """Return the target of each token: the label of the next one; the last has none."""
    return F.pad(labels_BT, (0, 1), value=ignore_index)[..., 1:]


def local_targets(
    shards: Shards,
    labels_BT: Tensor,
    num_items_in_batch: Tensor | int | None = None,
    ignore_index: int = -100,
    shift_labels: Tensor | None = None,
    target_weights: Tensor | None = None,
    **_: Any,
) -> dict[str, Any]:
    """Return the targets of one process's tokens, their weights, and the number that divides the sum of their losses.

    The number is of whole sequences, counted there if it is not given. So the parts of all processes add up to the
    loss, and a part without a target is 0. Arguments are those of :func:`causal_lm_loss`.
    """
    targets_BT = shifted(labels_BT, ignore_index) if shift_labels is None else shift_labels
    items = (targets_BT != ignore_index).sum() if num_items_in_batch is None else num_items_in_batch
    # transformers' loss takes a view of it
    own_BT = shards.local_tokens(targets_BT, filling=ignore_index).contiguous()
    found = {"shift_labels": own_BT, "num_items_in_batch": items}
    if target_weights is not None:
        weights_BT = target_weights if shift_labels is not None else shifted(target_weights, 0)
        found["target_weights"] = shards.local_tokens(weights_BT, filling=0)
    return found
