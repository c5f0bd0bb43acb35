"""Embeddings and output head whose rows, entries of the vocabulary, are shared by a group of processes.

The loss needs three numbers of every token from the others: its largest logit, the sum of exponentials and the target's
logit (Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053, Section 3). As in
:mod:`tape_ds.kernels.linear_cross_entropy`, logits exist for a chunk of tokens at a time, and the gradients are
computed where they are.

Shape letters: N tokens, C tokens of a chunk, D hidden size, V entries of the whole vocabulary, v those of this process.
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from tape_ds.distributed.group import RankGroup
from tape_ds.kernels import linear_cross_entropy as chunked
from tape_ds.kernels.autocast import without_autocast
from tape_ds.kernels.weighted_cross_entropy import weights_of


@dataclass(frozen=True)
class VocabularyShard:
    """The entries of the vocabulary that this process has; see :class:`tape_ds.models.sharding.VocabularyPart`."""

    group: RankGroup
    sizes: tuple[int, ...]
    """Entries of each process; they may differ by one."""

    @property
    def begin(self) -> int:
        return sum(self.sizes[: self.group.index])

    @property
    def end(self) -> int:
        return self.begin + self.sizes[self.group.index]

    def local(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Return which ids are another process's, and all of them as numbers of this process's rows (0 for those)."""
        absent = (ids < self.begin) | (ids >= self.end)
        return absent, (ids - self.begin).masked_fill(absent, 0)

    def logits(self, own: Tensor) -> Tensor:
        """[..., v] -> [..., V]."""
        largest = max(self.sizes)
        parts = self.group.gather_alike(F.pad(own, (0, largest - own.shape[-1])))
        return torch.cat(
            [part[..., :size] for part, size in zip(parts, self.sizes, strict=True)], dim=-1
        )

    def check(self, ids: Tensor, what: str, ignored: int | None = None) -> None:
        """Raise RuntimeError (on CUDA the device's assertion) for an id outside the whole vocabulary that is not
        ``ignored``: each process would take it for another's, and it would silently become a zero."""
        entries = sum(self.sizes)
        fitting = (ids >= 0) & (ids < entries)
        if ignored is not None:
            fitting |= ids == ignored
        torch._assert_async(fitting.all(), f"{what} is none of the vocabulary's {entries} entries")

    def loss(
        self,
        hidden_ND: Tensor,
        weight: Tensor,
        targets_N: Tensor,
        ignore_index: int,
        given_N: Tensor | None = None,
        cap: float | None = None,
    ) -> Tensor:
        """Return sum of cross-entropies in nats, fp32 (fp64 for fp64 input), the same in every process.

        The gradient of ``hidden_ND`` is what this process's rows [v, D] give of it: a part of the sum over processes.
        With ``given_N`` the result has the three sums of
        :func:`tape_ds.kernels.weighted_cross_entropy.weighted_cross_entropy`.

        Raises:
            RuntimeError: a target that is none of the vocabulary.
        """
        self.check(targets_N, "a target", ignored=ignore_index)
        wanted = tuple(torch.is_grad_enabled() and x.requires_grad for x in (hidden_ND, weight))
        loss, others = _Loss.apply(
            hidden_ND, weight, targets_N, ignore_index, self, wanted, given_N, cap
        )
        if given_N is None:
            return loss
        return torch.cat((loss[None], others))

    @torch.no_grad()
    def separate_losses(
        self, hidden_ND: Tensor, weight: Tensor, targets_N: Tensor, *, ignore_index: int
    ) -> Tensor:
        """Return the loss of each target in nats, 0 for ``ignore_index``; the same in every process."""
        self.check(targets_N, "a target", ignored=ignore_index)
        operand = weight.to(chunked.product_dtype(hidden_ND))
        losses_N = hidden_ND.new_zeros(len(targets_N), dtype=chunked.softmax_dtype(hidden_ND))
        chunk = chunked.chunk_tokens(max(self.sizes))
        with without_autocast(hidden_ND.device.type):
            for at in range(0, len(targets_N), chunk):
                rows = slice(at, at + chunk)
                logits_Cv = (hidden_ND[rows].to(operand.dtype) @ operand.t()).to(losses_N.dtype)
                losses_N[rows] = self.normalise(logits_Cv, targets_N[rows]).losses_C
        return losses_N.masked_fill_(targets_N == ignore_index, 0)

    def normalise(self, logits_Cv: Tensor, targets_C: Tensor) -> "Normalised":
        """Exchange what the softmax over the whole vocabulary needs; the logits' memory is used up."""
        shifted_Cv = logits_Cv.sub_(self.group.largest(logits_Cv.amax(dim=-1, keepdim=True)))
        absent_C, local_C = self.local(targets_C)
        mine_C1 = shifted_Cv.gather(-1, local_C[:, None]).masked_fill(absent_C[:, None], 0)
        p_Cv = shifted_Cv.exp_()
        total_C1, target_C1 = self.group.sum(torch.stack((p_Cv.sum(dim=-1, keepdim=True), mine_C1)))
        return Normalised(
            (total_C1.log() - target_C1)[:, 0], p_Cv.div_(total_C1), absent_C, local_C
        )


