"""What a step minimises: the plain mean over its targets, a teacher's part next to it, or targets with weights.

An objective gives a batch what the model's forward needs for it, decides what divides the sum of losses, and has the
figures that are logged with the loss. Those are means over the targets of a step, all processes' and micro-batches'
together, as the loss is.

Shape letters: B batch, T tokens, M short sequences read at a time, L their tokens, N labels.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from tape_ds.config.target_weights import TargetWeights
from tape_ds.data.left_context import left_context
from tape_ds.data.order import IGNORED, PADDING
from tape_ds.distributed.group import RankGroup
from tape_ds.distributed.rank_sync import RankSync
from tape_ds.methods.distillation import Teacher
from tape_ds.scoring.losses import bare, evaluating


class Objective:
    """The plain mean."""

    names: ClassVar[tuple[str, ...]] = ()
    """Names of :meth:`figures`."""

    def divisor(self, batches: Sequence[Mapping[str, Any]], targets: Any) -> Any:
        """Return what divides the sums of a step's losses, given its micro-batches on this process and the targets of
        all; called once a step on every process."""
        return targets

    def inputs(self, model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of the model's forward for a micro-batch."""
        return dict(inputs)

    def figures(self, output: Any) -> Tensor:
        """Return this process's part of each figure of a micro-batch, [len(names)]."""
        raise NotImplementedError


