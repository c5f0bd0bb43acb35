"""The update of the position state against fp64: both forms, forward and every gradient, and the operator around them.

The Triton kernels run on the GPU where there is one, else in Triton's interpreter, which knows no bf16.
"""

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from tape_ds.kernels import jit, position_mix_plain, position_mix_triton, reference
from tape_ds.kernels.position_mix import position_mix
from tape_ds.kernels.position_mix_inputs import Inputs, empty, empty_gradients
from tests.models.test_score_bias import Largest

ON_GPU = torch.cuda.is_available()
DEVICE = "cuda" if ON_GPU else "cpu"
HALVES = [torch.float16, torch.bfloat16]
TRITON_DTYPES = HALVES if ON_GPU else [torch.float32, torch.float16]
UNIT = pytest.mark.parametrize("unit", [False, True], ids=["", "unit"])
NAMES = ("state", "moved", "attend", "gate", "expand", "contract")
needs_triton = pytest.mark.skipif(not (ON_GPU or jit.INTERPRETED), reason="needs Triton")


def example(
    heads=4,
    groups=4,
    rank=5,
    tokens=7,
    width=8,
    *,
    batch=2,
    rows=1,
    shared=1,
    dtype=torch.float32,
    weights=torch.float32,
    device="cpu",
    without=(),
) -> Inputs:
    """Activations as a model lays them out, ``moved`` the last columns of a wider tensor; weights in their own dtype.

    Without names: tensors to leave out.
    """

    def activation(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(dtype)

    def weight(*shape: int) -> Tensor:
        return (torch.randn(*shape, device=device) * 0.5).to(weights)

    angles = torch.rand(rows, shared, tokens, width // 2, device=device) * 6
    inputs = Inputs(
        torch.cat((angles.cos(), angles.sin()), dim=-1),
        activation(batch, tokens, groups, width).transpose(1, 2) * 0.3,
        activation(batch, tokens, heads, 2 * width).transpose(1, 2)[..., width:],
        weight(groups, heads),
        activation(batch, tokens, rank),
        weight(rank, groups),
        weight(groups, rank),
    )
    return inputs._replace(**dict.fromkeys(without))


def gentle(inputs: Inputs) -> Inputs:
    """The same, with no pair of the new state near 0: its direction, for ``unit``, is all rounding there."""
    heads, groups, _, rank = inputs.model()
    state = None if inputs.state is None else inputs.state / 2
    attend = None if inputs.attend is None else inputs.attend / (4 * heads**0.5)
    contract = None if inputs.contract is None else inputs.contract / (rank * groups) ** 0.5
    return inputs._replace(state=state, attend=attend, contract=contract)


def leaves(inputs: Inputs, *, dtype: torch.dtype | None = None) -> tuple[Inputs, list[Tensor]]:
    """The same tensors wanting gradients, in ``dtype`` or in their own, and a list of those that exist."""
    own = [
        None if x is None else x.detach().to(dtype or x.dtype).requires_grad_() for x in inputs[1:]
    ]
    return Inputs(inputs.start, *own), [x for x in own if x is not None]


def truth(inputs: Inputs, grad: Tensor, unit: bool = False) -> list[Tensor]:
    """In fp64: output and gradients."""
    exact, wanted = leaves(inputs._replace(start=inputs.start.double()), dtype=torch.float64)
    out = reference.position_update(*exact, unit)
    out = out.expand_as(grad)
    return [out.detach(), *torch.autograd.grad(out, wanted, grad.double())]


def plain(inputs: Inputs, grad: Tensor, unit: bool = False) -> list[Tensor]:
    """The formula in PyTorch's operations, each in the activations' precision: the yardstick of every tolerance."""
    own, wanted = leaves(inputs)
    dtype = grad.dtype
    start, state, moved, attend, gate, expand, contract = (
        None if x is None else x.to(dtype) for x in own
    )
    added = 0 if state is None else state
    if moved is not None:
        added = added + torch.einsum("gh,bhtk->bgtk", attend, moved)
    out = added
    if gate is not None:
        up = torch.einsum("ig,bgtk->bitk", expand, (start + added).expand(grad.shape))
        out = out + torch.einsum(
            "gi,bitk->bgtk", contract, F.silu(gate).transpose(1, 2)[..., None] * up
        )
    if unit:
        (cos, sin), (x, y) = start.chunk(2, dim=-1), (start + out).chunk(2, dim=-1)
        squares = x.float() ** 2 + y.float() ** 2  # a square of a half overflows and underflows
        factor = ((cos.float() ** 2 + sin.float() ** 2) / squares).sqrt().to(dtype)
        out = torch.cat((x * factor - cos, y * factor - sin), dim=-1)
    return [out.detach(), *torch.autograd.grad(out, wanted, grad)]


def check(found: list[Tensor], inputs: Inputs, grad: Tensor, unit: bool = False) -> None:
    """No error, as a norm, above twice that of plain PyTorch in the same precision and one rounding."""
    names = ["out", *(name for name, x in zip(NAMES, inputs[1:], strict=True) if x is not None)]
    for name, ours, usual, right in zip(
        names, found, plain(inputs, grad, unit), truth(inputs, grad, unit), strict=True
    ):
        assert ours.shape == right.shape and ours.dtype == usual.dtype, name
        floor = torch.finfo(grad.dtype).eps * right.norm()
        error, allowed = (ours.double() - right).norm(), 2 * (usual.double() - right).norm() + floor
        assert error <= allowed, f"{name}: error {error:.2e}, allowed {allowed:.2e}"


def received(inputs: Inputs, dtype: torch.dtype) -> Tensor:
    """A gradient for the output."""
    batch, groups, tokens, width = inputs.sizes()
    return (
        torch.randn(batch, tokens, groups, width, device=inputs.start.device)
        .to(dtype)
        .transpose(1, 2)
    )


def by_operator(inputs: Inputs, grad: Tensor, unit: bool = False) -> list[Tensor]:
    own, wanted = leaves(inputs)
    out = position_mix(*own, dtype=grad.dtype, unit=unit)
    return [out.detach(), *torch.autograd.grad(out, wanted, grad)]


def by_triton(inputs: Inputs, grad: Tensor, unit: bool = False) -> list[Tensor]:
    """The kernels themselves, on memory full of NaN."""
    out = empty(inputs, grad.dtype).fill_(torch.nan)
    position_mix_triton.forward(inputs, out, unit)
    gradients = empty_gradients(inputs, [True] * 6)
    written = [x.fill_(torch.nan) for x in gradients if x is not None]
    position_mix_triton.backward(grad, inputs, gradients, unit)
    return [out, *written]


@pytest.fixture
def nan_scratch(monkeypatch):
    """What the launcher itself allocates is full of NaN, too."""
    scratch = position_mix_triton.scratch

    def poisoned(*shape, **options):
        return scratch(*shape, **options).fill_(torch.nan)

    monkeypatch.setattr(position_mix_triton, "scratch", poisoned)


ABSENT = [
    (),
    ("state",),
    ("moved", "attend"),
    ("gate", "expand", "contract"),
    ("state", "moved", "attend"),
    ("state", "gate", "expand", "contract"),
]


@pytest.mark.parametrize("dtype", [torch.float32, *HALVES], ids=str)
@UNIT
def test_operator(unit, dtype):
    """Every combination of what may be missing; fp32 weights beside halves, as under autocast."""
    for without in ABSENT:
        inputs = gentle(example(6, 3, dtype=dtype, without=without))
        grad = received(inputs, dtype)
        check(by_operator(inputs, grad, unit), inputs, grad, unit)


@pytest.mark.parametrize("rows, shared, unit", [(2, 1, False), (1, 3, True), (2, 3, True)])
def test_start_of_each_row_and_group(rows, shared, unit):
    for without in ABSENT:
        inputs = gentle(example(6, 3, rows=rows, shared=shared, without=without))
        grad = received(inputs, torch.float32)
        check(by_operator(inputs, grad, unit), inputs, grad, unit)


@UNIT
def test_pieces_do_not_show(unit, monkeypatch):
    """Pieces that begin in one sequence and end in the next, a shorter last one, pieces of one token."""
    inputs = gentle(example(4, 2, tokens=11))
    grad = received(inputs, torch.float32)
    for chunk in (1, 4 * 2 * 8):
        monkeypatch.setattr(position_mix_plain, "CHUNK", chunk)
        check(by_operator(inputs, grad, unit), inputs, grad, unit)


def test_small_bf16_updates_add_up():
    """32 updates of 1e-3, as 32 layers make: stored next to a cosine of 1 in bf16, every one of them would be lost.

    The design's relative error of the sum is 0.007 for a deviation in bf16, here with a margin of 3.
    """
    inputs = example(
        4, 4, tokens=64, width=16, dtype=torch.bfloat16, without=("gate", "expand", "contract")
    )
    inputs = inputs._replace(
        moved=torch.full_like(inputs.moved, 1e-3), attend=torch.eye(4), state=None
    )
    for _ in range(32):
        inputs = inputs._replace(state=position_mix(*inputs, dtype=torch.bfloat16))
    assert inputs.state.dtype == torch.bfloat16
    torch.testing.assert_close(
        inputs.state.double(), torch.full(inputs.state.shape, 0.032).double(), rtol=0.02, atol=0
    )


def test_moduli_stay_those_of_the_start():
    """After 30 layers in bf16, YaRN's factor in the start and large updates: to the rounding of the deviation."""
    inputs = example(6, 3, tokens=64, width=16, dtype=torch.bfloat16)
    inputs = inputs._replace(start=1.2 * inputs.start)
    for _ in range(30):
        inputs = inputs._replace(state=position_mix(*inputs, dtype=torch.bfloat16, unit=True))
    start, state = (
        inputs.start.unflatten(-1, (2, -1)),
        (inputs.start + inputs.state.float()).unflatten(-1, (2, -1)),
    )
    assert (state - start).norm(dim=-2).max() > 2  # some have turned all the way round
    # of the longest deviation, each of its two numbers rounded by half
    step = torch.finfo(torch.bfloat16).eps * 2.4
    assert (state.norm(dim=-2) - start.norm(dim=-2)).abs().max() < step


@pytest.mark.parametrize("angle", [1e-7, 3.14])
def test_a_small_turn_is_not_lost(angle):
    """A deviation is no difference of two numbers near 1, in fp32; and no update gives exactly none."""
    start = torch.tensor([1.0, 0.0]).view(1, 1, 1, 2)
    update = torch.tensor([0.0, angle], dtype=torch.float64).view(1, 1, 1, 2)
    one = torch.ones(1, 1)
    found = position_mix(
        start, None, update.float(), one, None, None, None, dtype=torch.float32, unit=True
    )
    exact = reference.position_update(
        start.double(), None, update, one.double(), None, None, None, True
    )
    torch.testing.assert_close(found[..., 1].double(), exact[..., 1], rtol=1e-6, atol=0)
    nothing = position_mix(
        start, None, torch.zeros_like(start), one, None, None, None, dtype=torch.float32, unit=True
    )
    assert torch.equal(nothing, torch.zeros_like(start))


def test_a_pair_near_zero_stays_finite():
    """Its own negative is added to a start: there is no direction left to stretch."""
    start = torch.tensor([0.6, 0.8]).view(1, 1, 1, 2)
    for near in (0.0, 1e-9, 1e-5, 1e-2):
        inputs = Inputs(start, None, (near - 1) * start, torch.ones(1, 1), None, None, None)
        out, *gradients = by_operator(inputs, torch.ones_like(start), unit=True)
        assert (start + out).norm() <= 1 + 1e-4
        assert all(x.isfinite().all() for x in gradients)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dtype_of_the_result(dtype):
    """The state may be kept in fp32 beside bf16 activations, or the other way round."""
    inputs = example(dtype=torch.bfloat16 if dtype == torch.float32 else torch.float32)
    out = position_mix(*inputs, dtype=dtype)
    exact, *_ = truth(inputs, received(inputs, dtype))
    assert out.dtype == dtype
    step = torch.finfo(torch.bfloat16).eps
    assert (out.double() - exact).abs().max() <= 2 * step * exact.abs().max()


def test_nothing_is_as_large_as_ranks_times_channels(monkeypatch):
    """[B, I, T, K] is four states and more: the largest tensor that is ever made is ``moved``, which is an input."""
    monkeypatch.setattr(position_mix_plain, "CHUNK", 512)
    inputs = example(4, 4, rank=64, tokens=128, width=16)
    state = inputs.state.numel()
    with Largest() as seen:
        position_mix_plain.forward(inputs, empty(inputs, torch.float32), True)
        position_mix_plain.backward(
            torch.randn_like(inputs.state), inputs, empty_gradients(inputs, [True] * 6), True
        )
    assert seen.numel <= state < 64 * 128 * 16


@needs_triton
@pytest.mark.usefixtures("nan_scratch")
@pytest.mark.parametrize(
    "shape, dtype, unit",
    [
        ({"heads": 3, "groups": 3, "rank": 12, "tokens": 35, "width": 32, "batch": 1}, 0, False),
        ({"heads": 3, "groups": 1, "rank": 5, "tokens": 35, "width": 32, "batch": 1}, 1, True),
        ({"heads": 9, "groups": 3, "rank": 12, "tokens": 9, "width": 64}, 1, False),
        ({"heads": 12, "groups": 12, "rank": 48, "tokens": 6, "width": 96, "rows": 2}, 0, True),
        ({"heads": 32, "groups": 32, "rank": 128, "tokens": 5, "width": 128, "batch": 1}, 0, False),
        ({"heads": 6, "groups": 2, "rank": 48, "tokens": 5, "width": 80, "shared": 2}, 0, True),
        ({"heads": 40, "groups": 40, "rank": 160, "tokens": 3, "width": 32, "batch": 1}, 1, True),
    ],
    ids=str,
)
def test_triton(shape, dtype, unit):
    """Lengths that are no multiple of a block, GQA, sizes that are no power of 2, weights too large for registers."""
    dtype = TRITON_DTYPES[dtype]
    inputs = example(**shape, dtype=dtype, device=DEVICE)
    inputs = gentle(inputs) if unit else inputs
    grad = received(inputs, dtype)
    check(by_triton(inputs, grad, unit), inputs, grad, unit)


@needs_triton
@pytest.mark.usefixtures("nan_scratch")
@pytest.mark.parametrize("at, without", list(enumerate(ABSENT[1:])), ids=str)
def test_triton_without(at, without):
    unit = at % 2 == 1
    inputs = gentle(example(6, 3, 7, 5, 32, dtype=TRITON_DTYPES[0], device=DEVICE, without=without))
    grad = received(inputs, TRITON_DTYPES[0])
    check(by_triton(inputs, grad, unit), inputs, grad, unit)


@needs_triton
def test_triton_reads_any_rows_and_repeats_itself():
    """An expanded gradient whose last stride is 0, transposed weights, a contiguous state; nothing is atomic."""
    inputs = example(6, 3, 7, 5, 32, dtype=TRITON_DTYPES[0], device=DEVICE)
    inputs = inputs._replace(
        state=inputs.state.contiguous(),
        attend=inputs.attend.T.contiguous().T,
        expand=inputs.expand.T.contiguous().T,
    )
    grad = received(inputs, TRITON_DTYPES[0])
    grad = grad[..., :1].expand_as(grad)
    found = by_triton(inputs, grad)
    check(found, inputs, grad)
    assert all(torch.equal(a, b) for a, b in zip(found, by_triton(inputs, grad), strict=True))


@needs_triton
@pytest.mark.usefixtures("nan_scratch")
def test_triton_computes_only_what_is_asked_for():
    inputs = example(6, 3, 7, 5, 32, dtype=TRITON_DTYPES[0], device=DEVICE)
    grad = received(inputs, TRITON_DTYPES[0])
    _, *everything = by_triton(inputs, grad)
    for place, whole in enumerate(everything):
        gradients = empty_gradients(inputs, [each == place for each in range(6)])
        assert [x is not None for x in gradients] == [each == place for each in range(6)]
        position_mix_triton.backward(grad, inputs, gradients, False)
        assert torch.equal(gradients[place], whole), NAMES[place]


def test_only_inputs_are_saved():
    inputs, _ = leaves(example(6, 3))
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(
        lambda x: saved.append(x.data_ptr()) or x, lambda x: x
    ):
        position_mix(*inputs, dtype=torch.float32)
    assert saved == [x.data_ptr() for x in inputs]


@pytest.mark.parametrize("without", ABSENT, ids=str)
@UNIT
def test_fp64_and_its_derivatives(unit, without):
    inputs = example(4, 2, 3, 2, 4, dtype=torch.float64, weights=torch.float64, without=without)
    inputs, wanted = leaves(inputs._replace(start=inputs.start.double()))

    def update(*tensors):
        given = iter(tensors)
        filled = [None if x is None else next(given) for x in inputs[1:]]
        return position_mix(inputs.start, *filled, dtype=torch.float64, unit=unit)

    expected = reference.position_update(*inputs, unit)
    torch.testing.assert_close(update(*wanted), expected.expand(2, 2, 2, 4), rtol=0, atol=1e-14)
    assert torch.autograd.gradcheck(update, wanted)


@pytest.mark.parametrize(
    "replaced",
    [
        {"moved": None},
        {"expand": None},
        dict.fromkeys(NAMES[1:]),
        {"start": torch.zeros(1, 2, 7, 8)},
        {"contract": torch.zeros(2, 5)},
    ],
)
def test_tensors_that_do_not_fit_are_refused(replaced):
    with pytest.raises(ValueError, match=r"give both|all of gate|no update|not [\[(]"):
        position_mix(*example(6, 3)._replace(**replaced), dtype=torch.float32)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_large_on_a_gpu(dtype):
    """Sizes of real models, fresh inputs every time, through the operator; the last one is too large for Triton."""
    shapes = (
        (32, 32, 128, 1024, 128),
        (32, 8, 32, 1023, 128),
        (12, 12, 48, 1000, 64),
        (72, 72, 16, 100, 32),
    )
    for heads, groups, rank, tokens, width in shapes:
        inputs = example(heads, groups, rank, tokens, width, dtype=dtype, device="cuda")
        inputs = inputs._replace(expand=inputs.expand / groups, contract=inputs.contract / rank)
        grad = received(inputs, dtype)
        check(by_operator(inputs, grad), inputs, grad)
