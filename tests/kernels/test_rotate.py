"""Rotation by ``start + state`` against fp64: both forms, forward and every gradient, and the operator around them.

The Triton kernels run on the GPU where there is one, else in Triton's interpreter, which knows no bf16.
"""

import pytest
import torch
from torch import Tensor
from torch.library import opcheck

from tape_ds.kernels import jit, reference, rotate_triton
from tape_ds.kernels import rotate as module
from tape_ds.kernels.rotate import rotate

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
HALVES = [torch.float16, torch.bfloat16]
TRITON_DTYPES = HALVES if ON_GPU else [torch.float32, torch.float16]
needs_triton = pytest.mark.skipif(not (ON_GPU or jit.INTERPRETED), reason="needs Triton")


def example(
    heads=4,
    groups=4,
    tokens=7,
    width=8,
    *,
    batch=2,
    rows=1,
    shared=1,
    dtype=torch.float32,
    device="cpu",
):
    """x and the state as projections lay them out, the table of starts, and the gradient that the output receives."""

    def projected(count: int) -> Tensor:
        return torch.randn(batch, tokens, count, width, device=device).to(dtype).transpose(1, 2)

    angles = torch.rand(rows, shared, tokens, width // 2, device=device) * 6
    start = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return projected(heads), start, projected(groups) * 0.3, projected(heads)


def truth(
    x: Tensor, start: Tensor, state: Tensor | None, grad: Tensor, dtype: torch.dtype
) -> list[Tensor]:
    """Output and gradients of the plain form, of x and the state held in ``dtype``."""
    x = x.detach().to(dtype).requires_grad_()
    state = None if state is None else state.detach().to(dtype).requires_grad_()
    start = start.to(torch.promote_types(dtype, start.dtype))
    out = reference.rotate(x, start if state is None else start + state)
    return [
        out.detach(),
        *torch.autograd.grad(out, [x] if state is None else [x, state], grad.to(dtype)),
    ]


def check(found: list[Tensor], inputs: tuple[Tensor, Tensor, Tensor | None, Tensor]) -> None:
    """No error, as a norm, above twice that of plain PyTorch in the same precision and one rounding."""
    exact, plain = truth(*inputs, torch.float64), truth(*inputs, inputs[0].dtype)
    assert len(found) == len(exact)
    for name, ours, usual, right in zip(
        ("out", "dx", "d_state"), found, plain, exact, strict=False
    ):
        assert ours.shape == right.shape and ours.dtype == usual.dtype, name
        floor = torch.finfo(ours.dtype).eps * right.norm()
        error, allowed = (ours.double() - right).norm(), 2 * (usual.double() - right).norm() + floor
        assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"


def by_operator(x: Tensor, start: Tensor, state: Tensor | None, grad: Tensor) -> list[Tensor]:
    leaves = [each.detach().requires_grad_() for each in (x, state) if each is not None]
    out = rotate(leaves[0], start, leaves[1] if state is not None else None)
    return [out.detach(), *torch.autograd.grad(out, leaves, grad)]


def by_triton(x: Tensor, start: Tensor, state: Tensor | None, grad: Tensor) -> list[Tensor]:
    """The kernels themselves, on memory full of NaN."""
    out = torch.full_like(x, torch.nan)
    rotate_triton.forward(x, start, state, out)
    d_x, d_state = module.empty_gradients(grad, state, True, state is not None)
    written = [each.fill_(torch.nan) for each in (d_x, d_state) if each is not None]
    rotate_triton.backward(grad, x if state is not None else None, start, state, d_x, d_state)
    return [out, *written]


@pytest.mark.parametrize(
    "heads, groups, dtype, rows, shared",
    [
        (6, 2, torch.float64, 1, 1),
        (4, 4, torch.float32, 2, 1),
        (6, 3, torch.float32, 1, 3),
        (6, 3, torch.float32, 2, 3),
        (4, 1, torch.float16, 1, 1),
        (6, 2, torch.bfloat16, 2, 1),
    ],
)
def test_operator(heads, groups, dtype, rows, shared):
    """Query heads share a state, rows and groups a start; halves are computed in fp32 and rounded once."""
    inputs = example(heads, groups, dtype=dtype, rows=rows, shared=shared)
    check(by_operator(*inputs), inputs)
    x, start, _, grad = inputs
    check(by_operator(x, start, None, grad), (x, start, None, grad))


def test_pieces_do_not_show(monkeypatch):
    """A last piece that is shorter, pieces of one token: the same to the last bit."""
    inputs = example(4, 2, tokens=11)
    whole = by_operator(*inputs)
    for chunk in (1, 3 * 2 * 4 * 8):
        monkeypatch.setattr(module, "CHUNK", chunk)
        assert all(torch.equal(a, b) for a, b in zip(by_operator(*inputs), whole, strict=True))


@needs_triton
@pytest.mark.parametrize(
    "shape, dtype",
    [
        ({"heads": 3, "groups": 3, "tokens": 111, "width": 32}, 0),
        ({"heads": 6, "groups": 2, "tokens": 63, "width": 64}, 1),
        ({"heads": 3, "groups": 1, "tokens": 40, "width": 80, "rows": 2}, 0),
        ({"heads": 2, "groups": 2, "tokens": 33, "width": 96, "shared": 2}, 1),
        ({"heads": 9, "groups": 3, "tokens": 7, "width": 128, "rows": 2, "shared": 3}, 0),
        ({"heads": 2, "groups": 2, "tokens": 1, "width": 10, "batch": 1}, 1),
    ],
    ids=str,
)
def test_triton(shape, dtype):
    """Lengths that are no multiple of a block, GQA, head sizes that are no power of 2; unwritten memory is NaN."""
    inputs = example(**shape, dtype=TRITON_DTYPES[dtype], device=DEVICE)
    check(by_triton(*inputs), inputs)
    x, start, _, grad = inputs
    check(by_triton(x, start, None, grad), (x, start, None, grad))


@needs_triton
def test_triton_reads_any_rows():
    """Columns of a wider tensor, an expanded gradient whose last stride is 0, a state that is contiguous."""
    x, start, state, grad = example(4, 2, 35, 32, dtype=TRITON_DTYPES[-1], device=DEVICE)
    wide = torch.cat((x, x), dim=-1)
    inputs = (wide[..., 32:], start, state.contiguous(), grad[:, :, :, :1].expand_as(grad))
    check(by_triton(*inputs), inputs)


@needs_triton
def test_triton_computes_only_what_is_asked_for():
    x, start, state, grad = example(4, 2, 35, 32, dtype=TRITON_DTYPES[-1], device=DEVICE)
    _, d_x, d_state = by_triton(x, start, state, grad)
    alone = [torch.full_like(each, torch.nan) for each in (d_x, d_state)]
    rotate_triton.backward(grad, None, start, state, alone[0], None)
    rotate_triton.backward(grad, x, start, state, None, alone[1])
    assert torch.equal(alone[0], d_x) and torch.equal(alone[1], d_state)


def test_rows_are_written_contiguous_whatever_is_read():
    """Kernels write contiguous rows alone; a transposed x or state says nothing else of memory for results."""
    inputs = tuple(each.mT.contiguous().mT for each in example(4, 2))
    x, _, state, grad = inputs
    assert x.stride(-1) != 1 != state.stride(-1)
    found = by_operator(*inputs)
    check(found, inputs)
    assert [each.stride(-1) for each in found] == [1, 1, 1]
    assert [each.stride(-1) for each in module.empty_gradients(grad, state, True, True)] == [1, 1]
    opcheck(torch.ops.tape_ds.rotate.default, inputs[:3], test_utils="test_faketensor")


@pytest.mark.parametrize("groups, dtype", [(1, torch.float32), (2, torch.bfloat16)])
def test_a_graph_compiled_for_a_cpu_fuses_the_start_s_rotation(groups, dtype):
    """The same numbers without an operator; an exported graph and a learned state keep it."""
    names = []

    def backend(graph, inputs):
        names.extend(str(node.target) for node in graph.graph.nodes)
        return graph.forward

    x, start, state, grad = example(4, groups, shared=groups, dtype=dtype)
    compiled = torch.compile(rotate, fullgraph=True, backend=backend)
    leaf = x.detach().requires_grad_()
    out = compiled(leaf, start)
    assert not any("tape_ds" in name for name in names)
    check([out.detach(), *torch.autograd.grad(out, leaf, grad)], (x, start, None, grad))
    compiled(x, start, state)
    assert any("tape_ds.rotate" in name for name in names)

    class Rotation(torch.nn.Module):
        def forward(self, x, start):
            return rotate(x, start)

    assert "tape_ds.rotate" in str(torch.export.export(Rotation(), (x, start)).graph)


@pytest.mark.parametrize("learned", [False, True])
def test_x_is_saved_only_for_the_state_s_gradient(learned):
    x, start, state, _ = example(4, 2)
    x.requires_grad_()
    state.requires_grad_(learned)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda each: saved.append(each.shape) or each, lambda each: each
    ):
        rotate(x, start, state)
    assert saved == [*([x.shape] if learned else []), start.shape, state.shape]


