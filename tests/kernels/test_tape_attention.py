"""TAPE's attention in Triton against fp64: output and every gradient, over all that a call may ask for."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tape_ds.kernels import tape_attention as module
from tape_ds.kernels.tape_attention import document_borders, tape_attention
from tests.kernels.attention_cases import (  # noqa: F401
    DEVICE,
    DTYPE,
    NAMES,
    case,
    check,
    documents,
    gradients,
    nan_memory,
)


def run(example, **more):
    """Output and gradients of the kernels."""

    def attend(*inputs):
        return tape_attention(*inputs, **example.options, **more)

    return gradients(attend, example, example.q_BHTK.dtype)


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize(
    ("shape", "deterministic"),
    [
        ({"queries": 111, "keys": 111, "width": 32, "heads": 3, "groups": 1}, False),
        ({"queries": 50, "keys": 70, "width": 32, "heads": 2, "groups": 1, "batch": 2}, True),
        ({"queries": 80, "keys": 45, "width": 32}, False),
        ({"queries": 40, "keys": 100, "width": 32, "offset": 30}, True),
        ({"queries": 40, "keys": 50, "width": 32, "offset": 20}, False),
        ({"queries": 40, "keys": 50, "width": 32, "offset": 20}, True),
        ({"queries": 1, "keys": 65, "width": 32, "batch": 2, "scale": 0.7}, False),
        ({"queries": 33, "keys": 33, "width": 10, "batch": 2}, True),
        ({"queries": 37, "keys": 37, "width": 80}, False),
        ({"queries": 37, "keys": 37, "width": 128}, False),
        ({"queries": 63, "keys": 70, "width": 64, "dtype": torch.float16}, True),
    ],
    ids=str,
)
def test_output_and_gradients(shape, deterministic):
    """Odd lengths, T != S, unseen keys, queries before the first key, GQA and MQA; head sizes narrower than their block
    of 128, whose rest must be neither read nor written."""
    example = case(**shape)
    check(run(example, deterministic=deterministic), example)


PACKED = documents((0, 40), (3, 1), (1, 59), batch=2)
LAYOUTS = {
    "packed": PACKED,
    "left padding": documents((-1, 45), (0, 55)),
    "right padding": documents((0, 45), (-1, 55)),
    "holes": documents((0, 20), (-1, 30), (1, 10), (-1, 5), (2, 35)),
    "scattered": torch.arange(100, device=DEVICE)[None] % 3 - 1,
    "a row apart": torch.cat((PACKED[:1], documents((-1, 100))), 0),
}


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize(
    "layout, deterministic", [(name, at % 2 == 1) for at, name in enumerate(LAYOUTS)]
)
def test_documents(layout, deterministic):
    ids = LAYOUTS[layout]
    example = case(100, 100, 32, batch=len(ids), document_ids=ids)
    check(run(example, deterministic=deterministic), example)


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.parametrize("offset", [-8, 70])
def test_documents_of_later_queries(offset):
    """Query t belongs to the document at offset + t; beside the key axis there is none."""
    example = case(50, 100, 32, document_ids=LAYOUTS["holes"], offset=offset)
    check(run(example), example)


@pytest.mark.usefixtures("nan_memory")
@pytest.mark.filterwarnings("ignore:.*(invalid value|All-NaN).*:RuntimeWarning")
@pytest.mark.parametrize("poison, deterministic", [(float("nan"), False), (float("inf"), True)])
def test_padding_is_never_used(poison, deterministic):
    """Whatever lies in q, k, v and dO of padding, real rows are right and padding gets zeros, in all gradients."""
    ids = LAYOUTS["holes"]
    padding = (ids < 0)[:, None, :, None]
    example = case(100, 100, 32, document_ids=ids)
    clean, poisoned = (
        example._replace(
            **{
                name: getattr(example, name).masked_fill(padding, fill)
                for name in example._fields[:6]
            }
        )
        for fill in (0.0, poison)
    )
    found = run(poisoned, deterministic=deterministic)
    check(found, clean)
    for name, x in zip(NAMES, found, strict=True):
        assert (x.masked_select(padding) == 0).all(), name


@pytest.mark.usefixtures("nan_memory")
def test_unseen_keys_are_never_read():
    """A static cache is larger than what is in it; its rest holds anything, and its gradient is 0."""
    example = case(40, 100, 32, offset=20)
    clean = example._replace(
        **{name: getattr(example, name).clone() for name in example._fields[1:4]}
    )
    for x, zeroed in zip(example[1:4], clean[1:4], strict=True):
        x[:, :, 60:] = float("nan")
        zeroed[:, :, 60:] = 0
    found = run(example)
    check(found, clean)
    assert all((x[:, :, 60:] == 0).all() for x in found[3:])


def test_borders_may_be_a_view():
    """Of one row for the whole batch, say: kernels read them as they would lie in memory of their own."""
    example = case(40, 40, 16, batch=2, document_ids=documents((0, 10), (1, 30), batch=2))
    borders = document_borders(example.options["document_ids"][:1]).expand(3, 2, 40)
    given = (borders, example.options["document_ids"])
    assert torch.equal(
        *(torch.cat(tape_attention(*example.inputs, document_ids=each)) for each in given)
    )


def test_no_queries_and_no_keys():
    """Of nothing comes 0, with zero gradients, and no launch of an empty grid."""
    for queries, keys in ((0, 5), (5, 0)):
        found = run(case(queries, keys, 16))
        assert all((x == 0).all() for x in found) and found[1].shape == (1, 1, queries, 16)


@pytest.mark.usefixtures("nan_memory")
def test_strided_views():
    """Slices of a fused projection, value and state side by side, output gradients that are one number."""
    fused = torch.randn(1, 20, 4, 64, device=DEVICE, dtype=DTYPE)
    views = [fused[:, :, :2, :16], fused[:, :, 2:3, 16:32], *fused[:, :, 3:, 32:].split(16, -1)]
    strided = [x.transpose(1, 2).detach().requires_grad_() for x in views]
    copies = [x.detach().contiguous().requires_grad_() for x in strided]
    found, expected = (torch.stack(tape_attention(*inputs)) for inputs in (strided, copies))
    assert torch.equal(found, expected)
    mine, theirs = (
        torch.autograd.grad(found.sum(), strided),
        torch.autograd.grad(expected.sum(), copies),
    )
    for name, a, b in zip(NAMES[2:], mine, theirs, strict=True):
        torch.testing.assert_close(a, b, msg=name)


@pytest.mark.usefixtures("nan_memory")
def test_nothing_is_copied_on_the_way():
    """Value and state are read where they lie in one cache, outputs and gradients come apart: no ``cat``, no copy."""
    example = case(40, 40, 32, heads=2, groups=2)
    cache = torch.cat(example.inputs[2:], -1).requires_grad_()
    seen = []

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    with Watch():
        out, moved = tape_attention(*example.inputs[:2], *cache.split(32, -1))
    assert not {"cat", "clone", "copy_", "contiguous", "_to_copy"} & set(seen)
    check([out.detach(), moved.detach()], example)
    assert all(x.transpose(1, 2).is_contiguous() for x in (out, moved))


@pytest.mark.usefixtures("nan_memory")
def test_a_state_that_all_heads_share():
    """The first layer's: rows and heads repeat one memory."""
    example = case(20, 20, 16, batch=2, heads=2, groups=2)
    shared = example._replace(e_BGSK=example.e_BGSK[:1, :1].clone().expand(2, 2, -1, -1))
    check(run(shared), shared)


