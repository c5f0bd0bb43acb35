"""Attention problems whose truth is known: what the tests of the attention kernels share.

Interpreted kernels take fp32 here, on a GPU they take fp16: both run the same tests, at lengths of several blocks each.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tape_ds.kernels import reference

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.float16 if ON_GPU else torch.float32
NAMES = ("out", "moved", "dq", "dk", "dv", "de")


class Case(NamedTuple):
    """Inputs, and which key every query may see."""

    q_BHTK: Tensor
    k_BGSK: Tensor
    v_BGSK: Tensor
    e_BGSK: Tensor
    dout_BHTK: Tensor
    """The gradient that the output receives."""
    dattended_BHTK: Tensor
    allowed_BTS: Tensor
    options: dict

    @property
    def inputs(self) -> tuple[Tensor, ...]:
        return self[:4]

    @property
    def scale(self) -> float:
        return self.options.get("scale", self.q_BHTK.shape[-1] ** -0.5)


def case(
    queries: int,
    keys: int,
    width: int,
    *,
    batch: int = 1,
    heads: int = 1,
    groups: int = 1,
    dtype: torch.dtype = DTYPE,
    **options,
) -> Case:
    """Random tensors, laid out as projections give them: [B, tokens, heads, columns]."""
    sizes = ((queries, heads), *3 * [(keys, groups)], *2 * [(queries, heads)])
    tensors = [
        torch.randn(batch, *size, width, device=DEVICE).to(dtype).transpose(1, 2) for size in sizes
    ]
    offset = options.get("offset", keys - queries)
    places_T, places_S = (
        offset + torch.arange(queries, device=DEVICE),
        torch.arange(keys, device=DEVICE),
    )
    allowed_BTS = (places_S <= places_T[:, None]).expand(batch, -1, -1)
    if (ids_BS := options.get("document_ids")) is not None:
        own_BT = torch.full((batch, queries), -1, device=DEVICE)
        there_T = (places_T >= 0) & (places_T < keys)
        own_BT[:, there_T] = ids_BS[:, places_T[there_T]].to(own_BT)
        allowed_BTS = (
            allowed_BTS & (own_BT[:, :, None] == ids_BS[:, None, :]) & (ids_BS >= 0)[:, None, :]
        )
    return Case(*tensors, allowed_BTS, options)


def gradients(
    attend: Callable[..., tuple[Tensor, Tensor]], example: Case, dtype: torch.dtype
) -> list[Tensor]:
    """Both outputs and the gradients of all inputs, with everything in ``dtype``."""
    inputs = [x.detach().to(dtype).requires_grad_() for x in example.inputs]
    outputs = attend(*inputs)
    received = (example.dout_BHTK.to(dtype), example.dattended_BHTK.to(dtype))
    return [*(x.detach() for x in outputs), *torch.autograd.grad(outputs, inputs, received)]


def truth(example: Case) -> list[Tensor]:
    """In fp64."""

    def attend(q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        out, moved = (
            reference.attention(q, k, value, example.allowed_BTS, example.scale)[0]
            for value in (v, e)
        )
        return out, moved

    return gradients(attend, example, torch.float64)


def plain(example: Case) -> list[Tensor]:
    """By the formula in torch's operations, each in the inputs' own precision: the yardstick of every tolerance."""
    unseen_B1TS = ~example.allowed_BTS[:, None]

    def attend(q: Tensor, k: Tensor, v: Tensor, e: Tensor) -> tuple[Tensor, Tensor]:
        k, v, e = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v, e))
        scores_BHTS = (q @ k.mT * example.scale).masked_fill(unseen_B1TS, torch.finfo(q.dtype).min)
        weights_BHTS = scores_BHTS.softmax(-1).masked_fill(unseen_B1TS, 0.0)
        return weights_BHTS @ v, weights_BHTS @ e

    return gradients(attend, example, example.q_BHTK.dtype)


def check(found: Sequence[Tensor], example: Case) -> None:
    """Every tensor (the outputs, or all of :data:`NAMES`) is at most twice as far from fp64 as plain PyTorch in the
    same precision (and one rounding), by the root of the squares."""
    dtype = example.q_BHTK.dtype
    for name, ours, theirs, right in zip(
        NAMES, found, plain(example), truth(example), strict=False
    ):
        assert ours.dtype == dtype and ours.shape == right.shape, name
        # in fp64; NaN anywhere is NaN here
        error, allowance = (
            (ours - right).norm(),
            (theirs - right).norm(),
        )
        floor = torch.finfo(dtype).eps * right.norm()
        assert error <= 2 * allowance + floor, (
            f"{name}: error {error:.2e}, plain PyTorch {allowance:.2e}"
        )


def documents(*runs: tuple[int, int], batch: int = 1) -> Tensor:
    """int32 [B, S] of runs (document, tokens); -1 is padding."""
    ids = [
        torch.full((tokens,), document, dtype=torch.int32, device=DEVICE)
        for document, tokens in runs
    ]
    return torch.cat(ids).expand(batch, -1)


@pytest.fixture
def nan_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory is full of NaN: whatever a kernel leaves out, or reads too early, is seen."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(x: Tensor) -> Tensor:
        return x.fill_(float("nan")) if x.is_floating_point() else x

    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: poison(empty(*args, **kwargs)))
    monkeypatch.setattr(
        torch, "empty_like", lambda *args, **kwargs: poison(empty_like(*args, **kwargs))
    )