def test_gradients_are_derivatives():
    x, start, state, _ = (each.double() for each in example(4, 2, tokens=3))
    assert torch.autograd.gradcheck(
        lambda x, state: rotate(x, start, state), (x.requires_grad_(), state.requires_grad_())
    )


@pytest.mark.parametrize(
    "x, start, state",
    [
        ((1, 4, 3, 7), (1, 1, 3, 7), None),
        ((1, 4, 3, 8), (1, 1, 3, 8), (1, 3, 3, 8)),
        ((2, 4, 3, 8), (1, 1, 3, 8), (1, 2, 3, 8)),
        ((2, 4, 3, 8), (3, 1, 3, 8), None),
    ],
)
def test_shapes_that_do_not_fit(x, start, state):
    with pytest.raises(ValueError, match=r"cannot rotate|not"):
        rotate(torch.zeros(x), torch.zeros(start), None if state is None else torch.zeros(state))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_large_on_a_gpu(dtype):
    """Sizes of real models, fresh inputs every time, through the operator."""
    for heads, groups, tokens, width in (
        (32, 32, 4096, 128),
        (32, 8, 1023, 128),
        (12, 12, 1000, 64),
    ) * 3:
        inputs = example(heads, groups, tokens, width, dtype=dtype, device="cuda")
        check(by_operator(*inputs), inputs)