def test_deterministic_is_bit_equal():
    example = case(40, 40, 32)
    once, again, atomic = (
        run(example, deterministic=True),
        run(example, deterministic=True),
        run(example),
    )
    for name, a, b, c in zip(NAMES, once, again, atomic, strict=True):
        assert torch.equal(a, b), name
        torch.testing.assert_close(a, c, msg=name)


def test_torch_deterministic_algorithms_are_obeyed(monkeypatch):
    """dQ is then never summed by atomics."""
    seen, backward = [], module.tape_attention_backward.backward
    monkeypatch.setattr(
        module.tape_attention_backward,
        "backward",
        lambda *given: seen.append(given[-1]) or backward(*given),
    )
    for wanted in (False, True):
        torch.use_deterministic_algorithms(wanted)
        try:
            run(case(8, 8, 16))
        finally:
            torch.use_deterministic_algorithms(False)
    assert seen == [False, True]


def tensors(q=(1, 4, 3, 16), k=(1, 2, 3, 16), v=None, e=None):
    return [torch.zeros(shape, device=DEVICE, dtype=DTYPE) for shape in (q, k, v or k, e or v or k)]


@pytest.mark.parametrize(
    ("inputs", "reason"),
    [
        (tensors(e=(1, 2, 3, 32)), r"e \[1, 2, 3, 32\] do not fit"),
        (tensors(q=(1, 3, 3, 16)), "3 query heads are not a multiple of 2"),
        (tensors((1, 4, 3, 15), (1, 2, 3, 15)), "head size 15 is not an even number up to 128"),
        ([*tensors()[:3], tensors()[3].double()], "q, k, v, e differ in dtype: torch.float"),
        ([tensors(q=(1, 4, 16, 3))[0].mT, *tensors()[1:]], "last dimension of q is not contiguous"),
    ],
)
def test_unusable_tensors_are_refused(inputs, reason):
    with pytest.raises(ValueError, match=reason):
        tape_attention(*inputs)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("width", [32, 64, 80, 96, 128])
@pytest.mark.parametrize("deterministic", [False, True])
def test_tensor_cores(width, dtype, deterministic):
    """Long enough for every loop, with new numbers each time: a race shows itself sooner or later."""
    for repeat in range(20):
        options = [
            {"queries": 1000, "keys": 1000},
            {"queries": 700, "keys": 1030},
            {"queries": 513, "keys": 900, "offset": 100},
            {
                "queries": 900,
                "keys": 900,
                "document_ids": documents((0, 300), (-1, 77), (1, 523), batch=2),
            },
        ][repeat % 4]
        example = case(width=width, batch=2, heads=6, groups=2, dtype=dtype, **options)
        check(run(example, deterministic=deterministic), example)


def test_calls_that_do_not_fit_are_refused():
    for wrong in (tensors(q=(4, 3, 16)), [*tensors()[:3], tensors()[3].double()]):
        with pytest.raises(ValueError, match=r"need 4 dimensions|differ in dtype"):
            tape_attention(*wrong)
    for wrong in (
        {"scale": 0.0},
        {"document_ids": torch.zeros(1, 2, dtype=torch.int32, device=DEVICE)},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            tape_attention(*tensors(), **wrong)