class Normalised(NamedTuple):
    """The softmax of a chunk's logits, in which several processes have entries."""

    losses_C: Tensor
    """Of all the targets, the same in every process."""
    p_Cv: Tensor
    """Probabilities of this process's entries."""
    absent_C: Tensor
    """bool: the targets that are another process's entries."""
    local_C: Tensor
    """Targets as numbers of this process's rows."""


class _Loss(torch.autograd.Function):
    """Gradients are computed in the forward, where the logits are; the backward scales them."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_ND: Tensor,
        weight_vD: Tensor,
        targets_N: Tensor,
        ignore_index: int,
        part: VocabularyShard,
        wanted: tuple[bool, bool],
        given_N: Tensor | None,
        cap: float | None,
    ) -> tuple[Tensor, Tensor]:
        # torch's needs_input_grad is true under no_grad as well
        for_hidden, for_weight = wanted
        dtype = chunked.product_dtype(hidden_ND)
        loss = hidden_ND.new_zeros((), dtype=chunked.softmax_dtype(hidden_ND))
        others = loss.new_zeros(2)
        d_hidden_ND = torch.zeros_like(hidden_ND) if for_hidden else None
        sum_vD: Tensor | None = None
        weight = weight_vD.to(dtype)
        ignored_N = targets_N == ignore_index
        # not by the size of its piece: all must exchange equally long chunks
        chunk = chunked.chunk_tokens(max(part.sizes))
        # the same in every process: they have the same sequences
        blank = chunked.blank_chunks(ignored_N, chunk)
        with without_autocast(hidden_ND.device.type):
            for at, skipped in zip(range(0, len(targets_N), chunk), blank, strict=False):
                if skipped:
                    continue
                rows = slice(at, at + chunk)
                ignored_C1 = ignored_N[rows, None]
                hidden_CD = hidden_ND[rows].to(dtype).masked_fill(ignored_C1, 0)
                logits_Cv = (hidden_CD @ weight.t()).to(loss.dtype)
                softmax = part.normalise(logits_Cv, targets_N[rows])
                losses_C = softmax.losses_C.masked_fill(ignored_C1[:, 0], 0)
                # the loss's derivative in this process's logits
                slope_Cv = softmax.p_Cv
                target = (~softmax.absent_C[:, None]).to(slope_Cv.dtype)
                slope_Cv.scatter_add_(-1, softmax.local_C[:, None], target.neg())
                if given_N is None:
                    loss += losses_C.sum()
                else:
                    weights_C = weights_of(given_N[rows], losses_C, cap).masked_fill(
                        ignored_C1[:, 0], 0
                    )
                    loss += (weights_C * losses_C).sum()
                    others += torch.stack((losses_C.sum(), weights_C.sum()))
                    slope_Cv.mul_(weights_C[:, None])
                slope_Cv = slope_Cv.masked_fill_(ignored_C1, 0).to(dtype)
                if d_hidden_ND is not None:
                    d_hidden_ND[rows] = slope_Cv @ weight
                if for_weight:
                    sum_vD = chunked.add_product(sum_vD, slope_Cv.t(), hidden_CD)
        # a sum over all tokens, not a mean yet: fp16 could not hold it
        if for_weight:
            kept = torch.float32 if weight_vD.dtype == torch.float16 else weight_vD.dtype
            sum_vD = torch.zeros_like(weight_vD) if sum_vD is None else sum_vD.to(kept)
        ctx.save_for_backward(d_hidden_ND, sum_vD)
        ctx.dtypes = hidden_ND.dtype, weight_vD.dtype
        ctx.mark_non_differentiable(others)
        return loss, others

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        scaled = []
        for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True):
            if gradient is not None:
                gradient = chunked.scaled_gradient(gradient, gradients[0], dtype)
            scaled.append(gradient)
        return (*scaled, None, None, None, None, None, None)
