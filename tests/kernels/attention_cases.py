"""Attention problems whose truth is known: what the tests of the attention kernels share.

Interpreted kernels take fp32 here, on a GPU they take fp16: both run the same tests, at lengths of several blocks each.
"""

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from tape_ds.kernels import reference

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
DTYPE = torch.float16 if ON_GPU else torch.float32
NAMES = ("out", "dq", "dk", "dv")


class Case(NamedTuple):
    """Inputs, and which key every query may see."""

    q_BHTK: Tensor
    k_BGSK: Tensor
    v_BGSV: Tensor
    weight_BHTV: Tensor
    """The gradient that the output receives."""
    allowed_BTS: Tensor
    options: dict

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
    times: int = 2,
    dtype: torch.dtype = DTYPE,
    **options,
) -> Case:
    """Random tensors, laid out as projections give them: [B, tokens, heads, columns]."""
    q, k, v, weight = (
        torch.randn(batch, tokens, n, columns, device=DEVICE).to(dtype).transpose(1, 2)
        for tokens, n, columns in (
            (queries, heads, width),
            (keys, groups, width),
            (keys, groups, times * width),
            (queries, heads, times * width),
        )
    )
    offset = options.get("offset", keys - queries)
    places_T, places_S = offset + torch.arange(queries, device=DEVICE), torch.arange(keys, device=DEVICE)
    allowed_BTS = torch.ones(batch, queries, keys, dtype=torch.bool, device=DEVICE)
    if options.get("causal", True):
        allowed_BTS &= places_S <= places_T[:, None]
    if (ids_BS := options.get("document_ids")) is not None:
        own_BT = torch.full((batch, queries), -1, device=DEVICE)
        there_T = (places_T >= 0) & (places_T < keys)
        own_BT[:, there_T] = ids_BS[:, places_T[there_T]].to(own_BT)
        allowed_BTS &= (own_BT[:, :, None] == ids_BS[:, None, :]) & (ids_BS >= 0)[:, None, :]
    return Case(q, k, v, weight, allowed_BTS, options)


def gradients(attend: Callable[[Tensor, Tensor, Tensor], Tensor], example: Case, dtype: torch.dtype) -> list[Tensor]:
    """Output and gradients of all inputs, with everything in ``dtype``."""
    inputs = [x.detach().to(dtype).requires_grad_() for x in example[:3]]
    out_BHTV = attend(*inputs)
    return [out_BHTV.detach(), *torch.autograd.grad(out_BHTV, inputs, example.weight_BHTV.to(dtype))]


def truth(example: Case) -> list[Tensor]:
    """In fp64."""

    def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return reference.attention(q, k, v, example.allowed_BTS, example.scale)[0]

    return gradients(attend, example, torch.float64)


def plain(q_BHTK: Tensor, k_BGSK: Tensor, v_BGSV: Tensor, allowed_BTS: Tensor, scale: float) -> Tensor:
    """The formula in torch's operations, each in the inputs' own precision: the yardstick of every tolerance."""
    group = q_BHTK.shape[1] // k_BGSK.shape[1]
    k_BHSK, v_BHSV = k_BGSK.repeat_interleave(group, 1), v_BGSV.repeat_interleave(group, 1)
    scores_BHTS = (q_BHTK @ k_BHSK.mT * scale).masked_fill(~allowed_BTS[:, None], torch.finfo(q_BHTK.dtype).min)
    return scores_BHTS.softmax(-1).masked_fill(~allowed_BTS[:, None], 0.0) @ v_BHSV


def check(found: list[Tensor], example: Case) -> None:
    """Every tensor is at most twice as far from fp64 as plain PyTorch in the same precision (and one
    rounding), by the root of the squares."""
    dtype = example.q_BHTK.dtype
    expected = truth(example)
    yardstick = gradients(lambda q, k, v: plain(q, k, v, example.allowed_BTS, example.scale), example, dtype)
    for name, ours, theirs, right in zip(NAMES, found, yardstick, expected, strict=False):
        assert ours.dtype == dtype and ours.shape == right.shape, name
        error, allowance = (ours - right).norm(), (theirs - right).norm()  # in fp64; NaN anywhere is NaN here
        floor = torch.finfo(dtype).eps * right.norm()
        assert error <= 2 * allowance + floor, f"{name}: error {error:.2e}, plain PyTorch {allowance:.2e}"


def documents(*runs: tuple[int, int], batch: int = 1) -> Tensor:
    """int32 [B, S] of runs (document, tokens); -1 is padding."""
    ids = [torch.full((tokens,), document, dtype=torch.int32, device=DEVICE) for document, tokens in runs]
    return torch.cat(ids).expand(batch, -1)


@pytest.fixture
def nan_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """New memory is full of NaN: whatever a kernel leaves out, or reads too early, is seen."""
    empty, empty_like = torch.empty, torch.empty_like

    def poison(x: Tensor) -> Tensor:
        return x.fill_(float("nan")) if x.is_floating_point() else x

    monkeypatch.setattr(torch, "empty", lambda *args, **kwargs: poison(empty(*args, **kwargs)))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: poison(empty_like(*args, **kwargs)))