class Distilled(Objective):
    """Cross-entropy and the divergence from a teacher."""

    names = ("cross_entropy", "divergence")

    def __init__(self, teacher: Teacher):
        self.teacher = teacher

    def inputs(self, model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {**inputs, "teacher": self.teacher.tokens(inputs)}

    def figures(self, output: Any) -> Tensor:
        return torch.stack((output.cross_entropy, output.divergence))


class Weighted(Objective):
    """Targets with weights, which batches bring as ``target_weights`` [B, T]: the sum of weighted losses over that of
    weights."""

    names = ("plain_loss", "mean_weight")

    def __init__(self, rank_sync: RankSync):
        self.rank_sync = rank_sync
        self.targets: Any = None
        """Of the step, on all processes."""

    def divisor(self, batches: Sequence[Mapping[str, Any]], targets: Any) -> Any:
        self.targets = targets
        whole = 0.0
        count = 0
        for batch in batches:
            # nothing predicts a first token
            targets_BT = batch["labels"][:, 1:] != IGNORED
            whole += float(batch["target_weights"][:, 1:][targets_BT].sum(dtype=torch.float64))
            count += int(targets_BT.sum())
        # processes that read the same sequences count them as often in both sums
        sums = self.rank_sync.numbers([whole, count])
        all_weights = sum(weights for weights, _ in sums)
        all_targets = sum(counted for _, counted in sums)
        if all_weights == all_targets:
            return targets
        return targets * (all_weights / all_targets)

    def figures(self, output: Any) -> Tensor:
        return torch.stack((output.plain_sum, output.weight_sum)) / self.targets


class LongCE(Weighted):
    """Targets weighed by what the model gains from their long context (Fang et al. 2024, arXiv:2410.23771, Section 4).

    A weight is ``min(exp(short - long), most)``, ``long`` the loss of the step's own forward and ``short`` that of the
    same model which reads the sequence from a later token on: from the last multiple of ``longce_stride`` that leaves
    ``longce_short`` tokens of context or more. A target whose document begins no earlier keeps the weight 1. As
    published, the sum is divided by the number of targets, not of weights, and the weights have no gradient.

    The short forwards are in evaluation mode: no dropout, and each process of a group that shares sequences takes some
    of them.
    """

    def __init__(
        self, settings: TargetWeights, rank_sync: RankSync, group: RankGroup | None, *, alike: bool
    ):
        """
        Args:
            settings: of the recipe.
            group: the processes that share the tokens of this one's sequences.
            alike: whether all processes must call the model equally often (ZeRO-3).
        """
        super().__init__(rank_sync)
        self.settings = settings
        self.group = group
        self.alike = alike

    def divisor(self, batches: Sequence[Mapping[str, Any]], targets: Any) -> Any:
        self.targets = targets
        return targets

    def inputs(self, model: nn.Module, inputs: Mapping[str, Any]) -> dict[str, Any]:
        short_BT = self.short_losses(bare(model), inputs)
        return {**inputs, "target_weights": short_BT, "weight_cap": self.settings.longce_most}

    @torch.no_grad()
    def short_losses(self, model: Any, inputs: Mapping[str, Any]) -> Tensor:
        """Return the loss in nats of each label with its short context, fp32 [B, T]; NaN where the weight is 1.

        As many short sequences are read at a time as have the tokens of the batch.
        """
        short = self.settings.longce_short
        stride = self.settings.longce_stride
        ids_BT, documents_BT, labels_BT = (
            inputs[name] for name in ("input_ids", "document_ids", "labels")
        )
        positions_BT = inputs["position_ids"].expand_as(ids_BT)
        tokens = ids_BT.shape[1]
        length = min(short + stride, tokens)
        gains_BT, begins = gaining(documents_BT, labels_BT, short, stride)
        if self.group is not None:
            begins = begins[self.group.index :: self.group.size]
        parts = [part for part in begins.split(max(1, ids_BT.numel() // length)) if len(part)]
        rounds = len(parts)
        if self.alike:
            rounds = int(max(count for (count,) in self.rank_sync.numbers([rounds])))
        # another process has more to read: the first tokens of all
        while len(parts) < rounds:
            parts.append(begins.new_zeros(1, 2))

        found_BT = torch.zeros(ids_BT.shape, device=ids_BT.device)
        with evaluating(model):
            for begins_M2 in parts:
                rows_M1, begins_M1 = begins_M2.split(1, dim=1)
                places_ML = begins_M1 + torch.arange(length, device=ids_BT.device)
                beyond_ML = places_ML >= tokens
                places_ML = places_ML.clamp(max=tokens - 1)
                targets_ML = labels_BT[rows_M1, places_ML].masked_fill(beyond_ML, IGNORED)[
                    :, short:
                ]
                hidden_MLD = model.decode(
                    input_ids=ids_BT[rows_M1, places_ML],
                    position_ids=positions_BT[rows_M1, places_ML],
                    document_ids=documents_BT[rows_M1, places_ML].masked_fill(beyond_ML, PADDING),
                    use_cache=False,
                ).last_hidden_state
                losses_ML = model.separate_losses(
                    hidden_MLD[:, short - 1 : -1].contiguous(), targets_ML
                )
                inside_ML = ~beyond_ML[:, short:]
                rows_ML = rows_M1.expand_as(places_ML)[:, short:]
                found_BT[rows_ML[inside_ML], places_ML[:, short:][inside_ML]] = losses_ML[
                    inside_ML
                ].float()
        if self.group is not None:
            # a label outside of a process's short sequences is 0 there
            found_BT = self.group.sum(found_BT.masked_fill(~gains_BT, 0))
        return torch.where(gains_BT, found_BT, torch.nan)


def gaining(
    documents_BT: Tensor, labels_BT: Tensor, short: int, stride: int
) -> tuple[Tensor, Tensor]:
    """Return which labels have more context than the short one, bool [B, T], and for the short contexts of these, each
    once, the row and the place where it begins, int64 [M, 2]. A short context begins at the last multiple of ``stride``
    that is ``short`` tokens or more before its label."""
    places_T = torch.arange(documents_BT.shape[1], device=documents_BT.device)
    begins_T = (places_T - short).div(stride, rounding_mode="floor") * stride
    gains_BT = (
        (labels_BT != IGNORED)
        & (places_T >= short)
        & (left_context(documents_BT) > places_T - begins_T)
    )
    rows_N, labels_N = gains_BT.nonzero(as_tuple=True)
    return gains_BT, torch.stack((rows_N, begins_T[labels_N]), dim=1).unique(dim=0)


def choose(
    teacher: Teacher | None,
    weights: TargetWeights | None,
    rank_sync: RankSync,
    group: RankGroup | None,
    *,
    alike: bool,
) -> Objective:
    """Return the objective of a run; arguments are those of :class:`LongCE`."""
    if teacher is not None:
        return Distilled(teacher)
    if weights is None or weights.target_weights == "equal":
        return Objective()
    if weights.target_weights == "exact":
        return Weighted(rank_sync)
    return LongCE(weights, rank_sync, group, alike=alike)
